"""Windows with moves for robustness: where windows gain nothing more, such moves help.

An order that no window improves has many paths as long as the critical path. Moves that lower the
mean over duration scenarios, without a worse value, leave fewer of them.
"""

import math
from collections.abc import Callable
from itertools import count
from typing import ClassVar

from synth.solver.improve.improver import SearchContext
from synth.solver.improve.lns import search
from synth.solver.improve.robustness.robustness import improve_robustness
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import relaxed_memory, safe_memory
from synth.solver.instance.timing import TimedOrders
from synth.solver.options import Part
from synth.solver.order_pool import split_timing
from synth.solver.search_state import SearchState
from synth.solver.tuning import SEARCH, WINDOWS


class WindowStep:
    """Windows and moves for robustness in turn, from what is known when the step begins."""

    part: ClassVar[Part] = Part.WINDOWS

    def __init__(self, context: SearchContext) -> None:
        self.context = context

    def run(self, share: float, *, is_brief: bool) -> None:
        """Search for a share of the remaining time; a deterministic search counts effort.

        Args:
            is_brief: end when neither windows nor moves have gained for a while.
        """
        self.context.state.options.report_part(self.part)
        budget = self.context.state.budget
        effort_share = SEARCH.window_share if budget.is_deterministic else 1
        WindowTurns(self.context.state, self.context.workers).run(
            share * budget.left_s(), effort_share * budget.time_limit_s, is_patient=not is_brief
        )


class WindowTurns:
    """Large-neighbourhood search from the best orders known, in the strictest instance they fit in.

    Args:
        workers: windows solved at a time.
    """

    def __init__(self, state: SearchState, workers: int) -> None:
        self.state, self.problem, self.options = state, state.problem, state.options
        self.workers = 1 if self.options.deterministic else workers
        self.instance, self._starts = self._strictest_instance()
        self._evaluated_at_s = state.budget.elapsed_s

    def _strictest_instance(self) -> tuple[Instance, list[TimedOrders]]:
        """Return the strictest memory model in which orders are known, and the best of these."""
        best = self.state.best
        if best is not None:
            strict = safe_memory(self.problem, best.schedule.buffering)
            if known := self._known_in(strict):
                return strict, known[: WINDOWS.starts]
        free = relaxed_memory(self.problem)
        return free, self._known_in(free)[: WINDOWS.starts]

    def _known_in(self, instance: Instance) -> list[TimedOrders]:
        return self.state.pool.timings(instance, self.state.best_programs)

    def run(self, limit_s: float, effort_s: float, *, is_patient: bool) -> None:
        """Search until the limit, until the effort is spent, or until nothing is left to try.

        Args:
            limit_s: seconds of the clock; a deterministic search ignores it.
            is_patient: go on although neither windows nor moves have gained for a while.
        """
        starts = self._starts
        patience_s = max(
            WINDOWS.least_patience_s, WINDOWS.patience_share * self.options.time_limit_s
        )
        if Part.ROBUSTNESS in self.options.without:
            patience_s = math.inf

        allowance = self.state.budget.allow(limit_s)

        def should_stop() -> bool:
            return allowance.is_over() or self.state.poll()

        for turn in count():
            if not starts or effort_s <= 0 or should_stop():
                return
            found = search.improve(
                self.instance,
                self.problem.objective,
                starts,
                search.EffortLimits(effort_s, self.workers, should_stop, patience_s),
                self.options.seed + turn,
                self._take,
            )
            self.state.try_timing(self.instance, found.timing, "windows")
            effort_s -= found.spent_s
            starts = self._more_robust(should_stop)
            if not starts and is_patient and not found.is_exhausted:
                starts, patience_s = [found.timing], 2 * patience_s
            elif starts and self._value_us(found.timing) < self._value_us(starts[0]):
                starts.append(found.timing)  # better here, if not in every detail

    def _value_us(self, timing: TimedOrders) -> int:
        return timing.value_us(self.instance, self.problem.objective)

    def _take(self, timing: TimedOrders) -> None:
        """Evaluate a better solution, unless one was evaluated a moment ago."""
        pause_s = (
            0 if self.options.deterministic else WINDOWS.pauses * self.state.budget.evaluation_s
        )
        if self.state.budget.elapsed_s - self._evaluated_at_s >= pause_s:
            self.state.try_timing(self.instance, timing, "windows")
            self._evaluated_at_s = self.state.budget.elapsed_s

    def _more_robust(self, should_stop: Callable[[], bool]) -> list[TimedOrders]:
        """Return the incumbent after moves for robustness; empty if no move gains."""
        best = self.state.best
        if best is None or Part.ROBUSTNESS in self.options.without or should_stop():
            return []
        looser = improve_robustness(self.problem, best, should_stop)
        if looser is best:
            return []
        if looser.value_us < best.value_us:
            self.state.offer(looser)
        else:
            self.state.refine(looser)
        timing = split_timing(looser.schedule.programs, self.instance)
        return [] if timing is None else [timing]


IMPROVER = WindowStep
