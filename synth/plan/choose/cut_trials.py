"""Trials on better cuts for the best order: see `published.cut_moves`."""

from collections.abc import Callable, Sequence

from synth.plan.choose.candidates import Trial
from synth.plan.choose.race_state import RaceState
from synth.plan.published.cut_moves import CutMoves
from synth.plan.published.order_scores import Judge, OrderScores
from synth.plan.published.variants import Sizes, VariantCosts
from synth.plan.recompute.layer_choice import applies, with_layers
from synth.profile import Profile
from synth.schedule.model import Placement, Schedule
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.problem import Problem

# The cuts with which searches on a placement begin.
CutsOf = Callable[[Placement], Sequence[Sizes]]


class CutTrials:
    """Makes a trial on a better cut for the best order found, once for each order."""

    def __init__(self, profile: Profile, race: RaceState, cuts: CutsOf) -> None:
        self.race, self.costs, self.cuts = race, VariantCosts(profile), cuts
        self.moved: list[Schedule] = []

    def next(self, should_stop: Callable[[int], bool]) -> Trial | None:
        """Return a trial that has the best order on a better cut as result; None without one.

        Args:
            should_stop: told of the ops that were simulated.
        """
        best = self.race.best
        if best is None or best.found is None or best.found.schedule in self.moved:
            return None
        problem, schedule = best.found.problem, best.found.schedule
        if schedule is None or problem.partition is None:
            return None
        self.moved.append(schedule)
        search = CutMoves(
            OrderScores(schedule, Judge(problem.objective, problem.caps_bytes)),
            self.costs.on(problem.placement),
            problem.recomputed_layers if applies(problem) else (),
            lambda judged: should_stop(judged * problem.num_ops),
        )
        where = problem.placement
        others = [*self.race.partitions_of(best.name), *self.cuts(where)]
        sizes = search.best(where, problem.partition, others)
        if sizes == problem.partition:
            return None
        return self._trial(best, self._on(problem, sizes), schedule)

    def _on(self, problem: Problem, sizes: Sizes) -> Problem:
        """Return a problem on another cut, with the same layers recomputed."""
        costs = self.costs.on(problem.placement).of(sizes)
        moved = problem.on_partition(costs, sizes)
        return with_layers(moved, problem.recomputed_layers) if applies(problem) else moved

    def _trial(self, best: Trial, problem: Problem, schedule: Schedule) -> Trial | None:
        assert best.found is not None and best.found.found_by is not None
        if not problem.admits(schedule):  # another layer begins a stage with an R
            return None
        found = evaluate(problem, schedule, best.found.found_by)
        return None if found is None else self.race.new_beside(best, problem, found)
