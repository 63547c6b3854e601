"""The problem of a search with weight passing: every rank runs whole micro-batches.

    ring     the weights of a stage go from rank to rank in the order of micro-batches, and so does
             the sum of its gradients (WeiPipe, PPoPP 2025); each stage has one home
    gather   every rank keeps a share of every stage; weights come by an all-gather, and gradients
             leave by a reduce-scatter (ZeRO: Rajbhandari et al. 2020, arXiv 1910.02054)

Micro-batch j is on rank j mod P in both.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from synth.costs.stage_costs import StageCosts
from synth.errors import SynthError
from synth.families.weipipe import home
from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Lowered
from synth.schedule.placements import everywhere
from synth.schedule.rank_memory import kept_bytes
from synth.schedule.weight_flow import Route, Sharded, WeightFlow
from synth.solver.problem import Problem


class WeightMovement(StrEnum):
    """The movement of weights between ranks."""

    RING = "ring"
    GATHER = "gather"


@dataclass(frozen=True)
class WeightPassingProblem:
    """A problem with the movement of its weights.

    Attributes:
        problem: on a placement that holds a copy of all stages on each rank.
    """

    problem: Problem
    movement: WeightMovement

    def __post_init__(self) -> None:
        problem, p, m = self.problem, self.num_ranks, self.problem.num_micro_batches
        given = f"weight passing by {self.movement}"
        if p < 2:
            raise SynthError(f"{given} needs at least two ranks, given {p}")
        if problem.placement != everywhere(p, problem.placement.num_stages):
            raise SynthError(
                f"{given} needs a copy of all stages on each rank; take the placement all-stages:N"
            )
        if m % p:
            raise SynthError(
                f"{given} needs the same number of micro-batches on each rank, given {m} for {p} "
                f"ranks; give a multiple of {p}"
            )
        unknown = [s for s, stage in enumerate(problem.costs.stages) if not stage.parameter_bytes]
        if any(problem.costs.stages[s].static_bytes for s in unknown):
            raise SynthError(
                f"{given} needs the bytes of parameters, which the profile does not contain for "
                f"stage {unknown[0]}; profile again"
            )

    @cached_property
    def num_ranks(self) -> int:
        """Number of ranks, P."""
        return self.problem.num_ranks

    @property
    def rounds(self) -> int:
        """The number of micro-batches of a rank."""
        return self.problem.num_micro_batches // self.num_ranks

    @property
    def stages(self) -> tuple[StageCosts, ...]:
        """The costs of all stages."""
        return self.problem.costs.stages

    def flow(self, sharded: Sharded = Sharded.WEIGHTS) -> WeightFlow:
        """The homes and routes; on a ring all state of a stage is at its home."""
        num_stages, p = len(self.stages), self.num_ranks
        if self.movement == WeightMovement.RING:
            homes = tuple((home(stage, p),) for stage in range(num_stages))
            return WeightFlow(homes, weights=Route.CHAIN, gradients=Route.CHAIN)
        return WeightFlow((tuple(range(p)),) * num_stages, sharded)

    @cached_property
    def levels(self) -> tuple[Sharded, ...]:
        """The kinds of state that may be kept by homes alone."""
        is_ring = self.movement == WeightMovement.RING
        return (Sharded.WEIGHTS,) if is_ring else tuple(reversed(Sharded))

    def headrooms(self, sharded: Sharded) -> list[int] | None:
        """The bytes of each rank's memory limit that its static bytes leave; None: no limits."""
        problem = self.problem
        if problem.caps_bytes is None:
            return None
        flow = self.flow(sharded)
        return [
            cap - kept_bytes(problem.costs, problem.placement, flow, rank)
            for rank, cap in enumerate(problem.caps_bytes)
        ]

    def gather_us(self, stage: int) -> int:
        """The time of an all-gather of a stage's weights."""
        return self.problem.costs.gather_us(stage, range(self.num_ranks))

    def scatter_us(self, stage: int) -> int:
        """The time of a reduce-scatter of a stage's gradients."""
        return self.problem.costs.scatter_us(stage, range(self.num_ranks))

    def step_us(self, stage: int) -> int:
        """The time of the optimizer step of a stage at each of its homes."""
        num_homes = 1 if self.movement == WeightMovement.RING else self.num_ranks
        return -(-self.stages[stage].duration_us[OpKind.STEP] // num_homes)

    def stages_at(self, rank: int) -> Iterable[int]:
        """The stages of which a rank runs the STEP."""
        flow = self.flow()
        return (stage for stage in range(len(self.stages)) if flow.is_home(stage, rank))


def passes_from_rank_to_rank(lowered: Lowered) -> bool:
    """True if every rank but rank 0 gets the weights of its visits from the rank before it.

    Rank 0 may get them from their home. Schedules of the ring are of this kind.
    """
    table, visits = lowered.transfer_table, lowered.visits
    if visits is None or visits.flow.weights != Route.CHAIN:
        return True
    is_weights = table.held != table.value
    from_before = (table.target == 0) | (table.source == table.target - 1)
    return bool(from_before[is_weights].all())
