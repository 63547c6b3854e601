"""Polishing the incumbent: buffering, fused backwards, robustness."""

from collections.abc import Callable

from synth.solve.evaluate import evaluate
from synth.solve.improve.robustness.robustness import improve_robustness
from synth.solve.options import Part
from synth.solve.search_state import SearchState


def polish(state: SearchState, *, is_fusible: bool, should_stop: Callable[[], bool]) -> None:
    """Offer the incumbent with better buffering, and with BW for B W where that gains.

    Args:
        is_fusible: BW is better than B with W right behind it on some stage.
    """
    if state.best is None or state.is_proven() or should_stop():
        return
    state.offer(evaluate.rebuffer(state.problem, state.best, should_stop))
    if is_fusible:
        state.offer(evaluate.fuse_backward(state.problem, state.best, should_stop))


def finish(state: SearchState, *, is_fusible: bool, should_stop: Callable[[], bool]) -> None:
    """Polish once more, then make the incumbent simpler and more robust at the same value.

    Fewer ops come first (BW for B W), then a buffering and an order that lose less when durations
    vary.
    """
    polish(state, is_fusible=is_fusible, should_stop=should_stop)
    if state.best is None:
        return
    state.refine(evaluate.fuse_backward(state.problem, state.best, should_stop))
    if not should_stop():
        state.refine(evaluate.relax_buffering(state.problem, state.best, should_stop))
        if Part.SLACK not in state.options.without:
            state.refine(improve_robustness(state.problem, state.best, should_stop))
