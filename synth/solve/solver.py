"""The search: explain infeasibility, begin with published schedules, improve until proven.

The steps, their order and their shares of the time are the table in `policy.py`; this module runs
them. Every schedule passes the verifier and is simulated exactly before it counts.
"""

import threading
from collections.abc import Callable

from synth.schedule.model import Buffering
from synth.solve import infeasibility
from synth.solve.bounds.prover import Prover
from synth.solve.improve import list_scheduling_step
from synth.solve.improve.annealing_step import AnnealingStep
from synth.solve.improve.exact import ExactSearch
from synth.solve.improve.lns.window_step import WindowStep
from synth.solve.improve.modulo import several_micro_batches
from synth.solve.improve.modulo.unroll import ModuloSchedules
from synth.solve.improve.polish import finish, polish
from synth.solve.improve.published import PublishedIncumbents
from synth.solve.improve.short_instance import ShortInstance
from synth.solve.instance.memory_models import relaxed_for_fusion, relaxed_memory, safe_memory
from synth.solve.instance.timing import ScoredPrograms
from synth.solve.options import Part, SolveOptions, SolverName
from synth.solve.policy import SearchAction, SearchSetting, steps
from synth.solve.problem import Problem
from synth.solve.result import Baseline, Result, StoppedBy
from synth.solve.search_state import OnImprovement, SearchState
from synth.solve.tuning import SEARCH


