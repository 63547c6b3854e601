"""The search: explain infeasibility, begin with published schedules, improve until proven.

The steps, their order and their shares of the time are the table in `search_steps.py`; this module
runs them. Every schedule passes the verifier and is simulated exactly before it counts.
"""

from synth.search.outcome import StoppedBy
from synth.solver import infeasibility
from synth.solver.bounds.prover import BoundStep, Prover
from synth.solver.improve import improvers
from synth.solver.improve.first_incumbents import offer_hint, offer_serial
from synth.solver.improve.improver import SearchContext
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result
from synth.solver.search_setting import SearchSetting
from synth.solver.search_state import SearchState
from synth.solver.search_steps import Step, last_steps, steps
from synth.solver.watch import UNWATCHED, OnImprovement, SolveWatch


def solve(
    problem: Problem, options: SolveOptions | None = None, watch: SolveWatch = UNWATCHED
) -> Result:
    """Find the best schedule within the caps, and prove how good it is.

    Never returns a schedule that exceeds a cap, nor one worse than a published family that fits,
    neither recomputes nor offloads, and was evaluated in time. If the caps allow the serial
    schedule, there is always an answer.

    Args:
        options: limits and seeds.
        watch: the MILP solver checks its stop only between its runs.

    Raises:
        SynthError: the placement runs backwards on other ranks than forwards.
    """
    problem.check_ordered()
    return _Search(SearchState(problem, options or SolveOptions(), watch)).run()


class _Search:
    """One search: its state, the prover of its bound, and the improvers."""

    def __init__(self, state: SearchState) -> None:
        self.state, self.problem = state, state.problem
        fusion_relaxed = relaxed_for_fusion(self.problem)
        self.prover = Prover(fusion_relaxed, state)
        self.setting = SearchSetting.of(
            state, fusion_relaxed, proves_in_background=self.prover.in_background
        )
        context = SearchContext(
            self.setting,
            state,
            fusion_relaxed,
            self.prover.work,
            self.prover.num_workers_left,
            self.prover.stop,
            self._search_within,
        )
        self.improvers = {part: improver(context) for part, improver in improvers().items()}

    def run(self) -> Result:
        """Begin with published schedules, run the steps, finish."""
        shortage = infeasibility.find_shortage(self.problem)
        is_even = self.problem.num_replicas == 1
        if shortage is None and is_even:  # the first schedule that is reported has a bound
            self.prover.closed_forms()
        self._begin(is_feasible=shortage is None)
        if shortage is not None:
            return self.state.result(StoppedBy.INFEASIBLE, str(shortage))
        if not is_even:  # a schedule may be below them, see `SearchState.raise_bound`
            self.prover.closed_forms()
        try:
            for step in steps(self.setting):
                if self.state.poll():
                    break
                self._take(step)
            self.prover.stop()
            self.state.budget.begin_grace()
            for step in last_steps(self.setting):
                self._take(step)
        finally:
            self.prover.end()
        return self.state.result(self.state.reason())

    def _begin(self, *, is_feasible: bool) -> None:
        """Offer the hint, the published schedules, or else the serial one."""
        hint = self.state.options.hint
        if hint is not None and is_feasible:
            offer_hint(self.state, hint)  # first, so that nothing worse is reported
        if self.setting.has(Part.FAMILIES):
            self._take(Step(Part.FAMILIES))
        if self.state.best is None and is_feasible:
            offer_serial(self.state)

    def _take(self, step: Step) -> None:
        if isinstance(step.action, BoundStep):
            self.prover.run(step.action)
        else:
            self.improvers[step.action].run(step.share, is_brief=step.is_brief)

    def _search_within(
        self, problem: Problem, options: SolveOptions, tell: OnImprovement
    ) -> Result:
        """Search another problem, which ends with this search."""
        watch = SolveWatch(tell, self.state.budget.stop)
        return _Search(SearchState(problem, options, watch, self.state)).run()
