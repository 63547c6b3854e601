"""The processes that are one rank while layers are measured (tensor parallelism)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from synth.errors import SynthError
from synth.profile.layer_profile import LayerProfile, Timing
from synth.profile.whole_step import WholeStep

from ..execution.gradients.all_reduce import broadcast_from_first, is_sharded
from ..models.layered_stage import LayerCall
from .layer_gradients import are_alike, layer_gradients
from .sample import Sample

T = TypeVar("T")


@dataclass(frozen=True)
class RankProcesses:
    """All processes of the world, which divide each layer and run it together.

    Attributes:
        divide: divides layers in place; all processes call it at the same time.
    """

    divide: Callable[[Sequence[nn.Module]], None]

    @classmethod
    def of_world(cls, device: torch.device, address: str | None) -> Self:
        """Make the group; all processes call this at the same time.

        Args:
            device: of this process.
            address: the user's function that divides a layer; None: built-in layers only.
        """
        from ..models.tensor_parallel import divide_layers  # slow to import

        mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("tp",))
        return cls(partial(divide_layers, group=mesh, address=address))

    def filling(
        self, fill: Callable[[LayerCall], LayerCall], device: torch.device
    ) -> Callable[[LayerCall], LayerCall]:
        """Return a `fill` of `LayerSource` that also divides the layer, on its device."""

        def filled(call: LayerCall) -> LayerCall:
            made = fill(call)
            made.module.to(device)
            self.divide([made.module])
            return made

        return filled

    def check_whole(self, name: str, sample: Sample) -> None:
        """Compare the gradients and buffers that stay whole on each process; all call this.

        A whole parameter within a divided part of a layer, such as a norm of this process's heads,
        gets a part of its gradient, and the processes would drift apart. So would statistics of a
        divided part in a buffer, of which a checkpoint has one process's.

        Raises:
            SynthError: such a gradient or buffer differs between the processes.
        """
        if sample.call is None:
            return
        for of, gradient in layer_gradients(sample, sample.call).items():
            if gradient is None or is_sharded(gradient):
                continue
            first = gradient.clone(memory_format=torch.contiguous_format)
            broadcast_from_first(dist.group.WORLD, first)
            is_other = not are_alike(first, gradient)
            differ = torch.tensor([is_other], dtype=torch.int32, device=first.device)
            dist.all_reduce(differ)
            if differ.item():
                kind = "value" if of.startswith("buffer ") else "gradient"
                raise SynthError(
                    f"layer {name!r}, as it is divided, has another {kind} of {of} on each "
                    f"process; divide what reads it, too, or leave that part of the layer whole"
                )

    def most(self, own: LayerProfile) -> LayerProfile:
        """Return the times of the slowest process and the bytes of the fullest; all call this.

        An op ends on all of them together but for what they compute alone. How long tensors are
        needed, and the share of weight gradients that waits for W, is as on this process.
        """
        found = self._all(own)
        times = {
            kind: max((each.time_us[kind] for each in found), key=_median) for kind in own.time_us
        }
        pairs = [each.pair_us for each in found if each.pair_us is not None]
        return own.replace(
            time_us=times,
            pair_us=max(pairs, key=_median, default=None),
            rise_bytes={
                kind: max(each.rise_bytes[kind] for each in found) for kind in own.rise_bytes
            },
            **{name: max(getattr(each, name) for each in found) for name in _BYTES},
        )

    def least(self, own: int | None) -> int | None:
        """Return the smallest number of all processes, of those that know one; all call this."""
        return min((each for each in self._all(own) if each is not None), default=None)

    def most_of_step(self, own: WholeStep) -> WholeStep:
        """Return the time of the slowest process and the peaks of the fullest; all call this."""
        found = self._all(own)
        peaks = [
            max(each, key=lambda peak: peak.measured_bytes)
            for each in zip(*(step.peaks for step in found), strict=True)
        ]
        return own.replace(whole_us=max(step.whole_us for step in found), peaks=tuple(peaks))

    def _all(self, own: T) -> list[T]:
        found: list[T] = [own] * dist.get_world_size()
        dist.all_gather_object(found, own)
        return found


_BYTES = (
    "parameter_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "output_bytes",
    "saved_bytes",
    "saved_w_bytes",
    "recompute_saved_bytes",
)


def _median(timing: Timing) -> float:
    return timing.median_us
