"""The search around an improver that is tested by itself."""

from synth.solve.bounds.closed_form import work_bounds
from synth.solve.improve.improver import SearchContext
from synth.solve.instance.memory_models import relaxed_for_fusion
from synth.solve.options import SolveOptions
from synth.solve.problem import Problem
from synth.solve.result import Result
from synth.solve.search_state import OnImprovement, SearchState


def context_of(state: SearchState, workers: int = 1) -> SearchContext:
    """Return the context of a search without bounds in the background."""
    fusion_relaxed = relaxed_for_fusion(state.problem)
    work = work_bounds(fusion_relaxed)
    return SearchContext(state, fusion_relaxed, work, workers, lambda: None, _refuse)


def _refuse(problem: Problem, options: SolveOptions, tell: OnImprovement) -> Result:
    raise AssertionError("a test of one improver searches no other problem")
