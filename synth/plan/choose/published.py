"""Published schedules of a candidate, made and judged before any search.

Five passes, each over all candidates before the next one begins, so that the cheap ones come first:

    1. families that read no times
    2. families that read times
    3. those again, made from the averages of all stages, as their authors make them
    4. with stages that recompute, each number of the first ones that `--recompute auto` tries
    5. of these, those that read times, made from averages

A pass ends where its time does. What was not judged then is for the trials.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

from synth.costs import Costs
from synth.families import generate_for
from synth.plan.recompute.choice import Choice, why_infeasible
from synth.plan.recompute.solve import counts_tried
from synth.plan.recompute.stages import bounds, merged, without_recompute, written_out
from synth.schedule.model import Buffering, Schedule
from synth.solve.evaluate.evaluate import BUFFERINGS, Candidate, divide, evaluate
from synth.solve.improve.published import with_mean_times
from synth.solve.infeasibility import find_shortage
from synth.solve.problem import Problem, Rival

NUM_PASSES, NUM_PLAIN_PASSES = 5, 3

# Tried where a schedule with R's does not fit with its own buffers: the usual ones, then those that
# take the least memory.
_BUFFERINGS = (BUFFERINGS[0], Buffering(0, 0))

_Made = Iterator[tuple[str, Schedule]]


class Published:
    """The published schedules on one problem, as far as they were judged.

    Attributes:
        best: the best one that fits and that a search can start from; R's right before B count.
        moved: the best one that fits and that no search starts from, as it moves what F saves.
        rivals: the figures of all, fitting or not.
        is_complete: all passes so far went to their end.
        is_hopeless: nothing can fit, by closed forms.
    """

    def __init__(self, problem: Problem, choice: Choice) -> None:
        """Nothing is judged yet.

        Args:
            problem: with its partition.
            choice: the stages that recompute; None: those that serve best, and what F saves may be
                moved too.
        """
        self.problem, self.choice = problem, choice
        self.best: Candidate | None = None
        self.moved: Candidate | None = None
        self.rivals: list[Rival] = []
        self.is_complete = True
        self.is_hopeless = why_infeasible(problem, choice) is not None
        self._orders: list[tuple[str, Schedule]] = []  # of families that read no times

    def run(self, number: int, is_late: Callable[[], bool], best_us: int | None = None) -> None:
        """Judge what belongs to one of the passes, counted from 0.

        Args:
            is_late: asked before each schedule is made.
            best_us: of all candidates; what cannot be less is left out in the last pass.
        """
        for made, judge in self._work(number, is_late, best_us):
            while not (is_over := is_late()) and (one := next(made, None)) is not None:
                judge(*one)
            if is_over:
                self.is_complete = False
                return

    def _work(
        self, number: int, is_late: Callable[[], bool], best_us: int | None
    ) -> Iterator[tuple[_Made, Callable[[str, Schedule], None]]]:
        """The schedules of a pass, and how each group of them is judged."""
        problem = self.problem
        if number >= NUM_PLAIN_PASSES:
            if self.is_hopeless:
                return
            for stages in self._stages_tried():
                if is_late():
                    self.is_complete = False
                    return
                if self._can_win(stages, best_us):
                    seen = replace(problem, costs=merged(problem.costs, stages))
                    yield self._made_with_r(seen, number), partial(self._judge_with_r, stages)
        elif self.choice in ((), None):
            made = (_untimed, _timed, _averaged)[number](problem)
            yield made, partial(self._judge, is_order=number == 0)
        elif number == 0:
            yield _untimed(problem), self._keep_order

    def _made_with_r(self, seen: Problem, number: int) -> _Made:
        if number > NUM_PLAIN_PASSES:
            return _averaged(seen)
        return chain(iter(self._orders), _timed(seen))

    def _keep_order(self, name: str, schedule: Schedule) -> None:
        if schedule.keeps_saved:
            self._orders.append((name, schedule))

    # What keeps all that F saves, and what families rebuild or move by themselves

    def _judge(self, name: str, schedule: Schedule, *, is_order: bool) -> None:
        if is_order:
            self._keep_order(name, schedule)
        if self.choice is None or schedule.keeps_saved:
            alone = self._judged(name, schedule)
            self._take(alone)
            if alone is not None and schedule.keeps_saved:
                self._take(divide(self.problem, alone))
        else:
            self._judged(name, schedule)

    def _judged(self, name: str, schedule: Schedule) -> Candidate | None:
        """Add a schedule to the rivals; None: it does not fit."""
        alone = evaluate(replace(self.problem, caps_bytes=None), schedule, name)
        if alone is None:
            return None
        caps, line = self.problem.caps_bytes or alone.peak_bytes, alone.timeline
        fits = all(peak <= cap for peak, cap in zip(alone.peak_bytes, caps, strict=True))
        keeps = bool(self.choice) or schedule.keeps_saved
        times_us = line.makespan_us, line.period_us, max(line.work_us)
        rival = Rival(name, *times_us, alone.peak_bytes, fits, keeps, line.mean_work_us)
        if not any(replace(rival, name=other.name) == other for other in self.rivals):
            self.rivals.append(rival)
        return alone if fits else None

    def _take(self, found: Candidate | None) -> None:
        if found is None:
            return
        if without_recompute(found.schedule).keeps_saved:
            self.best = _better(self.best, found)
        else:
            self.moved = _better(self.moved, found)

    # With R

    def _stages_tried(self) -> Iterator[tuple[int, ...]]:
        if self.choice:
            yield self.choice
        elif self.choice is None and self.problem.caps_bytes is not None:
            for count in counts_tried(self.problem.costs.num_stages)[1:]:
                yield tuple(range(count))

    def _can_win(self, stages: tuple[int, ...], best_us: int | None) -> bool:
        """True if a schedule may fit with these stages recomputing, and be faster."""
        problem = self.problem
        if find_shortage(replace(problem, costs=merged(problem.costs, stages))) is not None:
            return False
        own_us = None if self.best is None else self.best.value_us
        values = [us for us in (best_us, own_us) if us is not None]
        return not values or problem.objective.value_us(bounds(problem, stages)) < min(values)

    def _judge_with_r(self, stages: tuple[int, ...], name: str, schedule: Schedule) -> None:
        if not schedule.keeps_saved:
            return
        longer, name = written_out(schedule, stages), f"{name}+R"
        for buffering in (longer.buffering, *_BUFFERINGS):
            found = evaluate(self.problem, replace(longer, buffering=buffering), name)
            if found is not None:
                self._take(found)
                self._take(divide(self.problem, found))
                break
        if self.choice is not None:
            self._judged(name, longer)


def _untimed(problem: Problem) -> _Made:
    """Of families that read no times."""
    return _made(problem, problem.costs, timed=False)


def _timed(problem: Problem) -> _Made:
    """Of families that read times."""
    return _made(problem, problem.costs, timed=True)


def _averaged(problem: Problem) -> _Made:
    """Of families that read times, where stages differ in these, from their averages."""
    averaged = with_mean_times(problem.costs)
    if averaged != problem.costs:
        for name, schedule in _made(problem, averaged, timed=True):
            yield f"{name}, averaged", schedule


def _made(problem: Problem, costs: Costs, *, timed: bool) -> _Made:
    asked = (problem.placement, problem.num_micro_batches, costs, problem.caps_bytes)
    return generate_for(*asked, timed=timed)


def _better(one: Candidate | None, other: Candidate) -> Candidate:
    """The faster one of two; of equals the first."""
    return other if one is None or other.value_us < one.value_us else one
