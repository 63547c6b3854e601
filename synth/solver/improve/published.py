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
        problem = self.problem
        made = generate_for(
            problem.placement, problem.num_micro_batches, problem.costs, problem.caps_bytes
        )
        for name, schedule in chain(made, self._made_for_averages()):
            self._try_family(name, schedule)
            if self._out_of_grace():
                return

    def _made_for_averages(self) -> Iterator[tuple[str, Schedule]]:
        """Yield the schedules that read times, made from mean times as their authors do."""
        problem = self.problem
        averaged = with_mean_times(problem.costs)
        if averaged != problem.costs:
            timed = {
                name for name, family in families().items() if family.timed and not family.averages
            }
            made = generate_for(
                problem.placement, problem.num_micro_batches, averaged, problem.caps_bytes
            )
            for name, schedule in made:
                if name.partition(":")[0] in timed:
                    yield f"{name}, averaged", schedule

    def _out_of_grace(self) -> bool:
        """Return True if the remaining families must be skipped: out of time, or stopped."""
        budget = self.state.budget
        up = budget.is_late(PUBLISHED.share * budget.time_limit_s)
        in_grace = budget.elapsed_s() + budget.evaluation_s < PUBLISHED.grace_s
        return up and not in_grace

    def _try_family(self, name: str, schedule: Schedule) -> None:
        budget = self.state.budget
        began_s = budget.elapsed_s()
        alone = evaluate.evaluate(replace(self.problem, caps_bytes=None), schedule, name)
        if alone is None:
            return
        budget.evaluation_s = budget.elapsed_s() - began_s
        line, fits = alone.timeline, not exceeds_caps(alone.peak_bytes, self.problem.caps_bytes)
        keeps = schedule.keeps_saved
        times_us = line.makespan_us, line.period_us, max(line.work_us)
        baseline = Baseline(name, *times_us, alone.peak_bytes, fits, keeps, line.mean_work_us)
        if not any(replace(baseline, name=other.name) == other for other in self.state.baselines):
            self.state.baselines.append(baseline)
        # The search orders F, B and W, and proves its bounds for them.
        if fits and keeps:
            self.state.offer(alone)
            if not self._out_of_grace():
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
