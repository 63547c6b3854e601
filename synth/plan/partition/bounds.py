"""Lower bounds over all partitions of a model with one stage per rank.

What a rank implies for the whole depends on its own layers and on how long all those before and
behind them take, not on how these are cut: layers 3 to 7 on rank 1 wait as long for their
gradients whether layers 8 to 23 are two stages of eight or one of six and one of ten. So every rank
with every run of layers that it may hold has a bound of its own; a partition is a path through the
layers, run by run, and takes no less than the largest on its way. The least of that over all paths
holds for all partitions.

The bounds are made as they are needed, those on the best path first: the closed forms, and where
they leave the path the best, the exact model of that rank alone.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from synth.costs.partition_costs import at_speeds
from synth.objective import Spans
from synth.plan.partition.layers_elsewhere import LayersElsewhere
from synth.plan.partition.path_dp import NEVER, Least, PartitionPaths, RankLayers, Sizes, runs_of
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.tuning import PARTITION_BOUNDS
from synth.schedule.files.certificate import (
    MOST_PARTS,
    Certificate,
    LayerRun,
    PartitionProof,
    ProverName,
)
from synth.schedule.model import Placement
from synth.search.outcome import relative_gap
from synth.solver.bounds.bound import Reference
from synth.solver.bounds.closed_form import rank_bound
from synth.solver.bounds.forward_spacing_model import Spacings
from synth.solver.bounds.in_flight import in_flight_bounds_by
from synth.solver.bounds.link_load import spaced_bounds
from synth.solver.bounds.rank_subsets import RankSubsets, model_of
from synth.solver.cpsat.model import ExactModel
from synth.solver.instance.instance import BW, STEP, B, F, Instance, W
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.tuning import CPSAT, DESTRUCTIVE


@dataclass
class _RunBound:
    """State of the bound over all partitions in which a rank holds a run of layers.

    By closed forms first, which say `closed_us`. Then the exact model of the rank is asked whether
    it keeps within some values. `attained_us` is the least that it kept, and `unanswered_us` the
    least one without an answer, for which it had `looked_s` at most.
    """

    closed_us: int
    attained_us: int = NEVER
    unanswered_us: int = NEVER
    looked_s: float = 0.0

    @property
    def open_us(self) -> int:
        """The least value for which it need not be asked, and NEVER at first."""
        return min(self.attained_us, self.unanswered_us)


class RaisedBound(NamedTuple):
    """The least bound, and what raising it took, in the terms of the options' time limit."""

    least: Least
    spent_s: float


def with_partition(table: StageCostTable, problem: Problem, sizes: Sizes) -> Problem:
    """A problem on another partition."""
    return problem.on_partition(table.costs_on(sizes, problem.placement), sizes)


def applies(problem: Problem) -> bool:
    """True with one stage per rank, stage k on rank k, and not too many runs of layers."""
    return is_linear(problem) and num_runs(problem) <= PARTITION_BOUNDS.most_runs


def is_linear(problem: Problem) -> bool:
    """True with one stage per rank, stage k on rank k."""
    return problem.placement == Placement.linear(problem.num_ranks)


def num_runs(problem: Problem) -> int:
    """Count the runs of layers that ranks may hold, about; 0 where the partition is not known."""
    slack = sum(problem.partition or ()) - problem.num_ranks
    return problem.num_ranks * max(0, slack) ** 2 // 2


