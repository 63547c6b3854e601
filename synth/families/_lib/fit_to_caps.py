"""Generators that limit the activations between F and W, called with ever lower limits.

Such a generator counts the activations that a rank holds (`activations.py`). The memory of sends,
receives and running ops follows from the schedule that it makes, and is subtracted from its limits
for the next attempt.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from synth.errors import SynthError
from synth.families._lib.activations import peak_activation_bytes
from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Programs, Setting
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Schedule
from synth.schedule.rank_memory import peak_bytes


class Attempt(NamedTuple):
    """The programs of a generator, and the bytes by which each rank exceeds its memory limit."""

    programs: Programs
    over_bytes: tuple[int, ...]

    @property
    def fits(self) -> bool:
        """True if all memory limits are kept."""
        return not any(self.over_bytes)


def left_bytes(setting: Setting) -> list[int]:
    """The bytes of each rank's memory limit that static bytes leave; there must be limits."""
    if setting.caps_bytes is None:
        raise ValueError("the setting has no memory limits")
    return [
        cap - setting.costs.static_bytes([stage for stage, _ in held])
        for cap, held in zip(setting.caps_bytes, setting.placement.held, strict=True)
    ]


def within_caps(
    setting: Setting,
    make: Callable[[Sequence[int]], Programs],
    first_bytes: Sequence[int],
    least_bytes: Sequence[int],
    most_attempts: int,
) -> Iterator[Attempt]:
    """Call a generator with ever lower limits until its programs keep the memory limits.

    It is called at least once, and the last attempt may keep the limits or not.

    Args:
        setting: with memory limits, of a family that is `patient`.
        make: the generator, called with the limit of each rank in the sense of `activation_bytes`.
        least_bytes: the lowest limits that the generator can work with.
        most_attempts: the largest number of calls.

    Raises:
        SynthError: the generator makes nothing at the first limits.
    """
    left, limits = left_bytes(setting), list(first_bytes)
    for _ in range(most_attempts):
        try:
            programs = tuple(tuple(program) for program in make(limits))
        except SynthError:
            if limits == list(first_bytes):
                raise
            return  # its message is about limits that the user did not give
        over = over_bytes(setting, programs)
        yield Attempt(programs, over)
        peaks = (peak_activation_bytes(setting.costs, program) for program in programs)
        lowered = [
            max(need, min(limit, room, held - excess if excess else limit))
            for need, limit, room, held, excess in zip(
                least_bytes, limits, left, peaks, over, strict=True
            )
        ]
        if not any(over) or lowered == limits:
            return
        limits = lowered


def over_bytes(setting: Setting, programs: Programs) -> tuple[int, ...]:
    """The bytes by which each rank exceeds its memory limit; there must be limits.

    They are counted with the default buffering and, if all ranks fit, with the `patient` one.
    """
    caps = setting.caps_bytes
    if caps is None:
        raise ValueError("the setting has no memory limits")
    ordered = tuple(tuple(program) for program in programs)
    made = Schedule(setting.placement, setting.num_micro_batches, ordered, "")

    def over(schedule: Schedule) -> tuple[int, ...]:
        peaks = peak_bytes(lower(schedule, setting.costs))
        return tuple(max(0, peak - cap) for peak, cap in zip(peaks, caps, strict=True))

    with_few = over(made)
    return with_few if any(with_few) else over(replace(made, buffering=patient(setting, made)))
