"""A stage whose state is in the host's memory: its weights, and the places of its gradient sums.

    UNSHARD       weights ─── lane in ──▶ the visit's buffers
    REDUCE_GRAD   the rank's sum ─── lane out ──▶ the sum's place
    STEP          waits until copies are over, adds the sums to the gradient, updates the weights

The lanes are those by which saved activations are offloaded (`host_link`). Copies are of bytes, so
that any dtype can be copied.
"""

from collections.abc import Collection, Iterator

import torch

from ..stage.boundary import Tensors
from ..stage.copy_lane import Lane, PendingCopy
from ..stage.host_memory import host_memory
from .flat_layout import ParameterLayout


class HostStage:
    """The flat buffers of a stage in the host's memory.

    Attributes:
        weights: as the layout's weights.
        gradients: as its gradients, zeros at first; STEP uses them.
    """

    def __init__(
        self, layout: ParameterLayout, sums: Collection[int], device: torch.device
    ) -> None:
        """Allocate the buffers; those of weights are without contents.

        Args:
            layout: the layout of the stage.
            sums: the numbers of the gradient sums that leave for the host in a step. Each has a
                place from the start, as pinning memory may wait for the device.
            device: the device of the rank.
        """
        memory = host_memory(device)
        self.weights = layout.weights.within(memory)
        # No copy of the device's reads or writes them, so they need no pinned memory.
        self.gradients = layout.gradients.within(host_memory(torch.device("cpu")))
        for gradient in self.gradients:
            gradient.zero_()
        self._sums = {number: layout.gradients.within(memory) for number in sums}
        self._arriving: list[tuple[Tensors, PendingCopy]] = []
        self._reading: list[PendingCopy] = []

    def load(self, buffers: Tensors, lane: Lane) -> PendingCopy:
        """Start copying the weights into the buffers of a visit."""
        done = lane.copy(_bytes(self.weights), _bytes(buffers), None)
        self._reading.append(done)
        return done

    def store(self, sums: Tensors, number: int, lane: Lane) -> PendingCopy:
        """Start copying a rank's gradient sum to its place."""
        place = self._sums[number]
        done = lane.copy(_bytes(sums), _bytes(place), None)
        self._arriving.append((place, done))
        return done

    def arrived(self) -> Iterator[Tensors]:
        """Wait for the sums that are on their way, and return each of them once."""
        while self._arriving:
            place, done = self._arriving.pop(0)
            done.synchronize()
            yield place

    def synchronize(self) -> None:
        """Wait until nothing reads the weights, so that they may be changed."""
        while self._reading:
            self._reading.pop().synchronize()


def _bytes(buffers: Tensors) -> Tensors:
    return tuple(buffer.view(torch.uint8) for buffer in buffers)
