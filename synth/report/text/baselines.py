"""Table of baselines: the published schedules beside the one found, on the same costs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from synth.objective import Objective
from synth.profile.throughput import Throughput
from synth.report.text.tables import fitted_table, milliseconds, size_unit


@dataclass(frozen=True)
class Contender:
    """One schedule's figures, all simulated on the same costs.

    `work_us` is the largest work of a rank, `mean_work_us` the mean of all ranks; `fits` is None
    without a cap.
    """

    name: str
    makespan_us: int
    period_us: int
    work_us: int
    mean_work_us: float
    peak_bytes: tuple[int, ...]
    fits: bool | None
    throughput: Throughput = field(default_factory=lambda: Throughput("tokens"))


# The columns that a narrow window leaves out, in this order.
_SPARE = ("on rank", "period", "tokens", "samples", "MFU")


def baselines_table(
    contenders: Sequence[Contender], objective: Objective, width: int | None = None
) -> str:
    """Return a row per schedule, in the order given; rates and speed are of the objective.

    Args:
        objective: the time that the rates are shares of.
        width: the width of the window in characters; None: all columns are shown.
    """
    factor, unit = size_unit(max(max(c.peak_bytes) for c in contenders))
    decimals = 3 if factor > 1 else 0
    header = ["schedule", "makespan\nms", "period\nms", f"bubble rate\n% of {objective.words}"]
    has_mfu = any(contender.throughput.mfu is not None for contender in contenders)
    header += ["mean idle\n%", *(["MFU\n%"] if has_mfu else [])]
    header += [f"peak memory\n{unit}", "on rank", "fits"]
    rows = []
    for contender in contenders:
        peak = max(contender.peak_bytes)
        rows.append(
            [
                contender.name,
                milliseconds(contender.makespan_us),
                milliseconds(contender.period_us),
                f"{100 * objective.bubble_rate(contender, contender.work_us):.2f}",
                f"{100 * objective.bubble_rate(contender, contender.mean_work_us):.2f}",
                *([contender.throughput.mfu_cell()] if has_mfu else []),
                f"{peak / factor:,.{decimals}f}",
                str(contender.peak_bytes.index(peak)),
                {True: "yes", False: "no", None: "n/a"}[contender.fits],
                contender.throughput.cell,
            ]
        )
    header.append(f"{contenders[0].throughput.unit}\nper s")
    return fitted_table(header, rows, width, _SPARE)
