"""The problem that the solver is given."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from synth.costs.costs import Costs
from synth.costs.recomputation import NOT_RECOMPUTED, Recomputation
from synth.errors import SynthError
from synth.objective import Objective
from synth.op_kinds import MEASURED, MOVES, OpKind
from synth.profile import Profile
from synth.schedule.model import Placement, Schedule
from synth.schedule.recomputation_rules import RecomputationMenu
from synth.schedule.recomputed_stages import recomputed
from synth.solver.tuning import SEARCH
from synth.units import counted


class MergedStages(NamedTuple):
    """Stages whose B begins with R in the costs of a problem, and the costs in which R is apart."""

    stages: frozenset[int]
    costs: Costs


@dataclass(frozen=True)
class Problem:
    """The search for the fastest order of F, B and W of every rank within its memory limit.

    Attributes:
        caps_bytes: by rank, the most that it may hold at any moment, everything counted; None
            without limits.
        partition: layers of each stage, for explanations only.
        partition_is_best: True if no other partition keeps these caps where this one cannot, nor a
            smaller limit for all ranks.
        recomputed_layers: layers that B recomputes, each under its policy, which the costs count.
        profile: the profile of the layers without recomputation; with it a search may choose
            recomputed layers (`plan.recompute.layer_choice`).
        layer_menu: the rules by which layers may be recomputed, where stages may not be; None: any
            layers.
        further_ops: the kinds of op that a schedule may have besides those that a profile measures:
            R, moves of activations. The search orders the others; it places R by choosing stages,
            and `plan.offload` chooses moves.
        unrepeatable: the places in the model of layers with which no stage that R rebuilds may
            begin, as the input is changed in place. The number of layers stands for the targets of
            the last stage.
        merged: stages that recompute, whose R is the first part of B in the costs. R does not wait
            for the gradient, and orders are judged with R apart; bounds are those of R right before
            B, and hold unless `times_r_late`.
    """

    costs: Costs
    placement: Placement
    num_micro_batches: int
    caps_bytes: tuple[int, ...] | None = None
    objective: Objective = Objective.MAKESPAN
    partition: tuple[int, ...] | None = None
    partition_is_best: bool = False
    recomputed_layers: Recomputation = NOT_RECOMPUTED
    profile: Profile | None = field(default=None, compare=False, repr=False)
    layer_menu: RecomputationMenu | None = None
    further_ops: frozenset[OpKind] = frozenset((OpKind.R, *MOVES))
    unrepeatable: frozenset[int] = frozenset()
    merged: MergedStages | None = None

    def __post_init__(self) -> None:
        num_stages = self.costs.num_stages
        if self.num_micro_batches < 1:
            raise SynthError(
                f"{counted(self.num_micro_batches, 'micro-batch')} given; at least one is needed"
            )
        if self.num_ops > SEARCH.most_ops:
            raise SynthError(
                f"{counted(self.num_micro_batches, 'micro-batch')} in "
                f"{counted(num_stages, 'stage')} make {self.num_ops:,} ops, more than the "
                f"{SEARCH.most_ops:,} that the solver handles; give at most "
                f"{SEARCH.most_ops // (3 * num_stages):,} micro-batches"
            )
        if self.placement.num_stages != num_stages:
            raise SynthError(
                f"the placement has {counted(self.placement.num_stages, 'stage')}, the costs "
                f"{num_stages}; cut the profile into as many stages as the placement has"
            )
        held = self.placement.held
        if not all(held):
            raise SynthError(
                f"the placement leaves rank {held.index(())} without a stage; use fewer ranks"
            )
        if self.num_micro_batches < self.num_replicas:
            raise SynthError(
                f"too few micro-batches ({self.num_micro_batches}) for {self.num_replicas} "
                f"replicas; give at least one for each, or a placement with one replica"
            )
        if self.caps_bytes is not None and len(self.caps_bytes) != self.num_ranks:
            raise SynthError(
                f"{len(self.caps_bytes)} caps given for {counted(self.num_ranks, 'rank')}; give "
                f"one for each rank"
            )

    @classmethod
    def linear(
        cls,
        costs: Costs,
        num_micro_batches: int,
        cap_bytes: int | None = None,
        objective: Objective = Objective.MAKESPAN,
    ) -> "Problem":
        """Make a problem with one stage per rank and one cap for all."""
        caps = None if cap_bytes is None else (cap_bytes,) * costs.num_stages
        placement = Placement.linear(costs.num_stages)
        return cls(costs, placement, num_micro_batches, caps, objective)

    def check_ordered(self) -> None:
        """Check that a search can order the ops of the placement.

        Raises:
            SynthError: backwards run on other ranks than forwards.
        """
        if self.placement.backward_ranks is not None:
            raise SynthError(
                "this placement runs backwards on other ranks than forwards; no search orders ops "
                "on it, only the family roundpipe: name another placement, or compare"
            )

    @property
    def num_ops(self) -> int:
        """Number of F, B and W of all stages and micro-batches."""
        return 3 * self.num_micro_batches * self.costs.num_stages

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.placement.num_ranks

    @property
    def num_replicas(self) -> int:
        """Copies of the stages."""
        return len(self.placement.ranks)

    def admits(self, schedule: Schedule) -> bool:
        """Return True if a schedule has only ops of allowed kinds, and R only where it may be."""
        kinds = {op.kind for program in schedule.programs for op in program}
        return kinds <= self.further_ops.union(MEASURED) and self.has_allowed_r(schedule)

    def has_allowed_r(self, schedule: Schedule) -> bool:
        """Return True if no stage is rebuilt whose input or targets are changed in place."""
        stages = recomputed(schedule)
        return len(self._repeatable(stages)) == len(stages)

    def on_partition(self, costs: Costs, sizes: tuple[int, ...]) -> "Problem":
        """Return the problem on another partition, which nothing proves to be the best.

        Args:
            costs: of its stages.
            sizes: the layers of each stage.
        """
        return replace(self, costs=costs, partition=sizes, partition_is_best=False)

    def rebuildable(self, stages: Iterable[int]) -> tuple[int, ...]:
        """Return those of some stages that R may rebuild."""
        return self._repeatable(stages) if OpKind.R in self.further_ops else ()

    def _repeatable(self, stages: Iterable[int]) -> tuple[int, ...]:
        if not self.unrepeatable or self.partition is None:
            return tuple(stages)
        begins = [0, *accumulate(self.partition)]
        if begins[-1] in self.unrepeatable:
            stages = (stage for stage in stages if stage != len(self.partition) - 1)
        return tuple(stage for stage in stages if begins[stage] not in self.unrepeatable)

    def share(self, replica: int) -> tuple[int, int]:
        """Return the first micro-batch of a replica, and their number, as even as possible."""
        each, more = divmod(self.num_micro_batches, self.num_replicas)
        return each * replica + min(replica, more), each + (replica < more)

    def static_bytes(self, rank: int) -> int:
        """Return the parameters, gradients and optimizer state of a rank."""
        return self.costs.static_bytes(self.stages_of(rank))

    def stages_of(self, rank: int) -> list[int]:
        """Return the stages that a rank holds, one for each copy."""
        return [stage for stage, _ in self.placement.held[rank]]

    def lead_us(self, stage: int, transfer_us: int) -> int:
        """Return by how much B of a stage may begin before its gradient arrives from another rank.

        That is the time of its R, where the two are one op. At most B begins as soon as that of the
        next stage, so that an op never begins before those that it waits for.

        Args:
            transfer_us: the time of the gradient's transfer.
        """
        if self.merged is None or stage not in self.merged.stages:
            return 0
        below = self.costs.stages[stage + 1].duration_us
        most_us = transfer_us + min(below[OpKind.B], below[OpKind.BW])
        return min(self.merged.costs.stages[stage].duration_us[OpKind.R], most_us)

    @property
    def times_r_late(self) -> bool:
        """True if some R is longer than `lead_us` may be: orders may take less than models say."""
        if self.merged is None:
            return False
        stages, last = self.merged.costs.stages, self.costs.num_stages - 1
        inner = self.merged.stages - {last}
        return any(self.lead_us(s, 0) < stages[s].duration_us[OpKind.R] for s in inner)

    def reduction_us(self, stage: int) -> int:
        """Return the duration of the reduction of a stage's gradients, see `Costs.reduction_us`."""
        ranks = self.placement.holding(stage)
        # R hides no part of a reduction.
        costs = self.costs if self.merged is None else self.merged.costs
        return costs.reduction_us(
            stage,
            ranks,
            is_alone=self.placement.is_alone(stage),
            held=self.placement.held_by_all(ranks),
        )
