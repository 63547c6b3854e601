"""Gradients that several ranks contribute to, added up before their STEP.

Copies of a stage (replicas) and tied parameters (an embedding and a head) have a gradient on each
of their ranks. A copy's reduction starts where the lowered program says. The tied ones start at the
rank's first STEP (its last one, with weight passing), when all its gradients are complete. Both
work in place, and STEP waits for them. A parameter that no rank used is left without a gradient.

If updates stand between ops, each has a reduction of its own, and STEP waits for that of its stage.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from synth.errors import SynthError
from synth.schedule.lowering.collectives import Collective
from synth.schedule.lowering.lower import Lowered

from ..base.clock import OpClock
from ..base.stage_protocol import StageProtocol
from ..transport.rank_group import RankGroup
from .all_reduce import broadcast_from_first, is_sharded, start_all_reduce
from .equal_tensors import CopiesAndTies, EqualTensors
from .layout import GradientLayout
from .unused import UnusedParameters


class Reducer(Protocol):
    """Adds up gradients that several ranks hold; the interface that the executor calls."""

    def begin(self, *, steps: bool) -> None:
        """Begin a step with backwards; see `GradientReducer.begin`."""
        ...

    def start(self, reduction: Collective) -> None:
        """Start adding up the gradients of a stage's copies."""
        ...

    def finish(self) -> None:
        """Wait until all gradients are added up."""
        ...

    def finish_update(self, stage: int) -> None:
        """Wait until the gradient of a stage's update is added up, and make it that of the mean.

        Called before each STEP of a schedule with updates between its ops.
        """
        ...


