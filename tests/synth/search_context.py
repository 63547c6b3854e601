"""The search around an improver that is tested by itself."""

from synth.solver.bounds.closed_form import work_bounds
from synth.solver.improve.improver import SearchContext
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result
from synth.solver.search_setting import SearchSetting
from synth.solver.search_state import SearchState
from synth.solver.watch import OnImprovement


def context_of(state: SearchState, workers: int = 1) -> SearchContext:
    """Return the context of a search without bounds in the background."""
    fusion_relaxed = relaxed_for_fusion(state.problem)
    work = work_bounds(fusion_relaxed)
    setting = SearchSetting.of(state, fusion_relaxed, proves_in_background=False)
    return SearchContext(setting, state, fusion_relaxed, work, workers, lambda: None, _refuse)


def _refuse(problem: Problem, options: SolveOptions, tell: OnImprovement) -> Result:
    raise AssertionError("a test of one improver searches no other problem")
