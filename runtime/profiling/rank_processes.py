"""The processes that are one rank while layers are measured (tensor parallelism)."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Self, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _get_default_store

from synth.errors import SynthError
from synth.profile.layer_profile import LayerProfile, Timing

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
        store: of results of `together`, of these processes alone.
    """

    divide: Callable[[Sequence[nn.Module]], None]
    store: Store
    _numbers: Iterator[int] = field(default_factory=count)

    @classmethod
    def of_world(cls, device: torch.device, address: str | None) -> Self:
        """Make the group; all processes call this at the same time.

        Args:
            address: the user's function that divides a layer; None: built-in layers only.
        """
        from ..models.tensor_parallel import divide_layers  # slow to import

        mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("tp",))
        name = [uuid4().hex]
        dist.broadcast_object_list(name)
        store = PrefixStore(name[0], _get_default_store())
        return cls(partial(divide_layers, group=mesh, address=address), store)

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

    def together(self, own: Callable[[], T]) -> list[T]:
        """Return what a function returns on each process; all of them call this, or none goes on.

        A process that fails does not wait for the others: they may wait for it in a collective of
        the function, which ends when that process does.

        Args:
            own: its result can be pickled.

        Raises:
            SynthError: the function failed, here or on another process.
        """
        number, rank = next(self._numbers), dist.get_rank()
        try:
            outcome: tuple[T | None, str | None] = own(), None
        except (SynthError, RuntimeError) as error:
            outcome = None, str(error)
        self.store.set(f"{number}/{rank}", pickle.dumps(outcome).hex())
        if outcome[1] is not None:
            raise SynthError(outcome[1])
        results = []
        for other in range(dist.get_world_size()):
            text = self.store.get(f"{number}/{other}").decode()
            result, failure = pickle.loads(bytes.fromhex(text))
            if failure is not None:
                raise SynthError(f"process {other} failed: {failure}")
            results.append(result)
        return results

    def _all(self, own: T) -> list[T]:
        found: list[T] = [own] * dist.get_world_size()
        dist.all_gather_object(found, own)
        return found


def together(processes: RankProcesses | None, own: Callable[[], T]) -> list[T]:
    """Return what a function returns on each process; None: on this one alone."""
    return [own()] if processes is None else processes.together(own)


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
