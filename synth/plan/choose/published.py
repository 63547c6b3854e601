"""Published schedules of a candidate, generated and judged before any search.

Eight passes. Those of all candidates are taken in the order of their cost (see `judging`):

    1. families that read no times
    2. families that read times
    3. those again, made from the averages of all stages, as their authors make them
    4. the first with stages that recompute, each number of them that `--recompute auto` tries
    5. the best of these with fewer stages recomputing, each left out that it fits without
    6. all with single layers recomputed, as `layer_search` chooses them
    7. the second with stages that recompute
    8. the third with stages that recompute

A pass ends when its time is over. Schedules that were not judged are left to the trials.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple, Protocol

from synth.costs.costs import Costs
from synth.costs.merged_recomputation import merged
from synth.families import generate_for
from synth.plan.recompute.choice import Choice, why_infeasible
from synth.plan.recompute.layer_choice import applies
from synth.plan.recompute.menu_search import layer_search
from synth.plan.recompute.stages import bounds
from synth.plan.recompute.trial_choices import counts_tried
from synth.plan.tuning import JUDGED_SCHEDULES, LIST_JUDGING
from synth.schedule.model import SMALLEST_BUFFERING, Schedule
from synth.schedule.rank_memory import exceeds_caps
from synth.schedule.recomputed_stages import without_recompute, written_out
from synth.solver.evaluate.evaluate import BUFFERINGS, EvaluatedSchedule, evaluate, split_backward
from synth.solver.improve.published import with_mean_times
from synth.solver.infeasibility import may_fit
from synth.solver.problem import Problem
from synth.solver.result import Baseline

_Made = Iterator[tuple[str, Schedule]]


class Pass(IntEnum):
    """The passes in the order of this module's docstring."""

    UNTIMED = 0
    TIMED = 1
    AVERAGED = 2
    UNTIMED_WITH_R = 3
    WITH_FEWER_R = 4
    WITH_LAYERS = 5
    TIMED_WITH_R = 6
    AVERAGED_WITH_R = 7

    @property
    def is_plain(self) -> bool:
        """True if schedules are judged as they were published."""
        return self <= Pass.AVERAGED


class Charge(Protocol):
    """Charge the effort of some more schedules; True if there is no time for them.

    Called before each schedule is made.
    """

    def __call__(self, schedules: int = 1) -> bool: ...


class _Fitted(NamedTuple):
    """The value of an order, in µs, with the first stages recomputing with which it fits."""

    value_us: int
    name: str
    schedule: Schedule
    stages: tuple[int, ...]


