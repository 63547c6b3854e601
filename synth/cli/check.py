"""`synth check`: prove a schedule file fit to run, independently of who made it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.output import Format, FormatOption, answer, answer_json
from synth.report.tables import facts
from synth.units import format_bytes_both

if TYPE_CHECKING:
    from synth.schedule.file import Plan
    from synth.schedule.lower import Lowered
    from synth.schedule.simulate import Timeline


def command(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="A schedule file.")],
    format: FormatOption = Format.TEXT,
) -> None:
    """Verify a schedule: complete, ordered, free of deadlock, within its caps, and as claimed.

    Exits with 5 and names the op if it is not.
    """
    from synth.schedule.file import Plan
    from synth.schedule.verify import ScheduleError

    plan = Plan.load(plan_path)
    try:
        lowered, timeline = plan.check()
    except ScheduleError as error:
        if format == Format.JSON:
            answer_json({"valid": False, "plan": plan.name, "message": str(error)})
        raise
    proven = findings(plan, lowered, timeline)
    if format == Format.JSON:
        answer_json({"valid": True, "plan": plan.name, "proven": proven})
    else:
        answer(f"{plan_path} is valid\n{facts(proven)}")


def findings(plan: "Plan", lowered: "Lowered", timeline: "Timeline") -> dict[str, str]:
    """What a check that did not raise has proven, and what it has not."""
    num_ops = sum(map(len, lowered.ops))
    claim = plan.claim
    return {
        "complete": f"{num_ops} ops; each of {plan.num_micro_batches} micro-batches passes each of "
        f"{len(plan.partition)} stages once",
        "ordered": "no op stands before one whose result it reads",
        "free of deadlock": f"{len(lowered.transfers)} transfers, in order on each link",
        "memory": _closest_call(plan),
        "as claimed": f"makespan {timeline.makespan_us} µs, period {timeline.period_us} µs, "
        "and every rank's peak",
        "not proven here": f"the lower bound, {claim.lower_bound_us} µs of {claim.judged_by.words} "
        f"for {claim.bound_holds_for.words}",
    }


def _closest_call(plan: "Plan") -> str:
    peaks, caps = plan.claim.peak_bytes, plan.caps_bytes
    if caps is None:
        rank = max(range(len(peaks)), key=lambda r: peaks[r])
        return f"no cap given; the highest peak is {format_bytes_both(peaks[rank])} on rank {rank}"
    rank = min(range(len(peaks)), key=lambda r: caps[r] - peaks[r])
    return (
        f"every rank keeps its cap; the closest is rank {rank} with "
        f"{format_bytes_both(peaks[rank])} of {format_bytes_both(caps[rank])}"
    )
