"""The exact optimum of tiny problems on a ring, by enumeration of all schedules.

Each rank has any of its programs (`ring_programs`), and the schedule has any buffering. More
buffers never take more time or less memory. So a combination of programs is simulated with
unlimited buffers first, and most are no faster than the best so far even then. Of the others,
bufferings are evaluated at the border of those that keep the memory limits.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product

from synth.schedule.error import ScheduleError
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.verify import check_deadlock, lower_checked
from synth.solver.options import SolveOptions
from synth.solver.tuning import WEIGHT_PASSING
from synth.solver.weight_passing.exact_proof import ExactProof
from synth.solver.weight_passing.problem import WeightPassingProblem, passes_from_rank_to_rank
from synth.solver.weight_passing.programs import of_rank
from synth.solver.weight_passing.ring_programs import RankPrograms

Program = tuple[Op, ...]


def is_enumerable(passing: WeightPassingProblem) -> bool:
    """True if the combinations of programs are few enough: about a thousand."""
    num_forwards = passing.problem.num_micro_batches * len(passing.stages)
    return num_forwards <= WEIGHT_PASSING.most_enumerated_forwards


def enumerate_ring(
    passing: WeightPassingProblem,
    best_us: int | None,
    options: SolveOptions,
    limit_s: float,
    should_stop: Callable[[], bool] = lambda: False,
) -> ExactProof:
    """Look for a schedule below a makespan, or prove that there is none.

    Args:
        passing: the problem, on a ring; `is_enumerable`.
        best_us: a makespan that is known; None: none is.
        options: what the limit counts.
        limit_s: seconds of the clock, or deterministic ones.
        should_stop: polled; the search ends soon after it returns True.
    """
    search = Enumeration(passing, best_us)
    began_s = time.monotonic()

    def spent_s() -> float:
        if options.deterministic:
            ops = search.num_evaluations * passing.problem.num_ops
            return WEIGHT_PASSING.evaluation_s_per_op * ops
        return time.monotonic() - began_s

    every = [[*_programs(passing, rank)] for rank in range(passing.num_ranks)]
    is_complete = True
    for programs in product(*every):
        if should_stop() or spent_s() >= limit_s:
            is_complete = False
            break
        search.take(programs)
    bound_us = search.best_us or 0 if is_complete else 0
    return ExactProof(bound_us, search.best, is_complete, spent_s())


def _programs(passing: WeightPassingProblem, rank: int) -> Iterator[Program]:
    for ops in RankPrograms(passing, rank).all():
        yield tuple(of_rank(passing, rank, ops))


class Enumeration:
    """The best schedule so far of those that were enumerated."""

    def __init__(self, passing: WeightPassingProblem, best_us: int | None) -> None:
        self.passing, self.best_us = passing, best_us
        self.best: Schedule | None = None
        self.num_evaluations = 0

    def take(self, programs: Sequence[Program]) -> None:
        """Evaluate programs with the bufferings that may be best."""
        longest = max(map(len, programs))
        lowered = self._lowered(programs, Buffering(longest, longest))
        if lowered is None or not self._is_better(lowered):
            return
        if self._fits(lowered):
            self._keep(lowered)
            return
        least = self._lowered(programs, Buffering(0, 0))
        if least is None or not self._fits(least):
            return
        behind = longest
        for ahead in range(longest + 1):
            while behind >= 0:
                lowered = self._lowered(programs, Buffering(ahead, behind))
                if lowered is not None and self._fits(lowered):
                    break
                behind -= 1
            else:
                return  # more is received ahead, and nothing fits any more
            if self._is_better(lowered):
                self._keep(lowered)

    def _lowered(self, programs: Sequence[Program], buffering: Buffering) -> Lowered | None:
        problem, self.num_evaluations = self.passing.problem, self.num_evaluations + 1
        schedule = Schedule(
            problem.placement,
            problem.num_micro_batches,
            tuple(programs),
            f"synth {self.passing.movement}",
            buffering,
            weights=self.passing.flow(),
        )
        try:
            lowered = lower_checked(schedule, problem.costs)
        except ScheduleError:
            return None
        return lowered if passes_from_rank_to_rank(lowered) else None

    def _fits(self, lowered: Lowered) -> bool:
        return not exceeds_caps(peak_bytes(lowered), self.passing.problem.caps_bytes)

    def _is_better(self, lowered: Lowered) -> bool:
        us = _makespan_us(lowered)
        return us is not None and (self.best_us is None or us < self.best_us)

    def _keep(self, lowered: Lowered) -> None:
        self.best, self.best_us = lowered.schedule, _makespan_us(lowered)


def _makespan_us(lowered: Lowered) -> int | None:
    """Return the makespan; None: a deadlock."""
    try:
        return check_deadlock(lowered).makespan_us
    except ScheduleError:
        return None
