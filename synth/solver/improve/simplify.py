"""Simplifying the incumbent at the same value: fewer ops, and a more robust buffering."""

from functools import partial
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
        """Try what takes a few evaluations, whatever the share.

        A schedule is evaluated in scenarios only if there is time for two evaluations. With many
        ranks that takes less than one of them, with few up to four times as long.
        """
        state, budget = self.state, self.state.budget
        if state.best is None or budget.time_is_up():
            return
        state.options.report_part(self.part)
        state.refine(evaluate.fuse_backward(state.problem, state.best, budget.time_is_up))
        should_stop = partial(budget.time_is_up, evaluations=2)
        if not should_stop():
            relaxed = evaluate.relax_buffering(
                state.problem, state.best, state.scenario_factors, should_stop
            )
            state.refine(relaxed)


IMPROVER = Simplification
