"""The first incumbents: published schedules, a given one, and the one of least memory."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from synth.costs import Costs
from synth.errors import SynthError
from synth.families import families, generate_for
from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.verify import ScheduleError, verify
from synth.solve import infeasibility
from synth.solve.evaluate import evaluate
from synth.solve.result import Baseline
from synth.solve.search_state import SearchState
from synth.solve.tuning import PUBLISHED


class PublishedIncumbents:
    """Offers schedules that need no search; `baselines` are the published ones, fitting or not."""

    def __init__(self, state: SearchState) -> None:
        self.state, self.problem = state, state.problem
        self.baselines: list[Baseline] = []

    def try_families(self) -> None:
        """Offer the published schedules of this placement."""
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
        caps, line = self.problem.caps_bytes or alone.peak_bytes, alone.timeline
        fits = all(peak <= cap for peak, cap in zip(alone.peak_bytes, caps, strict=True))
        keeps = schedule.keeps_saved
        times_us = line.makespan_us, line.period_us, max(line.work_us)
        baseline = Baseline(name, *times_us, alone.peak_bytes, fits, keeps, line.mean_work_us)
        if not any(replace(baseline, name=other.name) == other for other in self.baselines):
            self.baselines.append(baseline)
        # The search orders F, B and W, and proves its bounds for them.
        if fits and keeps:
            self.state.offer(alone)
            if not self._out_of_grace():
                self.state.offer(evaluate.split_backward(self.problem, alone))

    def try_serial(self) -> None:
        """Offer one micro-batch at a time, which fits wherever anything does."""
        serial = infeasibility.serial_schedule(self.problem)
        self.state.offer(evaluate.evaluate(self.problem, serial, serial.name))

    def try_hint(self, schedule: Schedule) -> None:
        """Offer the given schedule.

        Raises:
            SynthError: it is no schedule of this problem, or none that the search could improve.
        """
        asked, given = self.problem, schedule
        if (given.placement, given.num_micro_batches) != (asked.placement, asked.num_micro_batches):
            raise SynthError(
                f"the hint has {given.num_ranks} ranks and {given.num_micro_batches} micro-batches "
                f"on its own placement, the problem {asked.num_ranks} and "
                f"{asked.num_micro_batches}; give a plan made for the same, or none"
            )
        if asked.objective.periods:
            _check_in_order(schedule)
        if not schedule.keeps_saved:
            raise SynthError(
                "the hint rebuilds or moves what forwards save (ops R, O, L, K, G), and the search "
                "orders F, B and W alone; give a plan without such ops, or none"
            )
        try:
            verify(schedule, self.problem.costs)
        except ScheduleError as error:
            raise SynthError(
                f"the hint is no schedule for this problem: {error}; give a plan for the same "
                f"number of ranks and micro-batches, or none"
            ) from None
        self.state.offer(
            evaluate.evaluate(self.problem, schedule, self.state.options.hint_found_by)
        )


def with_mean_times(costs: Costs) -> Costs:
    """Return the costs with the mean times of all stages for each stage."""
    stages = costs.stages
    mean_us = {
        kind: round(sum(stage.duration_us[kind] for stage in stages) / len(stages))
        for kind in OpKind
    }
    return costs.replace(stages=tuple(stage.replace(duration_us=mean_us) for stage in stages))


def _check_in_order(schedule: Schedule) -> None:
    """Reject a schedule with kinds not in micro-batch order: bounds of the period exclude it."""
    for rank, program in enumerate(schedule.programs):
        last: dict[tuple[OpKind, int, int], int] = {}
        for op in program:
            which = (op.kind, op.stage, op.replica)
            if op.microbatch < last.get(which, -1):
                raise SynthError(
                    f"the hint's rank {rank} takes {op.kind} of micro-batch {last[which]} before "
                    f"{op.microbatch}; for the period, hints must take micro-batches in order"
                )
            last[which] = op.microbatch
