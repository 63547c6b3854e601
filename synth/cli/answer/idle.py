"""Why the bubble rate and the mean idle share of a plan differ."""

from synth.cli.answer.output import percent, wrapped
from synth.objective import Objective
from synth.schedule.simulate import Timeline


def idle_line(timeline: Timeline, objective: Objective) -> list[str]:
    """Say why bubble rate and mean idle share differ, in one line; none if they are equal."""
    work_us = timeline.work_us
    rates = (objective.bubble_rate(timeline, us) for us in (max(work_us), timeline.mean_work_us))
    if len(set(map(percent, rates))) == 1:
        return []
    return [
        wrapped(
            f"(the bubble rate is the idle share of rank {work_us.index(max(work_us))}, which has "
            f"the most work; mean idle is that of all ranks, and others have less work)"
        )
    ]