class JudgedSchedules:
    """The published schedules on one problem that were judged so far.

    Attributes:
        best: the best one that fits and that a search can start from, also with R right before B.
        best_problem: the problem that it solves, which says what layers are recomputed.
        moved: the best one that fits and that offloads activations, from which no search can start.
        baselines: the figures of all, fitting or not.
        is_complete: no pass so far ran out of time.
        is_hopeless: nothing can fit, by closed forms.
    """

    def __init__(self, problem: Problem, choice: Choice) -> None:
        """Judge nothing yet.

        Args:
            problem: with its partition.
            choice: the stages that recompute; None: any, and offloading too.
        """
        self.problem, self.choice = problem, choice
        self.best: EvaluatedSchedule | None = None
        self.best_problem = problem
        self.moved: EvaluatedSchedule | None = None
        self.baselines: list[Baseline] = []
        self.is_complete = True
        self.is_hopeless = why_infeasible(problem, choice) is not None
        self._orders: list[tuple[str, Schedule]] = []  # of families that read no times
        self._fitted: list[_Fitted] = []  # those of them that fit if stages recompute
        self._bounds_us: dict[tuple[int, ...], int | None] = {}  # by stages that recompute

    def run(self, step: Pass, charge: Charge, best_us: int | None = None) -> None:
        """Run one of the passes.

        Args:
            charge: called before each schedule is made.
            best_us: the best value of all candidates; schedules that cannot be better are skipped.
        """
        if step.is_plain:
            self._run_plain(step, charge)
        elif self.is_hopeless:
            return
        elif step == Pass.UNTIMED_WITH_R:
            self._run_untimed_with_r(charge, best_us)
        elif step == Pass.WITH_FEWER_R:
            self._run_with_fewer_r(charge, best_us)
        elif step == Pass.WITH_LAYERS:
            self._run_with_layers(charge)
        else:
            self._run_timed_with_r(step, charge, best_us)

    def _end_if_late(self, is_late: bool) -> bool:
        """Return `is_late`; if it is True, record that not all schedules were judged."""
        self.is_complete = self.is_complete and not is_late
        return is_late

    def _run_plain(self, step: Pass, charge: Charge) -> None:
        """Judge families as they were published; if stages are given, keep their orders only."""
        is_untimed = step == Pass.UNTIMED
        if self.choice and not is_untimed:
            return
        made = {Pass.UNTIMED: _untimed, Pass.TIMED: _timed, Pass.AVERAGED: _averaged}[step]
        schedules = made(self.problem)
        while not self._end_if_late(charge()) and (one := next(schedules, None)) is not None:
            if self.choice:
                self._keep_order(*one)
            else:
                self._judge(*one, is_order=is_untimed)

    def _keep_order(self, name: str, schedule: Schedule) -> None:
        if schedule.keeps_saved:
            self._orders.append((name, schedule))

    # Schedules that keep all that F saves, and those whose families recompute or move it

    def _judge(self, name: str, schedule: Schedule, *, is_order: bool) -> None:
        if is_order:
            self._keep_order(name, schedule)
        may_win = self.choice is None and self.problem.admits(schedule)
        if may_win or schedule.keeps_saved:
            alone = self._judged(name, schedule)
            self._take(alone)
            if alone is not None and schedule.keeps_saved:
                self._take(split_backward(self.problem, alone))
        else:
            self._judged(name, schedule)

    def _judged(self, name: str, schedule: Schedule) -> EvaluatedSchedule | None:
        """Add a schedule to the baselines; return None if it does not fit."""
        alone = evaluate(replace(self.problem, caps_bytes=None), schedule, name)
        if alone is None:
            return None
        fits = not exceeds_caps(alone.peak_bytes, self.problem.caps_bytes)
        keeps = bool(self.choice) or schedule.keeps_saved
        baseline = Baseline.of(name, alone.timeline, alone.peak_bytes, fits=fits, keeps_saved=keeps)
        if not baseline.is_in(self.baselines):
            self.baselines.append(baseline)
        return alone if fits else None

    def _take(self, found: EvaluatedSchedule | None) -> None:
        if found is None:
            return
        if without_recompute(found.schedule).keeps_saved:
            if _better(self.best, found) is found:
                self.best, self.best_problem = found, self.problem
        else:
            self.moved = _better(self.moved, found)

    # With layers recomputed

    def _run_with_layers(self, charge: Charge) -> None:
        """Judge all families on the choices of layers that list scheduling finds best."""
        problem = self.problem
        is_asked = self.choice is None and problem.caps_bytes is not None and applies(problem)
        if not is_asked or self._end_if_late(charge(JUDGED_SCHEDULES.layer_search_counts_as)):
            return
        effort_ops = JUDGED_SCHEDULES.layer_search_schedules * problem.num_ops
        effort_s = effort_ops / LIST_JUDGING.ops_per_s
        search = layer_search(problem, effort_s, lambda: charge(0))
        search.run()
        for chosen in search.best(JUDGED_SCHEDULES.layer_choices):
            judged = JudgedSchedules(chosen, ())
            for step in (Pass.UNTIMED, Pass.TIMED, Pass.AVERAGED):
                judged.run(step, charge)
            self.is_complete = self.is_complete and judged.is_complete
            if judged.best is not None and _better(self.best, judged.best) is judged.best:
                self.best, self.best_problem = judged.best, chosen

    # With R

    def _run_untimed_with_r(self, charge: Charge, best_us: int | None) -> None:
        """Judge each order with the fewest stages recomputing with which it fits.

        With more of them it would take longer.
        """
        choices = [stages for stages in self._stages_tried() if self._can_win(stages, best_us)]
        for name, schedule in self._orders:
            for stages in choices:
                if self._end_if_late(charge()):
                    return
                value_us = self._judge_with_r(stages, name, schedule)
                if value_us is not None:
                    self._fitted.append(_Fitted(value_us, name, schedule, stages))
                    break

    def _run_with_fewer_r(self, charge: Charge, best_us: int | None) -> None:
        """Leave stages out of the best order's, the last ones first: they free least memory."""
        if self.choice is not None or not self._fitted:
            return
        best = min(self._fitted, key=lambda fitted: fitted.value_us)
        if best_us is not None and best.value_us > JUDGED_SCHEDULES.near_factor * best_us:
            return
        stages = best.stages
        for stage in reversed(best.stages):
            if self._end_if_late(charge()):
                return
            fewer = tuple(other for other in stages if other != stage)
            if self._judge_with_r(fewer, best.name, best.schedule) is not None:
                stages = fewer

    def _run_timed_with_r(self, step: Pass, charge: Charge, best_us: int | None) -> None:
        """Judge families that are made anew for each number of recomputing stages."""
        make = _timed if step == Pass.TIMED_WITH_R else _averaged
        for stages in self._stages_tried():
            if self._end_if_late(charge()):
                return
            if not self._can_win(stages, best_us):
                continue
            made = make(replace(self.problem, costs=merged(self.problem.costs, stages)))
            while not self._end_if_late(charge()) and (one := next(made, None)) is not None:
                self._judge_with_r(stages, *one)

    def _stages_tried(self) -> Iterator[tuple[int, ...]]:
        if self.choice:
            yield self.choice
        elif self.choice is None and self.problem.caps_bytes is not None:
            firsts = map(range, counts_tried(self.problem)[1:])
            yield from filter(None, dict.fromkeys(map(self.problem.rebuildable, firsts)))

    def _can_win(self, stages: tuple[int, ...], best_us: int | None) -> bool:
        """True if a schedule may fit with these stages recomputing, and be faster."""
        if stages not in self._bounds_us:
            self._bounds_us[stages] = self._bound_us(stages)
        bound_us = self._bounds_us[stages]
        own_us = None if self.best is None else self.best.value_us
        values = [us for us in (best_us, own_us) if us is not None]
        return bound_us is not None and bound_us < min(values, default=bound_us + 1)

    def _bound_us(self, stages: tuple[int, ...]) -> int | None:
        """Return a lower bound with these stages recomputing; None if nothing can fit."""
        problem = self.problem
        if not may_fit(replace(problem, costs=merged(problem.costs, stages))):
            return None
        return problem.objective.value_us(bounds(problem, stages))

    def _judge_with_r(self, stages: tuple[int, ...], name: str, schedule: Schedule) -> int | None:
        """Judge a schedule with R's written out.

        Returns:
            Its value in µs; None if it does not fit.
        """
        if not schedule.keeps_saved:
            return None
        longer, name = written_out(schedule, stages), f"{name}+R"
        found = None
        for buffering in (longer.buffering, BUFFERINGS[0], SMALLEST_BUFFERING):
            found = evaluate(self.problem, replace(longer, buffering=buffering), name)
            if found is not None:
                break
        if found is not None:
            self._take(found)
            self._take(split_backward(self.problem, found))
        if self.choice is not None:
            self._judged(name, longer)
        return None if found is None else found.value_us


def _untimed(problem: Problem) -> _Made:
    """Yield schedules of families that read no times."""
    return _made(problem, problem.costs, timed=False)


def _timed(problem: Problem) -> _Made:
    """Yield schedules of families that read times."""
    return _made(problem, problem.costs, timed=True)


def _averaged(problem: Problem) -> _Made:
    """Yield schedules of families that read times, made from mean times if these differ."""
    averaged = with_mean_times(problem.costs)
    if averaged != problem.costs:
        for name, schedule in _made(problem, averaged, timed=True):
            yield f"{name}, averaged", schedule


def _made(problem: Problem, costs: Costs, *, timed: bool) -> _Made:
    where, count, caps = problem.placement, problem.num_micro_batches, problem.caps_bytes
    return generate_for(where, count, costs, caps, timed=timed, objective=problem.objective)


def _better(one: EvaluatedSchedule | None, other: EvaluatedSchedule) -> EvaluatedSchedule:
    """Return the faster of two schedules; of equals the first."""
    return other if one is None or other.value_us < one.value_us else one
