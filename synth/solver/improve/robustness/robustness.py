"""Robustness: orders of the same value that lose less when ops take longer than profiled.

An order that is good only for the profiled durations depends on the error of the profile. So
between turns of the windows, and when the search is over, ops are moved a few places wherever that
lowers the mean objective over duration scenarios (see `scenarios`), without a worse value or a
higher peak. The most promising of all moves (see `moves`) is tried first, and the verifier decides.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np

from synth.schedule.ops import Op
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate, never
from synth.solver.evaluate.scenarios import ScenarioFactors, ScenarioTimes
from synth.solver.improve.improver import SearchContext
from synth.solver.improve.robustness.moves import weighed_moves
from synth.solver.options import Part
from synth.solver.problem import Problem
from synth.solver.tuning import ROBUSTNESS


class Robustness:
    """Makes the incumbent more robust when the search is over."""

    part: ClassVar[Part] = Part.ROBUSTNESS

    def __init__(self, context: SearchContext) -> None:
        self.state = context.state

    def run(self, share: float, *, is_brief: bool) -> None:
        """Replace the incumbent, within the effort of `improve_robustness`."""
        state, should_stop = self.state, self.state.budget.time_is_up
        if state.best is not None and _num_trials(state.best) > 0 and not should_stop():
            state.options.report_part(self.part)
            factors = state.scenario_factors
            state.refine(improve_robustness(state.problem, state.best, should_stop, factors))


def improve_robustness(
    problem: Problem,
    candidate: EvaluatedSchedule,
    should_stop: Callable[[], bool] = never,
    scenario_factors: ScenarioFactors | None = None,
) -> EvaluatedSchedule:
    """Move ops until no move lowers the mean over scenarios, or the effort is spent.

    The value and the highest peak of a rank never get worse. Where R is a part of B, ops are moved
    as they are searched, and the last order is judged with R apart.

    Args:
        should_stop: polled before each move.
        scenario_factors: the scenarios; None: those of the problem.
    """
    if problem.merged is not None:
        seen = replace(problem, merged=None)
        begun = evaluate(seen, candidate.schedule, candidate.found_by)
        if begun is None:
            return candidate
        found = improve_robustness(seen, begun, should_stop, scenario_factors)
        judged = evaluate(problem, found.schedule, found.found_by)
        if judged is None or found is begun or not _is_no_worse(judged, candidate):
            return candidate
        return judged
    tries = _num_trials(candidate)
    if tries == 0 or should_stop():
        return candidate
    search, idle = _Search(problem, candidate, scenario_factors or ScenarioFactors(problem)), 0
    for _ in range(tries):
        if should_stop() or idle == ROBUSTNESS.patience:
            break
        gained = search.step()
        if gained is None:
            break
        idle = 0 if gained else idle + 1
    return search.best


def _is_no_worse(found: EvaluatedSchedule, known: EvaluatedSchedule) -> bool:
    is_as_small = max(found.peak_bytes) <= max(known.peak_bytes)
    return found.value_us <= known.value_us and is_as_small


def _num_trials(candidate: EvaluatedSchedule) -> int:
    """Return the number of orders to try; 0 where one of them is too much effort."""
    num_ops = sum(map(len, candidate.schedule.programs))
    return min(ROBUSTNESS.most_trials, ROBUSTNESS.effort_ops // num_ops)


class _Search:
    """The best order, its times in all scenarios, and the moves tried so far."""

    def __init__(
        self, problem: Problem, candidate: EvaluatedSchedule, scenario_factors: ScenarioFactors
    ) -> None:
        self.problem, self.scenario_factors = problem, scenario_factors
        self.tried: set[tuple[Op, ...]] = set()
        self._use(candidate, self._scenarios(candidate))

    def _scenarios(self, candidate: EvaluatedSchedule) -> ScenarioTimes:
        return ScenarioTimes(
            candidate.timeline.lowered, self.scenario_factors, self.problem.objective
        )

    def _use(self, candidate: EvaluatedSchedule, scenarios: ScenarioTimes) -> None:
        self.best, self.scenarios = candidate, scenarios
        self.most_us, self.most_bytes = candidate.value_us, max(candidate.peak_bytes)
        self.moves = list(weighed_moves(scenarios))

    def step(self) -> bool | None:
        """Try the best move not tried yet; return True if it gained, None if no move is left."""
        programs = next(self._untried(), None)
        if programs is None:
            return None
        schedule = replace(self.best.schedule, programs=programs)
        found = evaluate(self.problem, schedule, self.best.found_by)
        if found is None or found.value_us > self.most_us:
            return False
        if max(found.peak_bytes) > self.most_bytes:
            return False
        scenarios = self._scenarios(found)
        gain_us = self.scenarios.value_us - scenarios.value_us
        if gain_us >= -ROBUSTNESS.tolerance_us:
            self._use(found, scenarios)
        return gain_us > ROBUSTNESS.tolerance_us

    def _untried(self) -> Iterator[tuple[tuple[Op, ...], ...]]:
        """Yield programs with one op moved, the most promising first."""
        merits = np.concatenate([weighed.merit for weighed in self.moves])
        ends = np.cumsum([len(weighed.merit) for weighed in self.moves])
        first = self.best.timeline.lowered.first_node
        for index in np.argsort(-merits):
            if merits[index] <= 0:
                return
            group = int(np.searchsorted(ends, index, side="right"))
            weighed = self.moves[group]
            node = int(weighed.node[index - (ends[group] - len(weighed.merit))])
            rank = int(np.searchsorted(first, node, side="right")) - 1
            program, at = self.best.schedule.programs[rank], node - first[rank]
            moved = tuple(program[at + i] for i in weighed.move.places)
            if moved not in self.tried:
                self.tried.add(moved)
                programs = list(self.best.schedule.programs)
                programs[rank] = (*program[:at], *moved, *program[at + len(moved) :])
                yield tuple(programs)


IMPROVER = Robustness
