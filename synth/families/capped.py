"""Rules that limit what lies between F and W, at limits low enough for all that a rank holds.

Such a rule counts what is kept (`kept.py`). Sends, receives and what ops need while they run follow
from the schedule that it makes, and are taken off its limits for the next attempt.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from synth.families.family import Programs, Setting
from synth.schedule.lower import lower
from synth.schedule.memory import peak_bytes
from synth.schedule.model import Schedule
from synth.schedule.ops import Op

ATTEMPTS = 6


class Attempt(NamedTuple):
    """Programs of a rule, and by how much each rank exceeds its cap."""

    programs: Programs
    over_bytes: tuple[int, ...]

    @property
    def fits(self) -> bool:
        """Whether all caps are kept."""
        return not any(self.over_bytes)


def attempts(
    setting: Setting,
    make: Callable[[Sequence[int]], Programs],
    own_bytes: Sequence[int] | None = None,
    least_bytes: Sequence[int] | None = None,
) -> Iterator[Attempt]:
    """What a rule makes, one at least, at ever lower limits until it keeps the setting's caps.

    Args:
        setting: with caps.
        make: the rule, given the limit of each rank in the sense of `kept_bytes`.
        own_bytes: the limits that the rule is published with, which come first; none: it is made to
            caps, and begins with what static bytes leave of them.
        least_bytes: what it needs at least.
    """
    caps = setting.caps_bytes
    assert caps is not None
    left = _left_bytes(setting, caps)
    limits = list(own_bytes or left)
    least = list(least_bytes or [0] * setting.num_ranks)
    is_hopeless = any(need > room for need, room in zip(least, left, strict=True))
    for _ in range(ATTEMPTS):
        programs = tuple(tuple(program) for program in make(limits))
        over = _over_bytes(setting, caps, programs)
        yield Attempt(programs, over)
        ranks = zip(limits, over, left, least, strict=True)
        lowered = [
            max(min(limit - excess, room), need) if excess else limit
            for limit, excess, room, need in ranks
        ]
        if is_hopeless or lowered == limits:
            return
        limits = lowered


def _left_bytes(setting: Setting, caps_bytes: Sequence[int]) -> list[int]:
    """What static bytes leave of each rank's cap."""
    held, stages = setting.placement.held, setting.costs.stages
    return [
        cap - sum(stages[stage].static_bytes for stage, _ in chunks)
        for cap, chunks in zip(caps_bytes, held, strict=True)
    ]


def _over_bytes(
    setting: Setting, caps_bytes: Sequence[int], programs: tuple[tuple[Op, ...], ...]
) -> tuple[int, ...]:
    made = Schedule(setting.placement, setting.num_micro_batches, programs, "")
    peaks = peak_bytes(lower(made, setting.costs))
    return tuple(max(0, peak - cap) for peak, cap in zip(peaks, caps_bytes, strict=True))
