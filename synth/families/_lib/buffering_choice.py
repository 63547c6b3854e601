"""Chooses the buffering of a family whose default buffering costs time.

Buffers are bounded (`Buffering`), so a rank may wait until its successor has posted a receive. With
the default buffering every handcrafted linear schedule keeps its time. A schedule whose neighbours
run ops in very different orders may lose time with it, or deadlock.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from synth.families._lib.family import Setting
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Buffering, Schedule
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.simulate import DeadlockError, simulate


def patient(setting: Setting, schedule: Schedule) -> Buffering:
    """The smallest buffering of a doubling sequence with which no rank waits for a free buffer.

    With memory limits it is the first with the least time among those within the limits, if there
    are any. More buffers never take less memory: after one that exceeds a limit, all do.
    """
    return patient_outcome(setting, schedule)[0]


def patient_outcome(setting: Setting, schedule: Schedule) -> tuple[Buffering, "BufferingOutcome"]:
    """Return the buffering of `patient`, and its outcome."""
    most = unlimited(schedule)
    fastest = outcome_of(setting, schedule, most)
    if fastest is None:
        raise RuntimeError("a family made programs that deadlock")
    best, found = fastest, most
    for buffering in takewhile(lambda row: row.receive_ahead < most.receive_ahead, _row()):
        outcome = outcome_of(setting, schedule, buffering)
        if outcome is not None and (outcome < best or (outcome == best and found == most)):
            best, found = outcome, buffering
        if found == most or outcome is None:
            continue
        if best.is_as_fast_as(fastest) or (outcome.exceeds_caps and not best.exceeds_caps):
            break
    return found, best


class BufferingOutcome(NamedTuple):
    """The limits that a schedule exceeds with a buffering, and its times; less is better."""

    exceeds_caps: bool
    period_us: int
    makespan_us: int

    def is_as_fast_as(self, fastest: "BufferingOutcome") -> bool:
        """True if this takes no longer than with unlimited buffers."""
        return self[1:] <= fastest[1:]


def _row() -> Iterator[Buffering]:
    """Yield (1, 2), (1, 4), (2, 4), (2, 8), (4, 8) …: later waits before earlier receives."""
    buffering = Buffering()
    while True:
        yield buffering
        buffering = replace(buffering, send_behind=2 * buffering.send_behind)
        yield buffering
        buffering = replace(buffering, receive_ahead=2 * buffering.receive_ahead)


def unlimited(schedule: Schedule) -> Buffering:
    """The buffering with which no rank ever waits for a free buffer."""
    longest = max(len(program) for program in schedule.programs)
    return Buffering(longest, longest)


def outcome_of(
    setting: Setting, schedule: Schedule, buffering: Buffering
) -> BufferingOutcome | None:
    """Return the simulation of a buffering; None if it deadlocks. The setting keeps it."""
    key = (schedule.programs, buffering, setting.caps_bytes)
    if key not in setting.outcomes:
        setting.outcomes[key] = _simulated(setting, schedule, buffering)
    found: BufferingOutcome | None = setting.outcomes[key]
    return found


def _simulated(
    setting: Setting, schedule: Schedule, buffering: Buffering
) -> BufferingOutcome | None:
    lowered = lower(replace(schedule, buffering=buffering), setting.costs)
    try:
        line = simulate(lowered)
    except DeadlockError:
        return None
    exceeds = exceeds_caps(peak_bytes(lowered), setting.caps_bytes)
    return BufferingOutcome(exceeds, line.period_us, line.makespan_us)
