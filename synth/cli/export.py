"""`synth export`: a schedule in the format of another runtime."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from synth.cli.answer.output import answer, talk
from synth.cli.read.options import ForceOption
from synth.cli.read.plans import load_checked


class ExportFormat(StrEnum):
    """Format of the exported file."""

    TORCH = "torch"


def command(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file.")],
    to: Annotated[
        ExportFormat, typer.Option(help="Format. torch: CSV for torch.distributed.pipelining.")
    ] = ExportFormat.TORCH,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; stdout by default.")
    ] = None,
    force: ForceOption = False,
) -> None:
    """Write a schedule for another runtime; `synth import` reads it again.

    The file is verified first. For torch, load it with `_PipelineScheduleRuntime._load_csv`.
    """
    from synth.interop.torch_csv import to_torch_csv
    from synth.overwrite_guard import TORCH_CSV, check_replaceable
    from synth.record import check_outputs, write_atomically
    from synth.report.text.tables import places

    check_outputs(output, inputs=[plan_path])
    check_replaceable(output, TORCH_CSV, "-o", force)
    plan, _, _ = load_checked(plan_path)
    text = to_torch_csv(plan.schedule())
    if plan.recomputed_layers:
        talk(
            f"note: {plan_path} recomputes layers {places(plan.recomputed_layers)}, which the "
            f"format does not say; checkpoint them in the model, or it takes more memory than here"
        )
    if output is None:
        answer(text.removesuffix("\n"))
        return
    write_atomically(output, text)
    talk(
        f"{output}: {plan.num_ranks} ranks, {len(plan.partition)} stages, "
        f"{plan.num_micro_batches} micro-batches, for {to}"
    )
