"""The work of `synth run`."""

from pathlib import Path
from typing import TYPE_CHECKING

from synth.cli.answer.output import is_first_process, warn_of
from synth.cli.answer.run import report
from synth.cli.progress.line import current_line
from synth.cli.read.own_model import check_policies, read_inputs, read_model
from synth.cli.read.plans import check_runnable, load_checked
from synth.cli.run import RunRequest
from synth.run_options.train_options import TrainOptions
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered

if TYPE_CHECKING:
    from synth.runtime.rank_result import RankResult


def work(plan: Path, request: RunRequest) -> None:
    """Train under PLAN: launch one process per rank, or run as a worker under torchrun."""
    request.check_files(plan)
    checked, lowered, _ = load_checked(plan)
    check_runnable(checked)
    training = _with_trusted_code(checked, request)
    _check_optimizer(checked, training)
    results = _train(plan, checked, lowered, training)
    if results is not None:
        report(checked, lowered, results, request)


def _with_trusted_code(plan: Plan, request: RunRequest) -> TrainOptions:
    """Return the options with the addresses of all code that the user lets be imported."""
    training = request.training
    policies = plan.recompute_policies or ()
    check_policies(policies, request.trust)
    resolved = training.replace(
        inputs=read_inputs(plan.workload, training, request.trust),
        model=read_model(plan.workload, training.model, request.trust, policies),
    )
    resolved.check_source()
    return resolved


def _check_optimizer(plan: Plan, training: TrainOptions) -> None:
    """Refuse an optimizer, or corrections of late gradients, that do not fit the plan."""
    from synth.runtime.training.delay_hooks import check_corrections

    check_corrections(training.delay, plan, training.optimizer_of(plan.workload.optimizer))


def _train(
    path: Path, plan: Plan, lowered: Lowered, training: TrainOptions
) -> "list[RankResult] | None":
    """Return all ranks' results; None on a torchrun worker that is not the first."""
    from synth.runtime.training.data import load_tokens
    from synth.runtime.training.function_data import FunctionData
    from synth.runtime.training.launch import launch
    from synth.runtime.training.worker import work_inside_torchrun
    from synth.runtime.world import pick_device, under_torchrun

    pick_device(training.device)
    if training.data is not None:
        load_tokens(training.data, plan.workload.sequence_length)
    elif training.inputs is not None:
        FunctionData(
            training.inputs, plan.workload.micro_batch_size, training.seed, training.epochs
        )
    if is_first_process():
        warn_of(plan.conditions, f"profile {plan.profile_name} of this plan")
    current_line().stop()  # the ranks print their steps
    if under_torchrun():
        results: list[RankResult] | None = work_inside_torchrun(path, training)
    else:
        results = launch(path, plan, lowered, training)
    return results
