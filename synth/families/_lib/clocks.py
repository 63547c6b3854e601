"""The times of an order of ops, by which its moves of saved activations are placed."""

from typing import NamedTuple

from synth.families._lib.family import Setting
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Schedule
from synth.schedule.simulate import simulate


class RankTimes(NamedTuple):
    """The starts and ends of a rank's ops."""

    starts_us: list[int]
    ends_us: list[int]


def clocks(setting: Setting, schedule: Schedule) -> list[RankTimes]:
    """Simulate a schedule on the costs of a setting; return the times of each rank."""
    lowered = lower(schedule, setting.costs)
    line, first = simulate(lowered), lowered.first_node
    spans = [
        slice(first[rank], first[rank] + len(program))
        for rank, program in enumerate(schedule.programs)
    ]
    return [RankTimes(line.start_us[span], line.end_us[span]) for span in spans]
