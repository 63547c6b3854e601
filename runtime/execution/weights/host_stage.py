"""A stage whose state is in the host's memory: its weights, and the places of its gradient sums.

    UNSHARD       weights ─── lane in ──▶ the visit's buffers
    REDUCE_GRAD   the rank's sum ─── lane out ──▶ the sum's place
    STEP          waits until copies are over, adds the sums to the gradient, updates the weights

The lanes are those by which saved activations are offloaded (`host_link`). Copies are of bytes, so
that any dtype can be copied. If several ranks use the stage, they share the memory of its weights
and of the places of sums, which its home takes in the order of the sums.
"""

from collections.abc import Collection, Iterator

import torch

from synth.schedule.ops import Value

from ..base.boundary import Tensors
from ..transport.host.copy_lane import Lane, PendingCopy
from ..transport.host.host_memory import as_bytes, host_memory
from ..transport.host.shared_host import SharedHost
from .flat_layout import ParameterLayout


class HostStage:
    """The flat buffers of a stage in the host's memory.

    Attributes:
        weights: as the layout's weights.
        shared: the memory that ranks share; None: the stage is this rank's alone.
    """

    def __init__(
        self,
        number: int,
        layout: ParameterLayout,
        sums: Collection[Value],
        device: torch.device,
        shared: SharedHost | None = None,
    ) -> None:
        """Allocate the buffers; those of weights are without contents.

        Args:
            sums: the gradient sums that leave for the host in a step, in the order in which they
                are added up. Each has a place from the start, as pinning memory may wait for the
                device.
            shared: see above.
        """
        self.shared = shared
        memory = shared.allocator(f"stage-{number}") if shared else host_memory(device)
        self.weights = layout.weights.within(memory)
        self._sums = {value: layout.gradients.within(memory) for value in sums}
        self._arriving: list[tuple[Tensors, PendingCopy]] = []
        self._reading: list[PendingCopy] = []

    def load(self, buffers: Tensors, lane: Lane) -> PendingCopy:
        """Start copying the weights into the buffers of a visit."""
        done = lane.copy(as_bytes(self.weights), as_bytes(buffers), None)
        self._reading.append(done)
        return done

    def store(self, sums: Tensors, value: Value, lane: Lane) -> PendingCopy:
        """Start copying a rank's gradient sum to its place."""
        place = self._sums[value]
        if self.shared is not None:
            return self.shared.leave(lane, as_bytes(sums), as_bytes(place), value)
        done = lane.copy(as_bytes(sums), as_bytes(place), None)
        self._arriving.append((place, done))
        return done

    def arrived(self) -> Iterator[Tensors]:
        """Wait for the sums of a step, and return each of them once."""
        if self.shared is not None:
            for value, place in self._sums.items():
                self.shared.ready(value).synchronize()
                yield place
        while self._arriving:
            place, done = self._arriving.pop(0)
            done.synchronize()
            yield place

    def synchronize(self) -> None:
        """Wait until nothing reads the weights, so that they may be changed."""
        while self._reading:
            self._reading.pop().synchronize()
