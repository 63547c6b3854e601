"""The table of published schedules beside the one found, on the same costs."""

from collections.abc import Callable, Sequence

from synth.objective import Objective
from synth.profile.throughput import Throughput
from synth.report.text.tables import fitted_table, milliseconds, size_unit
from synth.solver.result import Baseline

# The columns that a narrow window leaves out, in this order.
_SPARE = ("on rank", "period", "tokens", "samples", "MFU")


def baselines_table(
    baselines: Sequence[Baseline],
    objective: Objective,
    over_ideal: Callable[[Baseline], float],
    speed: Callable[[Baseline], Throughput],
    width: int | None = None,
    *,
    has_cap: bool = True,
) -> str:
    """Return a row per schedule, in the order given; rates and speed are of the objective.

    Args:
        over_ideal: returns the overhead of a schedule.
        speed: returns its throughput.
        width: the width of the window in characters; None: all columns are shown.
        has_cap: there is a memory limit, which the schedules keep or exceed.
    """
    factor, unit = size_unit(max(max(one.peak_bytes) for one in baselines))
    speeds = [speed(one) for one in baselines]
    has_mfu = any(each.mfu is not None for each in speeds)
    header = ["schedule", "makespan\nms", "period\nms", "over ideal\n%"]
    header += [f"mean idle\n% of {objective.words}", *(["MFU\n%"] if has_mfu else [])]
    header += [f"peak memory\n{unit}", "on rank", "fits", f"{speeds[0].unit}\nper s"]
    rows = []
    for one, each in zip(baselines, speeds, strict=True):
        peak = max(one.peak_bytes)
        rows.append(
            [
                one.name,
                milliseconds(one.makespan_us),
                milliseconds(one.period_us),
                f"{100 * over_ideal(one):.2f}",
                f"{100 * objective.bubble_rate(one, one.mean_work_us):.2f}",
                *([each.mfu_cell()] if has_mfu else []),
                f"{peak / factor:,.{3 if factor > 1 else 0}f}",
                str(one.peak_bytes.index(peak)),
                ("yes" if one.fits else "no") if has_cap else "n/a",
                each.cell,
            ]
        )
    return fitted_table(header, rows, width, _SPARE)
