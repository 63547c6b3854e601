"""The least memory limit without a bubble in the steady state.

If the ops of one micro-batch repeat every T, the work of the busiest rank, that rank is always
busy, and further micro-batches take T each. The memory of this modulo schedule does not depend on
the number of micro-batches, so a small model decides it
(`synth.solver.modulo.least_memory`).
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from synth.objective import Objective
from synth.plan.choose.candidates import Candidate, Ranking, SearchWatch
from synth.plan.search_space import OneCandidate, SearchSpace
from synth.plan.tuning import STEADY_CAP
from synth.schedule.model import Schedule
from synth.search.outcome import StoppedBy
from synth.solver.evaluate.evaluate import BUFFERINGS, evaluate_order
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import relaxed_memory, safe_memory
from synth.solver.instance.timing import timed
from synth.solver.modulo.cyclic_ops import CyclicSchedule
from synth.solver.modulo.least_memory import LeastMemory, busiest_us, find, least_memory
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, MemoryProof, Result
from synth.units import format_bytes, format_bytes_both


@dataclass(frozen=True)
class SteadyCap:
    """A limit under which `schedule` runs, the time per micro-batch, and the least possible one.

    No schedule that repeats one micro-batch without a bubble needs less than `not_below_bytes`. It
    is None if times had to be rounded to find that out.
    """

    cap_bytes: int
    not_below_bytes: int | None
    schedule: Schedule
    each_us: float
    work_us: int

    @property
    def bubble_rate(self) -> float:
        """1 − work / time, of one more micro-batch on the busiest rank."""
        return 1 - self.work_us / self.each_us if self.each_us else 0.0

    @property
    def proof(self) -> MemoryProof:
        """The limit with its bound."""
        rate = self.bubble_rate
        rest = "" if rate < STEADY_CAP.least_bubble_rate else f" ({100 * rate:.2f} % bubble)"
        least = "times are too fine for a proof that it is the least"
        if self.not_below_bytes is not None:
            least = f"proven not below {format_bytes(self.not_below_bytes)} for such a pattern"
        explanation = (
            f"memory limit found: {format_bytes_both(self.cap_bytes)} on every rank, in which one "
            f"more micro-batch takes {self.each_us:,.0f} µs where the busiest rank works "
            f"{self.work_us:,} µs{rest}; {least}"
        )
        return MemoryProof(self.cap_bytes, self.not_below_bytes, explanation)


@dataclass(frozen=True)
class LeastWithoutBubble(SearchSpace):
    """The schedules of a candidate under the least limit without a bubble in the steady state.

    Attributes:
        one: the candidate, without memory limits and without recomputation.
    """

    one: OneCandidate

    @property
    def all_candidates(self) -> Sequence[Candidate]:
        """The candidate."""
        return self.one.all_candidates

    def search(self, options: SolveOptions, watch: SearchWatch) -> Ranking:
        """Find the least limit, and search under it in the remaining time.

        The result has no schedule if there is none that repeats without a bubble.
        """
        clock = options.clock(watch.stop)
        clock.grant(STEADY_CAP.share_of_limit * options.time_limit_s)
        found = least_steady(self.one.problem, options, watch.stop)
        if found is None:
            nothing = _nothing(self.one.problem, is_interrupted=watch.stop.is_set())
            return Ranking(replace(nothing, wall_s=clock.elapsed_s), ())
        proof, left_s = found.proof, max(0.0, clock.left_s())

        def tell(incumbent: Incumbent) -> None:
            if watch.on_improvement is not None:
                watch.on_improvement(replace(incumbent, memory=proof))

        rest = replace(options, hint=found.schedule, time_limit_s=left_s)
        result = self.one.within(found.cap_bytes).search(rest, SearchWatch(tell, watch.stop)).result
        return Ranking(replace(result, wall_s=clock.elapsed_s, memory=proof), ())


def _nothing(problem: Problem, *, is_interrupted: bool) -> Result:
    """Return the result of a search that found no limit."""
    reason, message = (
        StoppedBy.TIME_LIMIT,
        "§target steady: no schedule that repeats without bubble was found in the time given; "
        "allow more §time_limit, or give a time as target",
    )
    if is_interrupted:
        reason, message = (
            StoppedBy.INTERRUPT,
            "§target steady: interrupted before a schedule that repeats without bubble was "
            "found; run the same command again",
        )
    return Result.without_schedule(problem, reason, message)


def least_steady(
    problem: Problem, options: SolveOptions, stop: threading.Event | None = None
) -> SteadyCap | None:
    """Search for the least limit, one for all ranks, without a bubble in the steady state.

    Args:
        problem: its caps do not matter.
        options: limits and seed; `STEADY_CAP.share_of_limit` of the time limit is for this search.
        stop: set it, from any thread, to return None soon.
    """
    search = _Search(problem, options, stop or threading.Event())
    free = replace(problem, caps_bytes=None)
    proof = search.least_memory(relaxed_memory(free))
    if proof is None:
        return None
    runnable = search.least_memory(safe_memory(free, BUFFERINGS[0]))
    if runnable is None:
        return None
    capped = replace(problem, caps_bytes=(runnable.cap_bytes,) * problem.num_ranks)
    instance = safe_memory(capped, BUFFERINGS[0])
    found = search.pattern(instance, runnable.ticks)
    if found is None:
        return None
    candidate = evaluate_order(capped, found.unrolled(instance).programs(instance), "pattern")
    if candidate is None:
        return None
    return SteadyCap(
        max(candidate.peak_bytes),
        proof.not_below_bytes if proof.is_exact else None,
        candidate.schedule,
        _each_us(problem, found),
        busiest_us(instance),
    )


@dataclass(frozen=True)
class _Search:
    """The steps of the search; each has the same time, and returns None if it found nothing."""

    problem: Problem
    options: SolveOptions
    stop: threading.Event

    def least_memory(self, instance: Instance) -> LeastMemory | None:
        """Minimize the memory of an interval without a bubble; None also if `stop` is set."""
        found = least_memory(
            instance,
            [self.problem.static_bytes(rank) for rank in range(self.problem.num_ranks)],
            self._seconds,
            seed=self.options.seed,
            workers=self.options.num_workers,
            should_stop=self._step_end(),
        )
        return None if self.stop.is_set() else found

    def pattern(self, instance: Instance, ticks: int) -> CyclicSchedule | None:
        """Find an interval without a bubble under the instance's memory limits."""
        return find(
            instance,
            1.0,
            self._seconds,
            ticks=ticks,
            seed=self.options.seed,
            workers=self.options.num_workers,
            should_stop=self._step_end(),
        )

    @property
    def _seconds(self) -> float:
        return STEADY_CAP.step_share_of_limit * self.options.time_limit_s

    def _step_end(self) -> Callable[[], bool]:
        """Begin a step; the function returns True once the step's time by the clock is over.

        Deterministic seconds may take longer.
        """
        return self.options.clock(self.stop).deadline(self._seconds)


def _each_us(problem: Problem, pattern: CyclicSchedule) -> float:
    """Return the time of one more micro-batch in the steady state."""
    few = STEADY_CAP.micro_batches_per_rank * problem.num_ranks * problem.num_replicas
    times = [_makespan_us(_instance(problem, count), pattern) for count in (few, 2 * few)]
    # Each copy runs one micro-batch per period.
    return (times[1] - times[0]) / (few // problem.num_replicas)


def _instance(problem: Problem, num_micro_batches: int) -> Instance:
    return relaxed_memory(replace(problem, num_micro_batches=num_micro_batches, caps_bytes=None))


def _makespan_us(instance: Instance, pattern: CyclicSchedule) -> int:
    return timed(pattern.unrolled(instance).orders(instance), instance).value_us(
        instance, Objective.MAKESPAN
    )
