"""How far ahead to receive and how late to wait for a send, where the default costs time.

Buffers are bounded (`Buffering`), so a rank may wait until its successor has posted a receive.
With the default every handcrafted linear schedule keeps its time; schedules whose neighbours are
far apart in what they run next may lose time with it, or wait for each other for ever.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from synth.families._lib.family import Setting
from synth.schedule.lowering.lower import lower
from synth.schedule.memory import peak_bytes
from synth.schedule.model import Buffering, Schedule
from synth.schedule.simulate import DeadlockError, simulate


def patient(setting: Setting, schedule: Schedule) -> Buffering:
    """The smallest buffering of a doubling row with which nobody waits for room in a buffer.

    With caps: of those within the caps, if there are any, the first with the least time.
    """
    most = unlimited(schedule)
    fastest = outcome_of(setting, schedule, most)
    if fastest is None:
        raise RuntimeError("a family made programs that deadlock")
    best, found = fastest, most
    for buffering in takewhile(lambda row: row.receive_ahead < most.receive_ahead, _row()):
        outcome = outcome_of(setting, schedule, buffering)
        if outcome is not None and (outcome < best or (outcome == best and found == most)):
            best, found = outcome, buffering
        if found != most and best.without_waiting(fastest):
            break
    return found


class BufferingOutcome(NamedTuple):
    """How a schedule does with a buffering; less is better."""

    exceeds_caps: bool
    period_us: int
    makespan_us: int

    def without_waiting(self, fastest: "BufferingOutcome") -> bool:
        """Whether this fits, and takes no longer than without a limit on buffers."""
        return not self.exceeds_caps and self[1:] <= fastest[1:]


def _row() -> Iterator[Buffering]:
    """(1, 2), (1, 4), (2, 4), (2, 8), (4, 8) …: later waits before earlier receives."""
    buffering = Buffering()
    while True:
        yield buffering
        buffering = replace(buffering, send_behind=2 * buffering.send_behind)
        yield buffering
        buffering = replace(buffering, receive_ahead=2 * buffering.receive_ahead)


def unlimited(schedule: Schedule) -> Buffering:
    """The buffering with which nobody ever waits for room in a buffer."""
    longest = max(len(program) for program in schedule.programs)
    return Buffering(longest, longest)


def outcome_of(
    setting: Setting, schedule: Schedule, buffering: Buffering
) -> BufferingOutcome | None:
    """Simulate; none where the ranks wait for each other."""
    lowered = lower(replace(schedule, buffering=buffering), setting.costs)
    try:
        line = simulate(lowered)
    except DeadlockError:
        return None
    caps = setting.caps_bytes
    exceeds = caps is not None and any(
        peak > cap for peak, cap in zip(peak_bytes(lowered), caps, strict=True)
    )
    return BufferingOutcome(exceeds, line.period_us, line.makespan_us)