class GradientReducer:
    """One rank's part of all reductions."""

    def __init__(
        self,
        lowered: Lowered,
        group: RankGroup,
        stages: Mapping[int, StageProtocol],
        tied: Mapping[str, Sequence[Tensor]],
        *,
        layout: GradientLayout,
        clock: OpClock | None = None,
    ) -> None:
        """Make the process groups; every rank of the pipeline calls this at the same time.

        Copies, buffers included, and tied parameters start from the values of the lowest rank that
        holds them.

        Args:
            lowered: the schedule, whose reductions say which stages have copies.
            stages: this rank's stages, by number.
            tied: this rank's tied parameters, by names that all ranks share; one or several each.
            clock: records when reductions start, and the waits for them.

        Raises:
            SynthError: copies or tied parameters cannot stay equal, see `CopiesAndTies.find`.
        """
        self._layout = layout
        self._clock = clock or OpClock(torch.device("cpu"), recording=False)
        self._shared = CopiesAndTies.find(lowered, group, stages, tied, layout)
        self._groups = {ranks: group.subgroup(ranks) for ranks in self._shared.ranks_together}
        self._working: dict[Collective, list[dist.Work]] = {}
        self._unused = UnusedParameters()
        sizes = lowered.schedule.update_sizes
        self._shares = [min(sizes) / size for size in sizes]
        equal = list(self._shared.equal_tensors())
        self._foreign = {
            id(tensor): tensor
            for each in equal
            for place, tensor in enumerate(each.tensors)
            if place or group.rank != each.ranks[0]
        }
        self._is_open = False
        self._versions: list[tuple[Tensor, int]] = []
        self._stages = stages
        # FSDP2 exchanges the parameters of a stage by itself.
        plain = {n: s for n, s in stages.items() if not any(map(is_sharded, s.state()))}
        self._known = {number: {id(t): t for t in s.state()} for number, s in plain.items()}
        self._broadcast(equal)

    def begin(self, *, steps: bool) -> None:
        """Begin a step with backwards.

        After a sum every rank has the whole gradient. If it is not zeroed, as where gradients of
        several updates accumulate, the next sum must count it once: ranks that do not own a
        parameter start from zero.

        Args:
            steps: True if a stepper zeroes the gradients of the step before.

        Raises:
            SynthError: a copied stage has other parameters than when it was made equal to the
                others, or a tied parameter is no longer one of its stage.
        """
        now = {number: list(self._stages[number].parameters()) for number in self._known}
        self._check_same(now)
        self._versions = [] if steps else [(p, p._version) for p in self._shared_among(now)]
        if not (steps or self._is_open):
            for tensor in self._foreign.values():
                if tensor.requires_grad and tensor.grad is not None:
                    tensor.grad.zero_()
        self._is_open = True

    def _shared_among(self, trained: Mapping[int, Sequence[Tensor]]) -> Iterator[Tensor]:
        """Yield those that are copied or tied, of the trained parameters by stage."""
        for number, parameters in trained.items():
            for parameter in parameters:
                if number in self._shared.copied or id(parameter) in self._shared.tied_ids:
                    yield parameter

    def _check_unchanged(self) -> None:
        for parameter, version in self._versions:
            if parameter._version != version:
                raise SynthError(
                    f"a parameter of shape {list(parameter.shape)} that several ranks or stages "
                    f"hold was changed within a step, by a forward or a hook, so that they would "
                    f"come to differ: change it between steps"
                )

    def _check_same(self, trained: Mapping[int, Sequence[Tensor]]) -> None:
        for number, known in self._known.items():
            now = set(map(id, trained[number]))
            if number in self._shared.copied and not now <= known.keys():
                raise SynthError(
                    f"stage {number} has new parameters since the Pipeline was made, which made "
                    f"its copies equal: make a new Pipeline after such a change"
                )
            lost = known.keys() & self._shared.tied_ids - now
            if any(known[key].requires_grad for key in lost):
                raise SynthError(
                    f"a tied parameter of stage {number} was replaced since the Pipeline was made, "
                    f"which adds up its gradients: make a new Pipeline after such a change"
                )

    def owns(self, parameter: Tensor) -> bool:
        """True if this rank counts the parameter, for a norm over all ranks."""
        return id(parameter) not in self._foreign

    @property
    def summed(self) -> Collection[int]:
        """The ids of this rank's parameters whose gradients are summed with other ranks'."""
        copied = {id(p) for stage in self._shared.copied.values() for p in stage.parameters()}
        return copied | self._shared.tied_ids

    @property
    def copied(self) -> Collection[int]:
        """The stages of this rank that other ranks hold, too."""
        return self._shared.copied.keys()

    @property
    def ranks_together(self) -> Collection[tuple[int, ...]]:
        """The sets of ranks that have sums in common, of the whole pipeline."""
        return self._groups.keys()

    @property
    def has_tied(self) -> bool:
        """True if a parameter of this rank is tied to one of another rank or stage."""
        return bool(self._shared.tied)

    def start(self, reduction: Collective) -> None:
        """REDUCE: start adding up the gradients of a stage's copies."""
        handle = self._groups[reduction.ranks]
        self._clock.ready(reduction)
        parameters = list(self._own_parameters(reduction.stage))
        counts = [self._unused.count([(p,) for p in parameters])] if parameters else []
        gradients = [*map(self._layout.gradient_of, parameters), *counts]
        self._working[reduction] = start_all_reduce(handle, gradients)

    def finish(self) -> None:
        """Wait until the gradients of copies and of tied parameters are summed over their ranks.

        Raises:
            SynthError: one of these parameters was changed in the step.
        """
        self._check_unchanged()
        trained = [each for each in self._shared.tied if each.tensors[0].requires_grad]
        tied = [work for each in trained for work in self._start_sum(each)]
        for reduction, works in self._working.items():
            with self._clock.wait(reduction):
                _wait(works)
        self._working.clear()
        _wait(tied)
        for first, *others in (each.tensors for each in trained):
            for other in others:
                self._layout.gradient_of(other).copy_(self._layout.gradient_of(first))
        self._unused.leave_out()
        self._is_open = False

    def finish_update(self, stage: int) -> None:
        """See `Reducer`.

        Backwards start from the mean loss over the smallest update of any stage. The mean over a
        larger one has a smaller share of each of them.
        """
        for reduction in [found for found in self._working if found.stage == stage]:
            with self._clock.wait(reduction):
                _wait(self._working.pop(reduction))
            if self._shares[stage] < 1:
                gradients = map(self._layout.gradient_of, self._own_parameters(stage))
                torch._foreach_mul_(list(gradients), self._shares[stage])
        if not self._working:
            self._unused.leave_out()

    def _start_sum(self, tied: EqualTensors) -> list[dist.Work]:
        """Add up the gradients of this rank in that of the first, then start the sum of ranks."""
        counts = self._unused.count([tied.tensors])
        total, *others = map(self._layout.gradient_of, tied.tensors)
        for gradient in others:
            total.add_(gradient)
        return start_all_reduce(self._groups[tied.ranks], [total, counts]) if tied.ranks[1:] else []

    def _own_parameters(self, stage: int) -> Iterator[Tensor]:
        """The trainable parameters of a stage, but for those that are tied."""
        for parameter in self._shared.copied[stage].parameters():
            if id(parameter) not in self._shared.tied_ids:
                yield parameter

    @torch.no_grad()
    def _broadcast(self, shared: list[EqualTensors]) -> None:
        for (first, *others), ranks in shared:
            if ranks[1:]:
                broadcast_from_first(self._groups[ranks], first)
            for other in others:
                other.copy_(first)


def _wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()