def solve(
    problem: Problem,
    options: SolveOptions | None = None,
    on_improvement: OnImprovement | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """Find the best schedule within the caps, and prove how good it is.

    Never returns a schedule that exceeds a cap, nor one worse than a published family that fits,
    neither recomputes nor offloads, and was evaluated in time. If the caps allow the serial
    schedule, there is always an answer.

    Args:
        options: limits and seeds.
        on_improvement: called in this thread for every better verified schedule or bound.
        stop: set it, from any thread, to get the best so far within about a second. The MILP
            solver checks it only between its runs.
    """
    return _Search(SearchState(problem, options or SolveOptions(), on_improvement, stop)).run()


class _Search:
    """One search: its state, the instance that bounds come from, and the parts that last."""

    def __init__(self, state: SearchState) -> None:
        self.state, self.problem, self.options = state, state.problem, state.options
        self.relaxed_memory = relaxed_memory(self.problem)
        self.fusion_relaxed = relaxed_for_fusion(self.problem)
        self.is_fusible = self.fusion_relaxed != self.relaxed_memory
        self.has_rounds = several_micro_batches.applies(self.fusion_relaxed)
        self.prover = Prover(self.fusion_relaxed, state)
        self.exact = ExactSearch(
            state,
            self.fusion_relaxed,
            self.prover.work,
            self.prover.num_workers_left,
            on_optimum=self.prover.stop,
        )
        self.annealing = AnnealingStep(state)
        self.baselines: list[Baseline] = []
        self.short_instance_share = 0.0

    def run(self) -> Result:
        """Begin with published schedules, run the steps, finish."""
        shortage = infeasibility.find_shortage(self.problem)
        self._begin(is_feasible=shortage is None)
        if shortage is not None:
            return self._result(StoppedBy.INFEASIBLE, str(shortage))
        self.prover.closed_forms()
        try:
            self._run_steps()
            self.prover.stop()
            if not self.state.is_within:
                self._finish()
        finally:
            self.prover.end()
        return self._result(self.state.reason())

    def _begin(self, *, is_feasible: bool) -> None:
        """Offer the hint, the published schedules, or else the serial one."""
        published = PublishedIncumbents(self.state)
        if self.options.hint is not None and is_feasible:
            published.try_hint(self.options.hint)  # first, so that nothing worse is reported
        if Part.FAMILIES not in self.options.without:
            published.try_families()
        self.baselines = published.baselines
        if self.state.best is None and is_feasible:
            published.try_serial()

    def _run_steps(self) -> None:
        setting = self._setting()
        first_in_background = not setting.waits_for_first_bounds
        run: dict[SearchAction, Callable[[float], None]] = {
            SearchAction.QUICK_LIST_SCHEDULING: lambda _: list_scheduling_step.quick(self.state),
            SearchAction.POLISH: lambda _: self._polish(),
            SearchAction.MILP: self._run_exact,
            SearchAction.BOUNDS_ONE_BY_ONE: lambda _: self.prover.one_by_one(),
            SearchAction.BACKGROUND_BOUNDS: lambda _: self.prover.begin(
                from_one=first_in_background
            ),
            SearchAction.EXACT: self._run_exact,
            SearchAction.FIRST_ANNEALING: lambda share: self.annealing.run(
                share, ends_stalled=True
            ),
            SearchAction.SHORT_INSTANCE: lambda _: self._run_short_instance(),
            SearchAction.LIST_SCHEDULING: lambda _: list_scheduling_step.thorough(
                self.state, has_rounds=self.has_rounds
            ),
            SearchAction.MODULO: lambda _: self._run_modulo(),
            SearchAction.BOUNDS_IN_TURN: lambda _: self.prover.run_in_turn(),
            SearchAction.WINDOWS: lambda share: self._run_windows(share, is_small=setting.is_small),
            SearchAction.ANNEALING: self.annealing.run,
            SearchAction.AWAIT_BOUNDS: lambda _: self.prover.wait(),
        }
        for action, share in steps(setting):
            if self.state.should_stop():
                break
            run[action](share)

    def _setting(self) -> SearchSetting:
        unbuffered = safe_memory(self.problem, Buffering(0, 0))
        return SearchSetting(
            without=self.options.without,
            num_ops=self.fusion_relaxed.num_ops,
            holds_several=self.fusion_relaxed.holds_several,
            # A search for another one leaves exact memory to that one.
            buffers_matter=bool(self.problem.caps_bytes)
            and not self.state.is_within
            and unbuffered != self.relaxed_memory,
            proves_in_background=self.prover.in_background,
            uses_milp=self.options.solver == SolverName.MILP,
        )

    # Steps

    def _polish(self) -> None:
        should_stop = self.state.budget.time_is_up
        polish(self.state, is_fusible=self.is_fusible, should_stop=should_stop)

    def _run_exact(self, share: float) -> None:
        self.exact.run(share * self.state.budget.left_s())

    def _run_short_instance(self) -> None:
        """Search a short instance, and try the extensions of its schedules."""
        short = ShortInstance(self.state, self.fusion_relaxed)

        def search(problem: Problem, options: SolveOptions, tell: OnImprovement) -> Result:
            stop = self.state.budget.stop
            return _Search(SearchState(problem, options, tell, stop, self.state)).run()

        if short.is_worth:
            workers = self.prover.num_workers_left
            self.short_instance_share = short.run(search, workers, self._try_programs)

    def _run_modulo(self) -> None:
        for found in ModuloSchedules(self.state, self.short_instance_share):
            self._try_programs(found)

    def _try_programs(self, found: ScoredPrograms) -> None:
        self.state.pool.add(found.programs)
        if self.state.improves(found.value_us):
            self.state.try_programs(found.programs, found.found_by, found.value_us)

    def _run_windows(self, share: float, *, is_small: bool) -> None:
        """Search windows; on small problems the exact model may find more than a patient search."""
        budget = self.state.budget
        effort_share = SEARCH.window_share if budget.is_deterministic else 1
        windows = WindowStep(self.state, self.prover.num_workers_left)
        windows.run(
            share * budget.left_s(), effort_share * budget.time_limit_s, is_patient=not is_small
        )

    def _finish(self) -> None:
        """Finish within a grace period, even if the time is up."""
        budget = self.state.budget
        until_s = max(budget.elapsed_s(), budget.time_limit_s) + SEARCH.grace_s
        finish(self.state, is_fusible=self.is_fusible, should_stop=lambda: budget.is_late(until_s))

    # The answer

    def _result(self, stopped_by: StoppedBy, message: str | None = None) -> Result:
        best = self.state.best
        if best is None and message is None:
            message = "no schedule was found in the time given; allow more time or more memory"
            if stopped_by == StoppedBy.INFEASIBLE:
                message = "no schedule is within the memory limits: proven by an exhausted search"
        return Result(
            problem=self.problem,
            schedule=best.schedule if best else None,
            timeline=best.timeline if best else None,
            value_us=best.value_us if best else None,
            lower_bound_us=self.state.bound_us,
            peak_bytes=best.peak_bytes if best else None,
            found_by=best.found_by if best else None,
            stopped_by=stopped_by,
            baselines=tuple(self.baselines),
            wall_s=self.state.budget.elapsed_s(),
            message=message,
            certificate=self.state.proven.certificate,
        )
