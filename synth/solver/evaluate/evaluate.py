"""From an order to a verified schedule: exact evaluation, boundary buffering, fusing B and W."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.recomputed_stages import written_out
from synth.schedule.simulate import Timeline
from synth.schedule.verify import ScheduleError, check_deadlock, lower_checked
from synth.solver.evaluate.scenarios import ScenarioFactors, ScenarioTimes
from synth.solver.instance.instance import BW, B, W
from synth.solver.problem import Problem
from synth.solver.tuning import EVALUATION

# The default first.
BUFFERINGS = tuple(Buffering(*pair) for pair in EVALUATION.bufferings)


@dataclass(frozen=True)
class EvaluatedSchedule:
    """A verified schedule within the caps, with its exact times and peaks."""

    schedule: Schedule
    timeline: Timeline
    value_us: int
    peak_bytes: tuple[int, ...]
    found_by: str


def evaluate(problem: Problem, schedule: Schedule, found_by: str) -> EvaluatedSchedule | None:
    """Verify a schedule against the caps and simulate it exactly; None if it may not run.

    Checks what `verify` checks. Peaks come first: a schedule above a cap is not simulated. Where R
    is a part of B (`MergedStages`), times and peaks are those of the schedule written out.
    """
    judged, costs = schedule, problem.costs
    if problem.merged is not None:
        judged, costs = written_out(schedule, problem.merged.stages), problem.merged.costs
    try:
        lowered = lower_checked(judged, costs)
        peaks = peak_bytes(lowered)
        if exceeds_caps(peaks, problem.caps_bytes):
            return None
        timeline = check_deadlock(lowered)
    except ScheduleError:
        return None
    value = problem.objective.value_us(timeline)
    return EvaluatedSchedule(schedule, timeline, value, peaks, found_by)


def never() -> bool:
    """Nothing stops an evaluation early."""
    return False


def evaluate_order(
    problem: Problem,
    programs: tuple[tuple[Op, ...], ...],
    found_by: str,
    target_us: int = 0,
    should_stop: Callable[[], bool] = never,
) -> EvaluatedSchedule | None:
    """Evaluate an order with the buffering that is best for it.

    Args:
        target_us: the value if no transfer waits; once it is reached, no more is tried.
        should_stop: polled after each buffering.
    """
    best: EvaluatedSchedule | None = None
    for buffering in (*BUFFERINGS, _unlimited(problem)):
        schedule = Schedule(
            problem.placement, problem.num_micro_batches, programs, "synth", buffering
        )
        candidate = evaluate(problem, schedule, found_by)
        if candidate is not None and (best is None or candidate.value_us < best.value_us):
            best = candidate
        if should_stop() or (best is not None and best.value_us <= target_us):
            break
    return best


def _unlimited(problem: Problem) -> Buffering:
    """The buffering with which no transfer ever waits, for boundaries of few bytes."""
    everything = 3 * problem.num_micro_batches
    return Buffering(everything, everything)


def relax_buffering(
    problem: Problem,
    candidate: EvaluatedSchedule,
    scenario_factors: ScenarioFactors,
    should_stop: Callable[[], bool] = never,
) -> EvaluatedSchedule:
    """Return the same order with the buffering that loses least in duration scenarios.

    A buffering with a lower value is taken in any case. A plan that is good only for the profiled
    durations loses on a real device. Gains below a threshold are not worth their memory.

    Args:
        should_stop: polled before each buffering.
    """

    def strain_us(tried: EvaluatedSchedule) -> float:
        return ScenarioTimes(tried.timeline.lowered, scenario_factors, problem.objective).value_us

    given = candidate.schedule
    others = [b for b in (*BUFFERINGS, _unlimited(problem)) if b != given.buffering]
    best, least_us = candidate, strain_us(candidate)
    for buffering in others:
        if should_stop():
            break
        tried = evaluate(problem, replace(given, buffering=buffering), candidate.found_by)
        if tried is None or tried.value_us > best.value_us:
            continue
        tried_us = strain_us(tried)
        is_faster = tried.value_us < best.value_us
        if is_faster or tried_us < least_us * (1 - EVALUATION.worthwhile_gain):
            best, least_us = tried, tried_us
    return best


def fuse_backward(
    problem: Problem, candidate: EvaluatedSchedule, should_stop: Callable[[], bool] = never
) -> EvaluatedSchedule:
    """Replace adjacent B j W j by BW j wherever the objective does not rise.

    All at once first, then in halves: BW sends its gradient later than B, which matters only on the
    critical path. The result never has a larger objective and always keeps the caps.
    """
    pairs = list(_adjacent_pairs(candidate.schedule))
    pending = [pairs] if pairs else []
    num_ops = sum(len(program) for program in candidate.schedule.programs)
    max_evaluations = min(
        EVALUATION.most_fusion_trials,
        max(EVALUATION.fewest_fusion_trials, EVALUATION.fusion_ops // num_ops),
    )
    while pending and max_evaluations > 0 and not should_stop():
        group = pending.pop()
        max_evaluations -= 1
        tried = evaluate(problem, _fused(candidate.schedule, group), candidate.found_by)
        if tried is not None and tried.value_us <= candidate.value_us:
            candidate = tried
        elif len(group) > 1:
            half = len(group) // 2
            pending += [group[half:], group[:half]]
    return candidate


def split_backward(problem: Problem, candidate: EvaluatedSchedule) -> EvaluatedSchedule | None:
    """Replace BW j by B j W j, which sends its gradient sooner; None without BW or over a cap."""
    programs = tuple(
        tuple(part for op in program for part in _parts(op))
        for program in candidate.schedule.programs
    )
    if programs == candidate.schedule.programs:
        return None
    schedule = replace(candidate.schedule, programs=programs)
    return evaluate(problem, schedule, f"{candidate.found_by}, B and W apart")


def _parts(op: Op) -> tuple[Op, ...]:
    return (op._replace(kind=B), op._replace(kind=W)) if op.kind == BW else (op,)


def _adjacent_pairs(schedule: Schedule) -> Iterator[Op]:
    for program in schedule.programs:
        for op, after in pairwise(program):
            if op.kind == B and after == op._replace(kind=W):
                yield op


def _fused(schedule: Schedule, backwards: Sequence[Op]) -> Schedule:
    chosen = set(backwards)
    dropped = {op._replace(kind=W) for op in chosen}
    programs = tuple(
        tuple(op._replace(kind=BW) if op in chosen else op for op in program if op not in dropped)
        for program in schedule.programs
    )
    return replace(schedule, programs=programs)
