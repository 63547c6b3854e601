"""The table of a plan's ranks."""

from synth.report.text.tables import rank_table
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.schedule.simulate import Timeline


def plan_table(plan: Plan, lowered: Lowered, timeline: Timeline) -> str:
    """Return the table of ranks of a checked plan; idle time is relative to the makespan."""
    ranges = [plan.layers_of(stage) for stage in range(len(plan.partition))]
    return rank_table(
        lowered, timeline, ranges, plan.caps_bytes, plan.claim.peak_bytes, plan.recomputation
    )
