"""The table of a plan's ranks."""

from synth.report.text.tables import layer_range, milliseconds, recomputed_places, size_unit, table
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.schedule.rank_memory import static_bytes
from synth.schedule.simulate import Timeline


def plan_table(plan: Plan, lowered: Lowered, timeline: Timeline) -> str:
    """Return a row per rank of a checked plan: stages, layers, work, idle time and memory.

    Idle time is relative to the makespan. Limits and recomputed layers have columns if there are
    any.
    """
    peaks, caps, again = plan.claim.peak_bytes, plan.caps_bytes, plan.recomputation
    factor, unit = size_unit(max(peaks))
    header = ["rank", "stage", "layers", "work\nms", "idle\nms", f"static\n{unit}"]
    header.append(f"peak\n{unit}")
    if caps is not None:
        header += [f"limit\n{unit}", f"headroom\n{unit}"]
    if again:
        header.append("recomputed\nlayers")
    rows = []
    for rank, peak in enumerate(peaks):
        held = lowered.schedule.placement.held[rank]
        layers = [plan.layers_of(stage) for stage, _ in held]
        work_us, sizes = timeline.work_us[rank], [static_bytes(lowered, rank), peak]
        if caps is not None:
            sizes += [caps[rank], caps[rank] - peak]
        rows.append(
            [
                str(rank),
                ", ".join(f"{stage}@{copy}" if copy else str(stage) for stage, copy in held),
                ", ".join(map(layer_range, layers)),
                milliseconds(work_us),
                milliseconds(timeline.makespan_us - work_us),
                *(f"{size / factor:,.3f}" if factor > 1 else f"{size:,.0f}" for size in sizes),
            ]
        )
        if again:
            own = {index for run in layers for index in run}
            rows[-1].append(recomputed_places(again.within(own)))
    return table(header, rows)
