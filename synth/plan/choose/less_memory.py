"""The same candidate under less memory, whose schedules fit as well.

A search may find less with more memory: greedy schedules fill it, and other partitions look best.
So a part of the time goes to the next limit of a row that does not depend on the limit given, and
what is found there is a start of the search under the given limit. All limits between two of the
row have the same one, and the search there is that of a smaller limit.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from synth.plan.choose.candidates import Candidate, Trial
from synth.plan.choose.race_state import RaceState
from synth.plan.tuning import RACE
from synth.schedule.rank_memory import exceeds_caps
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.result import Result


def less_memory_trial(race: RaceState, solve: Callable[[Candidate], Result]) -> Trial | None:
    """Return a trial that has a result under the lower limit; None unless it is the best of all.

    Args:
        race: the race under the given limits; its best trial says which placement is tried.
        solve: the search under the lower limit. It is not called if nothing better is possible.
    """
    best = race.best
    if best is None or not race.can_win(best):
        return None
    lower = _within_less(next(one for one in race.candidates if one.name == best.name))
    if lower is None:
        return None
    found = solve(lower)
    if found.schedule is None or found.found_by is None:
        return None
    caps = best.candidate.problem.caps_bytes
    problem = replace(found.problem, caps_bytes=caps, partition_is_best=False)
    evaluated = evaluate(problem, found.schedule, found.found_by)
    if evaluated is None or (race.best_us is not None and evaluated.value_us >= race.best_us):
        return None
    return race.new_beside(best, problem, evaluated)


def fits_less_memory(race: RaceState) -> bool:
    """Return True if the best schedule fits the lower limit as well: memory hardly binds."""
    best = race.best
    if best is None or best.found is None:
        return False
    lower = _within_less(next(one for one in race.candidates if one.name == best.name))
    peaks = best.found.peak_bytes
    if lower is None or peaks is None:
        return False
    return not exceeds_caps(peaks, lower.problem.caps_bytes)


def _within_less(candidate: Candidate) -> Candidate | None:
    """Return a candidate under the next lower limit of the row; None: it has no limit.

    The row is of the largest limit of a rank; the others keep their ratios to it.
    """
    caps = candidate.problem.caps_bytes
    if caps is None or max(caps) <= 0:
        return None
    most = RACE.less_memory_most_share * max(caps)
    step = math.floor(math.log(most, RACE.less_memory_ratio))
    share = RACE.less_memory_ratio**step / max(caps)
    lower = tuple(round(share * cap) for cap in caps)
    return candidate.on(replace(candidate.problem, caps_bytes=lower))
