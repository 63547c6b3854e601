"""Tensors that several ranks keep equal: copies of a stage, and tied parameters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

from torch import Tensor

from synth.errors import SynthError
from synth.schedule.lowering.collectives import CollectiveKind
from synth.schedule.lowering.lower import Lowered

from ..base.stage_protocol import StageProtocol
from ..transport.rank_group import RankGroup
from .layout import GradientLayout


class EqualTensors(NamedTuple):
    """Tensors of this rank that stay equal, to each other and to those of other ranks."""

    tensors: tuple[Tensor, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class CopiesAndTies:
    """One rank's copies of stages and tied parameters, and the ranks that have the others.

    Attributes:
        copied: this rank's stages that other ranks hold, too, by number.
        ranks_of_copies: the ranks that hold a stage, by its number, for every stage of the pipeline
            that several hold.
        ranks_of_ties: the ranks that hold a tied parameter, by its name, for all that are tied.
    """

    copied: Mapping[int, StageProtocol]
    ranks_of_copies: Mapping[int, tuple[int, ...]]
    tied: Sequence[EqualTensors]
    ranks_of_ties: Mapping[str, tuple[int, ...]]

    @classmethod
    def find(
        cls,
        lowered: Lowered,
        group: RankGroup,
        stages: Mapping[int, StageProtocol],
        tied: Mapping[str, Sequence[Tensor]],
        layout: GradientLayout,
    ) -> Self:
        """Find them, and refuse what cannot stay equal; all ranks call this at the same time.

        The arguments are those of `GradientReducer`.

        Raises:
            SynthError: a tied parameter's shape or dtype is not the same on all its ranks, or
                copies of a stage differ in theirs; stages with copies share a parameter that is
                not named as tied; forwards change one of these parameters.
        """
        ranks_of_ties = _ranks_of_ties(group, tied)
        ranks_of_copies = {
            reduction.stage: reduction.ranks
            for reduction in lowered.started_collectives
            if reduction.kind == CollectiveKind.ALL_REDUCE
        }
        found = cls(
            {n: stage for n, stage in stages.items() if n in ranks_of_copies},
            ranks_of_copies,
            [EqualTensors(tuple(tied[n]), r) for n, r in ranks_of_ties.items() if n in tied],
            ranks_of_ties,
        )
        _check_told_apart(found.copied, found.tied_ids)
        if ranks_of_copies:
            check_alike(group, found.copied, layout)
        for stage in found.copied.values():
            layout.check_same_after_forward(stage.parameters())
        layout.check_same_after_forward(p for each in found.tied for p in each.tensors)
        return found

    @cached_property
    def tied_ids(self) -> frozenset[int]:
        """The ids of this rank's tied parameters."""
        return frozenset(id(parameter) for each in self.tied for parameter in each.tensors)

    @property
    def ranks_together(self) -> list[tuple[int, ...]]:
        """The sets of several ranks that have tensors in common, in the same order on all ranks."""
        every = {*self.ranks_of_copies.values(), *self.ranks_of_ties.values()}
        return sorted(ranks for ranks in every if len(ranks) > 1)

    def equal_tensors(self) -> Iterator[EqualTensors]:
        """Yield the tensors of copied stages, buffers included, and then the tied parameters."""
        for number, stage in self.copied.items():
            for tensor in stage.state():
                if id(tensor) not in self.tied_ids:
                    yield EqualTensors((tensor,), self.ranks_of_copies[number])
        yield from self.tied


def check_alike(
    group: RankGroup, copied: Mapping[int, StageProtocol], layout: GradientLayout
) -> None:
    """Refuse copies of stages that differ; all ranks call this, with the copies that they hold."""
    seen: dict[int, tuple[int, list[str]]] = {}
    mine = {n: layout.kinds_of(s.state()) for n, s in copied.items()}
    for rank, theirs in enumerate(group.gather(mine)):
        for number, kinds in theirs.items():
            other, expected = seen.setdefault(number, (rank, kinds))
            if kinds != expected:
                raise SynthError(
                    f"the copies of stage {number} differ: rank {other} has {', '.join(expected)}, "
                    f"rank {rank} has {', '.join(kinds)}; parameters and buffers must be alike"
                )


def _check_told_apart(copied: Mapping[int, StageProtocol], tied_ids: frozenset[int]) -> None:
    """Refuse a parameter of two stages that is not named as tied: it would be reduced with both."""
    seen: dict[int, int] = {}
    for number, stage in copied.items():
        for parameter in stage.parameters():
            other = seen.setdefault(id(parameter), number)
            if other != number and id(parameter) not in tied_ids:
                raise SynthError(
                    f"stages {other} and {number} share a parameter and have copies on other "
                    f"ranks; name it on each of its ranks: tied={{'name': parameter}}"
                )


def _ranks_of_ties(
    group: RankGroup, tied: Mapping[str, Sequence[Tensor]]
) -> dict[str, tuple[int, ...]]:
    """Return the ranks that hold each tied parameter, by name, if it is more than one parameter."""
    mine = {name: [_kind(parameter) for parameter in each] for name, each in tied.items()}
    everyones: list[dict[str, list[str]]] = group.gather(mine)
    found = {}
    for name in sorted({name for theirs in everyones for name in theirs}):
        ranks = tuple(rank for rank, theirs in enumerate(everyones) if name in theirs)
        listed = [kind for rank in ranks for kind in everyones[rank][name]]
        kinds = set(listed)
        if len(kinds) > 1:
            raise SynthError(
                f"the tied parameter {name!r} differs between ranks {list(ranks)}: "
                f"{'; '.join(sorted(kinds))}; it must have one shape and dtype, and be trained by "
                f"all of them or none"
            )
        if len(listed) > 1:
            found[name] = ranks
    return found


def _kind(parameter: Tensor) -> str:
    """The properties in which tied parameters agree."""
    return (
        f"{list(parameter.shape)} {parameter.dtype}{'' if parameter.requires_grad else ' frozen'}"
    )
