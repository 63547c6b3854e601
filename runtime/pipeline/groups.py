"""The groups that one rank is in: its pipeline's ranks, and its data-parallel peers."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from synth.errors import RunFailure, SynthError

from ..execution.transport.groups import Group
from ..execution.transport.in_process.ranks import InProcessGroup

Ranks = ProcessGroup | DeviceMesh | InProcessGroup


@dataclass(frozen=True)
class PipelineGroups:
    """Both groups of a rank: failures are announced to both, and explained by either."""

    pipeline: Group | InProcessGroup
    peers: Group | InProcessGroup | None

    @classmethod
    def of(cls, group: Ranks | None, data_parallel: Ranks | None, timeout_s: float) -> Self:
        """Make this pipeline's own handles; all ranks of both groups call this.

        Raises:
            SynthError: there is no such group, or this process is not in it.
        """
        pipeline = group_of(group, timeout_s)
        if data_parallel is None:
            return cls(pipeline, None)
        return cls(pipeline, group_of(data_parallel, timeout_s, "data-parallel rank"))

    def on(self, device: torch.device) -> Self:
        """Return the same groups, whose subgroups move tensors of this device."""
        return replace(
            self, pipeline=self.pipeline.on(device), peers=self.peers and self.peers.on(device)
        )

    @contextmanager
    def building(self) -> Iterator[None]:
        """Guard a preparation by all ranks: a failure also ends that of the peers."""
        with self.pipeline.building():
            if self.peers is None:
                yield
                return
            self.pipeline.on_abort(self.peers.abort)
            with self.peers.building():
                yield

    def check_apart(self, modules: Iterable[nn.Module]) -> None:
        """Check that ranks which are threads share no trained parameter.

        Raises:
            SynthError: two do, so that each would add the gradients of both.
        """
        named = (pair for module in modules for pair in module.named_parameters())
        own = {id(parameter): name for name, parameter in named if parameter.requires_grad}
        for group in (each for each in self._each if isinstance(each, InProcessGroup)):
            for rank, theirs in enumerate(group.gather([*own])):
                shared = [own[key] for key in theirs if key in own and rank != group.rank]
                if shared:
                    raise SynthError(
                        f"{group.noun}s {group.rank} and {rank} are threads, and both hold the "
                        f"parameter {shared[0]} itself, so that each would add the gradients of "
                        f"both: give each rank a copy, by copy.deepcopy(layers) within its "
                        f"function, and name one that stays shared in tied="
                    )

    def announce(self, error: BaseException) -> None:
        """Announce to its pipeline and to its peers why this rank is about to disconnect."""
        explained = self.explain(error)
        for group in self._each:
            group.announce(explained)

    def explain(self, error: BaseException) -> BaseException:
        """Return the error, or one that also names the rank that failed before, and why."""
        if not isinstance(error, RunFailure | RuntimeError):
            return error
        explained: RunFailure | RuntimeError = error
        for group in self._each:
            explained = group.explain(explained)
        return error if str(explained) == str(error) else explained

    def withdraw(self) -> None:
        """Withdraw the announced failure, because this rank continues."""
        for group in self._each:
            group.withdraw()

    def close(self) -> None:
        """Free the connections between the ranks; all of them call this."""
        for group in self._each:
            group.close()

    @property
    def _each(self) -> list[Group | InProcessGroup]:
        return [self.pipeline] if self.peers is None else [self.pipeline, self.peers]


def group_of(given: Ranks | None, timeout_s: float, noun: str = "rank") -> Group | InProcessGroup:
    """A pipeline's own handle of its ranks; they call this at the same time.

    Raises:
        SynthError: there is no such group, or this process is not in it.
    """
    if isinstance(given, InProcessGroup):
        return given.renewed(timeout_s, noun)
    return Group.of(given, timeout_s, noun)
