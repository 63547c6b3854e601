"""Data parallelism: gradients of plain stages, averaged over the data-parallel pipelines.

The all-reduce of a stage starts right after its last backward, while the rank continues computing,
and is waited for before the rank's first STEP:

    compute   | B2 of stage 1 | W2 | B2 of stage 0 | W2 | STEP
    average                        [==== stage 1 ====]  [= stage 0 =]

Gradients that copies of a stage or tied parameters add up within the pipeline are averaged after
that sum. With weight passing, the gradients of all stages at home on a rank are complete at its
last STEP. Then those of what it updates are averaged, which may be its share of a stage.

All pipelines run the same program, so their collectives start in the same order. A rank never waits
for an op that its peers run after the same place, so they cannot deadlock.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from synth.errors import SynthError

from ..transport.rank_group import RankGroup
from .all_reduce import broadcast_from_first, start_all_reduce
from .layout import GradientLayout
from .unused import UnusedParameters


class GradientHolder(Protocol):
    """The part of a stage whose gradients are averaged: all of it, or what a rank keeps of it."""

    @property
    def is_wrapped(self) -> bool:
        """True if DistributedDataParallel or FSDP2 are inside."""
        ...

    def parameters(self) -> Iterable[Tensor]:
        """The trainable parameters that this rank updates."""
        ...

    def state(self) -> Iterable[Tensor]:
        """The tensors that peers have in common: parameters and buffers."""
        ...


class DataParallel:
    """Averages one rank's gradients with those of its peers, the same rank of other pipelines."""

    def __init__(
        self,
        group: RankGroup,
        stages: Mapping[int, GradientHolder],
        *,
        rank: int,
        fingerprint: str,
        layout: GradientLayout,
        summed: Collection[int] = (),
    ) -> None:
        """Give all peers the parameters and buffers of the first one; peers call this together.

        Args:
            stages: this rank's stages by number, or what it keeps of them.
            rank: the rank of this process in its pipeline.
            layout: the layout of this rank's gradients.
            summed: ids of parameters whose gradients are summed within the pipeline first.

        Raises:
            SynthError: the peers are different ranks of their pipelines, or have other schedules
                or parameters; a stage is wrapped for data parallelism already, or its forwards
                change parameters.
        """
        _check_plain(stages)
        self._group, self._stages, self._summed = group, stages, summed
        self._layout = layout
        for stage in stages.values():
            layout.check_same_after_forward(stage.parameters())
        self._check_alike(rank, fingerprint)
        self._handle = group.subgroup(range(group.size))
        self._incomplete: Counter[int] = Counter()
        self._works: list[dist.Work] = []
        self._unused = UnusedParameters()
        self._known = {id(t): t for s in stages.values() for t in (*s.state(), *s.parameters())}
        self._broadcast()

    def begin(self) -> None:
        """Begin a step with backwards.

        Raises:
            SynthError: a stage has other parameters than when those of its peers were made equal.
        """
        for number, stage in self._stages.items():
            if any(id(parameter) not in self._known for parameter in stage.parameters()):
                raise SynthError(
                    f"stage {number} has new parameters since the Pipeline was made, which gave "
                    f"all data-parallel pipelines the same ones: make a new Pipeline after such a "
                    f"change"
                )

    def start(self, stage: int) -> None:
        """Start averaging a stage's gradients, after its last backward of a step."""
        if not self._incomplete:  # a parameter of several stages is complete after the last stage
            self._incomplete.update(id(p) for s in self._stages.values() for p in s.parameters())
        complete = []
        for parameter in self._stages[stage].parameters():
            self._incomplete[id(parameter)] -= 1
            if not self._incomplete[id(parameter)] and id(parameter) not in self._summed:
                complete.append(parameter)
        self._average(complete)

    def finish(self) -> None:
        """Wait until this rank's gradients are the averages of all pipelines."""
        of_rank = {id(p): p for s in self._stages.values() for p in s.parameters()}
        self._average(p for key, p in of_rank.items() if key in self._summed)
        for work in self._works:
            work.wait()
        self._works.clear()
        self._incomplete.clear()
        self._unused.leave_out()

    @torch.no_grad()
    def _average(self, parameters: Iterable[Tensor]) -> None:
        """Start averaging gradients, together with a count of the peers that have each of them."""
        averaged = list(parameters)
        if not averaged:
            return
        counts = self._unused.count([(p,) for p in averaged])
        gradients = [*map(self._layout.gradient_of, averaged), counts]
        self._works += start_all_reduce(self._handle, gradients, divisor=self._group.size)

    def _broadcast(self) -> None:
        for stage in self._stages.values():
            for tensor in stage.state():
                broadcast_from_first(self._handle, tensor)

    def _check_alike(self, rank: int, fingerprint: str) -> None:
        """Refuse peers that differ, because they would wait for each other forever."""
        kinds = {n: self._layout.kinds_of(stage.state()) for n, stage in self._stages.items()}
        everyones = self._group.gather((rank, fingerprint, kinds))
        first_rank, first_fingerprint, first_kinds = everyones[0]
        for peer, (its_rank, its_fingerprint, its_kinds) in enumerate(everyones):
            both = f"processes {self._group.ranks[0]} and {self._group.ranks[peer]}"
            if its_rank != first_rank:
                raise SynthError(
                    f"{both} are in one data_parallel group, but are ranks {first_rank} and "
                    f"{its_rank} of their pipelines; give the dimension of the mesh whose "
                    f"processes hold the same stages"
                )
            if its_fingerprint != first_fingerprint:
                raise SynthError(
                    f"{both} are in one data_parallel group with different schedules; give every "
                    f"pipeline the same one"
                )
            if its_kinds != first_kinds:
                raise SynthError(
                    f"{both} are in one data_parallel group, but their stages have different "
                    f"parameters or buffers; shapes, dtypes, requires_grad and an "
                    f"embedding's `sparse` must be equal"
                )


def _check_plain(stages: Mapping[int, GradientHolder]) -> None:
    for number, stage in stages.items():
        if stage.is_wrapped:
            raise SynthError(
                f"stage {number} is wrapped in DistributedDataParallel or FSDP2, which reduce its "
                f"gradients already; leave data_parallel out, or give the plain module"
            )
