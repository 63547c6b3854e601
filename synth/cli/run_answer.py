"""What `synth run` answers: the losses, the measurement beside the plan, and the same as JSON."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from synth.cli.output import Format, answer, talk
from synth.errors import RunFailure
from synth.record import write_atomically

if TYPE_CHECKING:
    from synth.report.comparison import Comparison
    from synth.runtime.rank_result import RankResult
    from synth.schedule.file import Plan
    from synth.schedule.lower import Lowered


def report(
    plan: "Plan",
    lowered: "Lowered",
    results: "list[RankResult]",
    output: Path | None,
    output_format: Format,
    width: int | None,
) -> None:
    """Write the run's figures to `output`, and answer with them as text or JSON.

    Raises:
        RunFailure: all went well but the last checkpoint.
    """
    if results[0].remark is not None:
        talk(results[0].remark)
    _show(plan, lowered, results, output, output_format, width)
    failed = results[0].failed_checkpoint
    if failed is not None:
        raise RunFailure(
            f"training ended, but its last checkpoint, of step {failed}, could not be written"
        )


def _show(
    plan: "Plan",
    lowered: "Lowered",
    results: "list[RankResult]",
    output: Path | None,
    output_format: Format,
    width: int | None,
) -> None:
    from synth.report.comparison import align, compare, comparison_text, shared_plan
    from synth.report.gantt import render

    timed = len(results[0].spans)
    steps = [
        align([r.zero_ns[i] for r in results], [r.spans[i] for r in results]) for i in range(timed)
    ]
    programs = results[0].program_seconds
    seconds = programs[-timed:] if timed else programs
    found = compare(
        plan,
        lowered,
        [s * 1e6 for s in seconds],
        steps,
        [r.peak_bytes for r in results],
        results[0].processors,
    )
    record = _as_json(plan, results, found)
    if output is not None:
        write_atomically(output, record)
    if output_format == Format.JSON:
        answer(record.rstrip())
        return
    answer(_loss_curve(results[0].losses, results[0].first_step))
    if timed:
        middle = sorted(range(timed), key=seconds.__getitem__)[timed // 2]
        planned = shared_plan(lowered, found.processors)
        answer(render(planned, measured=steps[middle], width=width) + "\n")
        answer(comparison_text(found))
    else:
        talk("no step was timed: the first two warm up and measure memory; give --steps 3 or more")
    if output is not None:
        talk(f"written: {output}")


def _as_json(plan: "Plan", results: "list[RankResult]", found: "Comparison") -> str:
    body = {
        "format": "synth-run",
        "schema_version": 1,
        "plan": plan.name,
        "profile": plan.profile_name,
        "devices": [r.device for r in results],
        "first_step": results[0].first_step,
        "losses": results[0].losses,
        "step_seconds": results[0].step_seconds,
        "static_bytes": [r.static_bytes for r in results],
        "comparison": found.model_dump(mode="json"),
    }
    return json.dumps(body, indent=1) + "\n"


def _loss_curve(losses: list[float], first_step: int, columns: int = 60) -> str:
    """The loss as a line of eighths, first and last value beside it."""
    if not losses:
        return f"no step was left to train after step {first_step}\n"
    bars = "▁▂▃▄▅▆▇█"
    low, high = min(losses), max(losses)
    picked = [losses[i * len(losses) // columns] for i in range(columns)]
    shown = picked if len(losses) > columns else losses
    line = "".join(bars[round((x - low) / (high - low or 1) * 7)] for x in shown)
    return f"loss {losses[0]:.4f} {line} {losses[-1]:.4f} after {first_step + len(losses)} steps\n"
