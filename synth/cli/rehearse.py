"""`synth rehearse`: the ranks of a plan one after the other, on the one device at hand."""

import os
from pathlib import Path
from typing import Annotated

import typer

from synth.cli.answer.output import talk
from synth.cli.answer.rehearse import report_rehearsal
from synth.cli.progress.line import current_line
from synth.cli.read.own_model import read_inputs, read_model
from synth.cli.read.plans import load_checked
from synth.cli.read.rehearse_request import RehearseRequest
from synth.cli.run import check_runnable
from synth.records.overwrite_guard import RUN, check_replaceable
from synth.records.record import check_outputs


def command(
    plan: Annotated[Path, typer.Argument(help="Plan file of `synth solve`.")],
    request: RehearseRequest,
) -> None:
    """Try PLAN, for any number of devices, on one: each rank alone for a few steps.

    Memory is measured as in a run, and the plan simulated again with the measured times.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from synth.runtime.rehearsal import rehearse
    from synth.runtime.world import pick_device

    check_outputs(request.output, inputs=[plan, request.rehearsal.data])
    check_replaceable(request.output, RUN, "-o", request.force)
    checked, lowered, _ = load_checked(plan)
    check_runnable(checked)
    options = request.rehearsal.of_training()
    options = options.replace(
        inputs=read_inputs(checked.workload, options, request.trust),
        model=read_model(checked.workload, options.model, request.trust),
    )
    device = pick_device(options.device)
    current_line().stop()  # a line for each rank follows
    results = rehearse(
        checked,
        lowered,
        options,
        device,
        ranks=request.rehearsal.ranks,
        planned_arrivals=request.rehearsal.planned_arrivals,
        on_rank=lambda rank: talk(f"rank {rank} of {checked.num_ranks} on {device}"),
    )
    report_rehearsal(checked, lowered, results, request)
