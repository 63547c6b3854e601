"""The work of `synth rehearse`."""

import os
from typing import TYPE_CHECKING

from synth.cli.answer.output import Format, answer, talk
from synth.cli.progress.line import current_line
from synth.cli.read.own_model import check_policies, read_inputs, read_model
from synth.cli.read.plans import check_runnable, load_checked
from synth.cli.rehearse import RehearseRequest
from synth.profile.throughput import throughput
from synth.records.safe_write import write_atomically
from synth.report.explain.rehearsal import (
    RehearsedRank,
    rehearsal_text,
    rehearsed_run,
    steps_text,
    waited_us,
)
from synth.report.explain.run_against_plan import RunComparison, compare, shared_timeline
from synth.report.run_file import RunFile
from synth.report.text.gantt import render
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.schedule.measured.execution_trace import planned_spans

if TYPE_CHECKING:
    from synth.runtime.rank_result import RankResult


def work(request: RehearseRequest) -> None:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from synth.runtime.rehearsal import rehearse
    from synth.runtime.world import pick_device

    request.check_files(request.plan, request.rehearsal.data)
    checked, lowered, _ = load_checked(request.plan)
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


_LABEL = (
    "REHEARSED: one rank at a time, with real modules, kernels and memory. What other ranks would "
    "send is\nrandom and {arrives}; the iteration is simulated with the measured times.\n"
)
_AT_ONCE = "there at once"
_AS_PLANNED = "its arrival EMULATED, as planned"


def report_rehearsal(
    plan: Plan, lowered: Lowered, results: "dict[int, RankResult]", wanted: RehearseRequest
) -> None:
    """Write the figures to a file, and answer as text or JSON."""
    arrivals = wanted.rehearsal.planned_arrivals
    ranks = {rank: _measured(result, arrivals) for rank, result in results.items()}
    late = any(result.late for result in results.values())
    run = rehearsed_run(plan, lowered, ranks, late=late)
    found = compare(plan, lowered, run)
    record = _as_json(plan, results, ranks, found)
    if wanted.output is not None:
        write_atomically(wanted.output, record)
    if wanted.format == Format.JSON:
        answer(record.rstrip())
        return
    answer(_LABEL.format(arrives=_AS_PLANNED if arrivals else _AT_ONCE))
    planned = planned_spans(shared_timeline(lowered, plan.num_ranks, late=late))
    chart = render(
        planned, measured=run.executions[0].ops, measured_as="rehearsed", width=wanted.width
    )
    answer(f"{chart}\n")
    answer(rehearsal_text(plan, found, ranks))
    if arrivals:
        answer(f"\n{steps_text(lowered, ranks, late=late)}")
    if wanted.output is not None:
        talk(f"written: {wanted.output}")


def _measured(result: "RankResult", arrivals: bool) -> RehearsedRank:
    return RehearsedRank(
        [seen.log.ops for seen in result.traced],
        result.peak_bytes,
        result.extra_bytes,
        result.reserved_bytes,
        waited_us(result.rank, [seen.log.waits for seen in result.traced]) if arrivals else None,
    )


def _as_json(
    plan: Plan,
    results: "dict[int, RankResult]",
    ranks: dict[int, RehearsedRank],
    found: RunComparison,
) -> str:
    by_rank = [results.get(rank) for rank in range(plan.num_ranks)]
    reserved = tuple(one and one.reserved_bytes for one in by_rank)
    waited = tuple(ranks[rank].waited_us if rank in ranks else None for rank in range(len(by_rank)))
    speed = throughput(1e6 / found.measured_us, plan.num_micro_batches, plan.num_ranks, plan)
    return RunFile(
        plan=plan.name,
        profile=plan.profile_name,
        conditions=plan.conditions,
        data_parallel=1,
        rehearsed=True,
        devices=tuple(one and one.device for one in by_rank),
        first_step=0,
        losses=(),
        step_seconds=(),
        tokens_per_second=speed.per_s,
        mfu=speed.mfu,
        static_bytes=tuple(one and one.static_bytes for one in by_rank),
        reserved_bytes=reserved if any(reserved) else None,
        waited_us=None if all(us is None for us in waited) else waited,
        comparison=found,
    ).to_json()
