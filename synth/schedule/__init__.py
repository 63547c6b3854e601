"""Schedules: ops, placement, file format, lowering, verification, simulation."""

from synth.schedule.lowering.lower import Lowered, lower
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import MemoryUsage, peak_bytes
from synth.schedule.simulate import Timeline, simulate
from synth.schedule.verify import ScheduleError, verify

__all__ = [
    "Buffering",
    "Lowered",
    "MemoryUsage",
    "Op",
    "Placement",
    "Schedule",
    "ScheduleError",
    "Timeline",
    "lower",
    "peak_bytes",
    "simulate",
    "verify",
]
