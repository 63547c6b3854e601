"""Simplifying the incumbent at the same value: fewer ops, and a more robust buffering."""

from typing import ClassVar

from synth.solver.evaluate import evaluate
from synth.solver.improve.improver import SearchContext
from synth.solver.options import Part


class Simplification:
    """Replaces the incumbent by one with BW for B W and a buffering that loses less.

    A buffering loses time when durations vary, and some lose less than others.
    """

    part: ClassVar[Part] = Part.SIMPLIFICATION

    def __init__(self, context: SearchContext) -> None:
        self.state = context.state

    def run(self, share: float, *, is_brief: bool) -> None:
        """Try what takes a few evaluations, whatever the share."""
        state, should_stop = self.state, self.state.budget.time_is_up
        if state.best is None:
            return
        state.options.report_part(self.part)
        state.refine(evaluate.fuse_backward(state.problem, state.best, should_stop))
        if not should_stop():
            state.refine(evaluate.relax_buffering(state.problem, state.best, should_stop))


IMPROVER = Simplification
