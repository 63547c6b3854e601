"""The work of `synth rehearse`."""

import os
from pathlib import Path

from synth.cli.answer.output import talk
from synth.cli.answer.rehearse import report_rehearsal
from synth.cli.progress.line import current_line
from synth.cli.read.own_model import check_policies, read_inputs, read_model
from synth.cli.read.plans import check_runnable, load_checked
from synth.cli.rehearse import RehearseRequest
from synth.records.overwrite_guard import RUN, check_replaceable
from synth.records.safe_write import check_outputs


def work(plan: Path, request: RehearseRequest) -> None:
    """Try PLAN, for any number of devices, on one: each rank alone for a few steps."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from synth.runtime.rehearsal import rehearse
    from synth.runtime.world import pick_device

    check_outputs(request.output, inputs=[plan, request.rehearsal.data])
    check_replaceable(request.output, RUN, "-o", request.force)
    checked, lowered, _ = load_checked(plan)
    check_runnable(checked)
    policies = checked.recompute_policies or ()
    check_policies(policies, request.trust)
    options = request.rehearsal.of_training()
    options = options.replace(
        inputs=read_inputs(checked.workload, options, request.trust),
        model=read_model(checked.workload, options.model, request.trust, policies),
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
