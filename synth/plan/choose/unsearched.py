"""Published schedules on placements that a search leaves out, to say what they would gain."""

from collections.abc import Sequence
from typing import NamedTuple

from synth.plan.choose.candidates import Candidate
from synth.plan.choose.published import JudgedSchedules, Pass
from synth.plan.tuning import JUDGING


class UnsearchedSchedule(NamedTuple):
    """A published schedule that fits, and the name of its placement."""

    name: str
    placement: str
    value_us: int


def best_unsearched(candidates: Sequence[Candidate]) -> UnsearchedSchedule | None:
    """Return the best published schedule that fits on placements that are not searched.

    Families that read no times are judged, up to a number of ops that takes a fraction of a second.
    None: none fits, or the schedules are too large.
    """
    left_ops, best = JUDGING.unsearched_most_ops, None
    for candidate in candidates:
        problem = candidate.problem

        def charge(schedules: int = 1, num_ops: int = problem.num_ops) -> bool:
            nonlocal left_ops
            left_ops -= schedules * num_ops
            return left_ops < 0

        judged = JudgedSchedules(problem, ())
        judged.run(Pass.UNTIMED, charge)
        found = judged.best
        if found is not None and (best is None or found.value_us < best.value_us):
            best = UnsearchedSchedule(found.found_by, candidate.name, found.value_us)
    return best
