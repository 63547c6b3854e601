"""The first incumbents: published schedules of the placement that fit."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import ClassVar

from synth.costs.costs import Costs
from synth.families import families, generate_for
from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.rank_memory import exceeds_caps
from synth.solver.evaluate import evaluate
from synth.solver.improve.improver import SearchContext
from synth.solver.options import Part
from synth.solver.result import Baseline
from synth.solver.tuning import PUBLISHED


class PublishedIncumbents:
    """Offers published schedules, and notes them as baselines of the search, fitting or not."""

    part: ClassVar[Part] = Part.FAMILIES

    def __init__(self, context: SearchContext) -> None:
        self.state, self.problem = context.state, context.state.problem

    def run(self, share: float = 1.0, *, is_brief: bool = False) -> None:
        """Offer the published schedules of this placement, within a time of their own."""
        self.state.options.report_part(self.part)
        made = (self._made(timed=False), self._made_for_times(), self._made_for_averages())
        for name, schedule in chain(*made):
            self._try_family(name, schedule)
            if self._is_out_of_time():
                return

    def _made(self, *, timed: bool, costs: Costs | None = None) -> Iterator[tuple[str, Schedule]]:
        problem = self.problem
        placement, count = problem.placement, problem.num_micro_batches
        costs, caps, objective = costs or problem.costs, problem.caps_bytes, problem.objective
        return generate_for(placement, count, costs, caps, timed=timed, objective=objective)

    def _made_for_times(self) -> Iterator[tuple[str, Schedule]]:
        """Yield the schedules that read times, which take longer to make."""
        if not self._is_out_of_time(self._timed_s):
            yield from self._made(timed=True)

    def _made_for_averages(self) -> Iterator[tuple[str, Schedule]]:
        """Yield the schedules that read times, made from mean times as their authors do."""
        averaged = with_mean_times(self.problem.costs)
        if averaged == self.problem.costs or self._is_out_of_time(self._timed_s):
            return
        for name, schedule in self._made(timed=True, costs=averaged):
            if not families()[name.partition(":")[0]].averages:
                yield f"{name}, averaged", schedule

    @property
    def _timed_s(self) -> float:
        """The time that making a schedule takes that reads times, at most."""
        return PUBLISHED.timed_s_per_op * self.problem.num_ops

    def _is_out_of_time(self, more_s: float = 0.0) -> bool:
        """Return True if the remaining families must be skipped: out of time, or stopped.

        Args:
            more_s: time that the next family takes besides its evaluation.
        """
        budget = self.state.budget
        up = budget.is_late(PUBLISHED.share * budget.time_limit_s - more_s)
        in_grace = budget.elapsed_s + budget.evaluation_s + more_s < PUBLISHED.grace_s
        return up and not in_grace

    def _try_family(self, name: str, schedule: Schedule) -> None:
        budget = self.state.budget
        began_s = budget.elapsed_s
        alone = evaluate.evaluate(replace(self.problem, caps_bytes=None), schedule, name)
        if alone is None:
            return
        budget.evaluation_s = budget.elapsed_s - began_s
        fits = not exceeds_caps(alone.peak_bytes, self.problem.caps_bytes)
        keeps = schedule.keeps_saved
        baseline = Baseline.of(name, alone.timeline, alone.peak_bytes, fits=fits, keeps_saved=keeps)
        if not baseline.is_in(self.state.baselines):
            self.state.baselines.append(baseline)
        # The search orders F, B and W, and proves its bounds for them.
        if fits and keeps:
            self.state.offer(alone)
            if not self._is_out_of_time():
                self.state.offer(evaluate.split_backward(self.problem, alone))


def with_mean_times(costs: Costs) -> Costs:
    """Return the costs with the mean times of all stages for each stage."""
    stages = costs.stages
    mean_us = {
        kind: round(sum(stage.duration_us[kind] for stage in stages) / len(stages))
        for kind in OpKind
    }
    return costs.replace(stages=tuple(stage.replace(duration_us=mean_us) for stage in stages))


IMPROVER = PublishedIncumbents
