"""The problem that options define, but for its placement."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from synth.costs.partition_costs import stage_speeds
from synth.costs.recomputation import NOT_RECOMPUTED, Recomputation
from synth.errors import SynthError
from synth.objective import Objective
from synth.plan.partition.balance import balance
from synth.plan.partition.unequal_ranks import rank_orders
from synth.plan.recompute.layers_in_place import layers_in_place, ops_allowed_by
from synth.plan.runtimes import DEFAULT, Allowed
from synth.plan.weight_passing.data_parallel_plan import costs_of_one, sharing_optimizer
from synth.profile import Profile
from synth.schedule.model import Placement
from synth.solver.problem import Problem
from synth.units import counted

# Layers of each stage, those of a balance, or, with `auto`, those that a search finds.
Partition = tuple[int, ...] | Literal["auto", "even"]


@dataclass(frozen=True)
class ProblemArguments:
    """Options of a problem that do not depend on its placement.

    Attributes:
        profile: the profile of whole layers as they are run.
        num_micro_batches: per iteration.
        partition: layers of each stage, or a keyword.
        objective: the time to minimize.
        caps_bytes: memory limit of each rank; None: no limit.
        recomputed_layers: layers that are recomputed, as `profile` counts already.
        chooses_layers: let the search choose layers to recompute.
        num_pipelines: data-parallel pipelines, of which the problem is one.
        allowed: what the schedule may do, and the runtime that will execute it.
        orders_ranks: choose the order of ranks of unequal speed, too.
    """

    profile: Profile
    num_micro_batches: int
    partition: Partition
    objective: Objective
    caps_bytes: tuple[int, ...] | None = None
    recomputed_layers: Recomputation = NOT_RECOMPUTED
    chooses_layers: bool = False
    num_pipelines: int = 1
    allowed: Allowed = DEFAULT
    orders_ranks: bool = False

    @cached_property
    def profile_of_one(self) -> Profile:
        """The profile of layers with their share of the optimizer state."""
        return sharing_optimizer(self.profile, self.num_pipelines)

    def each_on(
        self, where: Placement, should_stop: Callable[[], bool] = lambda: False
    ) -> list[Problem]:
        """Make the problem on a placement; on ranks of unequal speed also in other orders of them.

        Args:
            should_stop: ends the search for a balanced partition.

        Raises:
            SynthError: see `on`.
        """
        speeds = self.profile.rank_speeds
        if speeds is None:
            return [self.on(where, should_stop)]
        stage_speeds(speeds, where.ranks)  # refuses copies, and other numbers of ranks
        orders = rank_orders(where, speeds, self.caps_bytes) if self.orders_ranks else [where]
        return [self.on(each, should_stop) for each in orders]

    def on(self, where: Placement, should_stop: Callable[[], bool] = lambda: False) -> Problem:
        """Make the problem on a placement, with the partition given or else a balanced one.

        Args:
            should_stop: ends the search for a balanced partition.

        Raises:
            SynthError: a partition for other stages or layers, too few layers or micro-batches, or
                copies of stages in data-parallel pipelines, or a placement that the runtime lacks.
        """
        _check_one_copy(where, self.num_pipelines)
        if (why := self.allowed.why_not_on(where)) is not None:
            raise SynthError(f"§runtime {self.allowed.runtime}: {why}; name another §placement")
        given = sizes_on(where, self.partition)
        one = self.profile_of_one
        sizes = given or balance(
            one, where, self.caps_bytes, self.num_micro_batches, should_stop=should_stop
        )
        problem = Problem(
            costs_of_one(self.profile, sizes, self.num_pipelines, where),
            where,
            num_micro_batches=self.num_micro_batches,
            caps_bytes=self.caps_bytes,
            objective=self.objective,
            partition=sizes,
            # A balance that was cut short is not proven best.
            partition_is_best=given is None
            and where == Placement.linear(where.num_ranks)
            and one.rank_speeds is None
            and not should_stop(),
            recomputed_layers=self.recomputed_layers,
            profile=one if self.chooses_layers else None,
            layer_menu=self.allowed.layer_menu,
            further_ops=ops_allowed_by(self.profile, self.allowed.further_ops),
            unrepeatable=frozenset(layers_in_place(self.profile)),
        )
        problem.check_ordered()
        return problem


def _check_one_copy(where: Placement, num_pipelines: int) -> None:
    """Refuse copies of stages in data-parallel pipelines."""
    if num_pipelines > 1 and len(where.ranks) > 1:
        raise SynthError(
            f"a placement with {len(where.ranks)} copies of each stage and §data_parallel "
            f"{num_pipelines} do not go together; take one with a single copy, such as linear or v"
        )


def sizes_on(where: Placement, partition: Partition) -> tuple[int, ...] | None:
    """Return the layers of each stage of a placement; None for `even` and for `auto`.

    Raises:
        SynthError: they are for another number of stages.
    """
    if isinstance(partition, str):
        return None
    if len(partition) != where.num_stages:
        given = counted(len(partition), "stage")
        raise SynthError(f"§partition gives {given} for {_needed_sizes(where)}")
    return partition


def _needed_sizes(where: Placement) -> str:
    if where == Placement.linear(where.num_ranks):
        return f"{counted(where.num_ranks, 'rank')}; give one size per rank"
    return (
        f"{counted(where.num_ranks, 'rank')} that hold {counted(where.num_stages, 'stage')} in "
        f"this placement; give one size per stage"
    )
