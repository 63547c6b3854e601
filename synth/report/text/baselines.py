"""Table of baselines: the published schedules beside the one found, on the same costs."""

from collections.abc import Sequence
from dataclasses import dataclass

from synth.objective import Objective
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
    tokens_per_s: float | None = None


# The columns that a narrow window leaves out, in this order: rank of the peak, period, tokens.
_SPARE = (6, 2, 8)


def baselines_table(
    contenders: Sequence[Contender],
    objective: Objective,
    unit_of_speed: str = "tokens",
    width: int | None = None,
) -> str:
    """Return a row per schedule, in the order given; rates and speed are of the objective.

    Args:
        contenders: the schedules.
        objective: the time that the rates are shares of.
        unit_of_speed: tokens or samples.
        width: of the window in characters; None: all columns are shown.
    """
    factor, unit = size_unit(max(max(c.peak_bytes) for c in contenders))
    decimals = 3 if factor > 1 else 0
    header = ["schedule", "makespan\nms", "period\nms", f"bubble rate\n% of {objective.words}"]
    header += ["mean idle\n%", f"peak memory\n{unit}", "on rank", "fits"]
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
                f"{peak / factor:,.{decimals}f}",
                str(contender.peak_bytes.index(peak)),
                {True: "yes", False: "no", None: "n/a"}[contender.fits],
                "n/a" if contender.tokens_per_s is None else f"{contender.tokens_per_s:,.0f}",
            ]
        )
    header.append(f"{unit_of_speed}\nper s")
    return fitted_table(header, rows, width, _SPARE)
