"""The ranks that read or write weights together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch.distributed as dist

from ..checkpoint.agreement import done_by_all
from ..execution.transport.objects import gather_objects

T = TypeVar("T")


@dataclass(frozen=True)
class AllRanks:
    """This rank among those that hold a model.

    Attributes:
        rank: from 0 on.
        gather: returns the objects of all ranks, in order; all of them call it.
        group: a process group of them whose messages the CPU sends; None: they are no processes, or
            there is one rank.
    """

    rank: int = 0
    gather: Callable[[Any], list[Any]] = lambda value: [value]
    group: Any = None

    @classmethod
    def of_processes(cls) -> Self:
        """All processes of the default group; all of them call this."""
        group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        return cls(dist.get_rank(), lambda value: gather_objects(value, group), group)

    def together(self, work: Callable[[], T]) -> T:
        """Do each rank's part of a work; if one refuses, all raise the first refusal.

        Raises:
            SynthError: a rank could not do it.
        """
        return done_by_all(work, self.gather, self.rank)
