"""Polishing the incumbent: another buffering, and BW for B W where that gains."""

from typing import ClassVar

from synth.solver.evaluate import evaluate
from synth.solver.improve.improver import SearchContext
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.options import Part


class Polish:
    """Offers the incumbent with better buffering, and with fused backwards."""

    part: ClassVar[Part] = Part.POLISH

    def __init__(self, context: SearchContext) -> None:
        self.state = context.state
        # BW is better than B with W right after it on some stage.
        self.is_fusible = context.fusion_relaxed != relaxed_memory(context.state.problem)

    def run(self, share: float, *, is_brief: bool) -> None:
        """Try what takes a few evaluations, whatever the share."""
        state, should_stop = self.state, self.state.budget.time_is_up
        if state.best is None or state.is_proven() or should_stop():
            return
        state.offer(evaluate.rebuffer(state.problem, state.best, should_stop))
        if self.is_fusible:
            state.offer(evaluate.fuse_backward(state.problem, state.best, should_stop))


IMPROVER = Polish