class PartitionBounds:
    """Bounds that hold for all partitions of a model with one stage per rank."""

    def __init__(self, table: StageCostTable, problem: Problem) -> None:
        """Nothing is known yet.

        Args:
            table: the table of the model's profile.
            problem: on any partition; its caps, objective and micro-batches are those of all.
        """
        self.problem, self.table = problem, table
        self.num_layers, self.num_ranks = table.num_layers, problem.num_ranks
        self.layers = LayersElsewhere(table, problem.num_ranks)
        self.run_bounds: dict[RankLayers, _RunBound] = {}
        self.paths = PartitionPaths(self.num_ranks, self.num_layers, self._work_us)
        self._within_us: int | None = None

    def keep_within(self, value_us: int) -> None:
        """Bound what is below a value from now on: what bounds say of the rest is that value."""
        self._within_us = value_us
        self.layers.keep_within(value_us / self.problem.num_micro_batches)

    def problem_on(self, sizes: Sizes) -> Problem:
        """The problem on a partition."""
        return with_partition(self.table, self.problem, sizes)

    def bound_us(self, sizes: Sizes) -> int | None:
        """The best bound known of a partition, a closed form at least; None: nothing fits."""
        for run in runs_of(sizes):
            self.close(run)
        bound_us = self.paths.bound_us(sizes)
        return None if bound_us >= NEVER else bound_us

    def least(self, without: Collection[Sizes] = ()) -> Least:
        """The least bound of a partition, some left out, and the partition."""
        return self.paths.least(without)

    def least_by_closed_forms(self, should_stop: Callable[[], bool]) -> Sizes | None:
        """Return a partition of the least bound by closed forms; None: there is none, or no time.

        It is mostly a good one, and a good value makes the questions of `raise_least` few.
        """
        while not should_stop():
            least = self.least()
            if least.sizes is None or not any([self.close(run) for run in runs_of(least.sizes)]):
                return least.sizes
        return None

    def raise_least(
        self,
        value_us: int,
        without: Collection[Sizes],
        options: SolveOptions,
        should_stop: Callable[[], bool],
    ) -> RaisedBound:
        """Make bounds until the least is no less than a value, or all on its path are made.

        Args:
            value_us: the best value found; bounds above it are of no use.
            without: partitions to leave out.
            options: the gap that is good enough, and the time limit; all else as for a search.
        """
        spent_s = 0.0
        self.keep_within(value_us)
        while True:
            least = self.least(without)
            is_enough = relative_gap(value_us, min(value_us, least.bound_us)) <= options.gap
            if least.sizes is None or is_enough or should_stop():
                break
            left = replace(options, time_limit_s=options.time_limit_s - spent_s)
            step_s = self._raise_path(least, value_us, options, left, should_stop)
            if step_s is None:
                break
            spent_s += step_s
        return RaisedBound(least, spent_s)

    def bounds_of_ranks(self, sizes: Sizes) -> list[int]:
        """Return the bound of each rank of a partition."""
        return [self.paths[run] for run in runs_of(sizes)]

    def _raise_path(
        self,
        path: Least,
        value_us: int,
        options: SolveOptions,
        left: SolveOptions,
        should_stop: Callable[[], bool],
    ) -> float | None:
        """Make bounds of a path, one or all closed forms; what that took. None: all are made.

        Args:
            options: those of all steps together.
            left: the same with the time that is left.
        """
        assert path.sizes is not None
        if left.time_limit_s <= 0:
            return None
        runs = list(runs_of(path.sizes))
        unknown = [run for run in runs if run not in self.run_bounds]
        for run in unknown:
            self.close(run)
        if unknown:
            return PARTITION_BOUNDS.closed_form_s * len(unknown)
        question = self._next_question(runs, path.bound_us, value_us)
        if question is None:
            return None
        run, within_us = question
        first_s = PARTITION_BOUNDS.first_share * options.time_limit_s
        share_s = min(left.time_limit_s, max(first_s, 2 * self.run_bounds[run].looked_s))
        question_s = max(PARTITION_BOUNDS.least_question_s, share_s)
        part = replace(left, time_limit_s=question_s, gap=0.0, workers=1)
        return self._look_at(run, within_us, value_us, part, should_stop)

    def close(self, run: RankLayers) -> bool:
        """Make the closed forms' bound; False: it was known."""
        if run in self.run_bounds:
            return False
        self.run_bounds[run] = _RunBound(self._closed_us(run))
        self.paths[run] = max(self.paths[run], self.run_bounds[run].closed_us)
        return True

    def model_of(self, run: RankLayers, value_us: int) -> ExactModel:
        """Make the exact model of a run's rank, within a value."""
        instance, ranks = self._instance(run), (self._place(run),)
        return model_of(instance, self.problem.objective, value_us, ranks, Spacings())

    def certificate(self, bound_us: int, proofs: Iterable[PartitionProof]) -> Certificate | None:
        """Make the certificate of a bound that all paths have; None: it would be too large.

        Args:
            bound_us: no path has less but those of `proofs`.
            proofs: the proofs of single partitions.
        """
        runs = tuple(
            LayerRun(rank=run.rank, first=run.first, end=run.end)
            for run, known in self.run_bounds.items()
            if known.closed_us < bound_us <= self.paths[run]
        )
        partitions = tuple(one for one in proofs if self.paths.bound_us(one.sizes) < bound_us)
        if max(len(runs), len(partitions)) > MOST_PARTS:
            return None
        return Certificate(
            prover=ProverName.PARTITIONS,
            num_micro_batches=self.problem.num_micro_batches,
            layer_runs=runs,
            partitions=partitions,
        )

    def _next_question(
        self, runs: Collection[RankLayers], least_us: int, value_us: int
    ) -> tuple[RankLayers, int] | None:
        """Return a run of a path, and a value for which to ask its rank; None: nothing is open.

        The run that may prove most comes first. If none is left, those that gave no answer are
        asked again, with more effort.

        Args:
            runs: those of the path of the least bound.
            least_us: that bound.
            value_us: the best value found.
        """
        for _ in range(2):
            values = ((run, self._value_to_ask(run, least_us, value_us)) for run in runs)
            questions = {run: within_us for run, within_us in values if within_us is not None}
            if questions:
                run = max(questions, key=lambda run: (questions[run], self.paths[run], -run.rank))
                return run, questions[run]
            for run in runs:
                self.run_bounds[run].unanswered_us = NEVER
        return None

    def _value_to_ask(self, run: RankLayers, least_us: int, value_us: int) -> int | None:
        """Return the middle of what a run may prove above the least bound; None: too little."""
        bound_us = max(self.paths[run], least_us)
        open_us = min(value_us, self.run_bounds[run].open_us)
        if open_us - bound_us > DESTRUCTIVE.tolerance * value_us:
            return bound_us + (open_us - bound_us) // 2
        return value_us - 1 if open_us == value_us > bound_us else None

    def _look_at(
        self,
        run: RankLayers,
        within_us: int,
        value_us: int,
        options: SolveOptions,
        should_stop: Callable[[], bool],
    ) -> float:
        """Ask the exact model of a run's rank whether it keeps within a value; what that took.

        A decision takes less time than the least value (see `solver.bounds.destructive`).
        """
        known, place = self.run_bounds[run], self._place(run)
        of_rank = RankSubsets(
            self._instance(run),
            self.problem.objective,
            options,
            lambda: Reference(value_us, None),
            should_stop,
        )
        effort_s = CPSAT.clock_s_per_deterministic_s if options.deterministic else 1.0
        found = of_rank.decide((place,), within_us, effort_s * options.time_limit_s)
        if found.is_refuted:
            self.paths[run] = max(self.paths[run], within_us + 1)
        elif found.attained_us is not None:
            known.attained_us = min(known.attained_us, found.attained_us)
        else:
            known.unanswered_us = within_us
            known.looked_s = max(known.looked_s, options.time_limit_s)
        return found.spent_s / effort_s

    # Bounds

    def _place(self, run: RankLayers) -> int:
        """Return the rank of the run in its instance."""
        return 1 if run.rank else 0

    def _work_us(self, run: RankLayers) -> int:
        """Return the least work of the rank that holds a run."""
        return self.problem.num_micro_batches * self.layers.work_us(run)

    def _closed_us(self, run: RankLayers) -> int:
        """Return the closed-form bound; `NEVER` if the rank cannot hold one micro-batch."""
        caps = self.problem.caps_bytes
        if caps is not None and self.table.need_bytes(run.first, run.end) > caps[run.rank]:
            return NEVER
        most_us = NEVER - 1 if self._within_us is None else self._within_us
        if not self.layers.is_possible(run):
            return most_us
        instance, place = self._instance(run), self._place(run)
        spans = Spans.most((rank_bound(instance, place), in_flight_bounds_by(instance, (place,))))
        if run.end < self.num_layers:
            of_link = spaced_bounds(instance, place, max(self.layers.transfers_us(run)))
            spans = Spans.most((spans, of_link))
        return min(most_us, self.problem.objective.value_us(spans))

    def _instance(self, run: RankLayers) -> Instance:
        """The run on one rank, all layers before it on another, and all after it on a third."""
        edges = sorted({0, run.first, run.end, self.num_layers})
        place, costs = self._place(run), self.table.costs(tuple(edges))
        # The times of the other stages are replaced below.
        speeds = (1.0, self.layers.speeds[run.rank], 1.0)
        costs = at_speeds(costs, speeds[1 - place :][: len(costs.stages)])
        where, asked = Placement.linear(costs.num_stages), self.problem
        part = replace(asked, costs=costs, placement=where, caps_bytes=None, partition=None)
        instance = relaxed_for_fusion(part)
        copies, rooms = list(instance.copies), list(instance.headroom_bytes)
        if asked.caps_bytes is not None:
            rooms[place] = asked.caps_bytes[run.rank] - part.static_bytes(place)
        if place:
            copies[0] = self.layers.before(run, copies[0])
        if run.end < self.num_layers:
            way = self.layers.way_behind_us(run)
            copies[place] = copies[place]._replace(
                down_us=way.down_us, up_us=way.up_us, passing_us=min(self.layers.transfers_us(run))
            )
            idle = dict.fromkeys((F, B, W, BW, STEP), 0)
            copies[-1] = copies[-1]._replace(duration_us=idle)
        return replace(instance, copies=tuple(copies), headroom_bytes=tuple(rooms))
