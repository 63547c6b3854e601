"""The commands and options with which a layout is estimated, solved and run."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from synth.errors import SynthError
from synth.estimates.layout import Recompute, Sharding
from synth.interop.megatron import megatron_parts, to_megatron
from synth.interop.recomputation import megatron_recomputation
from synth.interop.torchtitan import to_torchtitan
from synth.layouts.judged import JudgedLayout
from synth.options.layout_task import LayoutTask
from synth.plan.runtimes import Runtime

_PROFILE = "layout.json"


def commands(task: LayoutTask, judged: JudgedLayout, output: Path | None) -> Mapping[str, str]:
    """Return commands and options by what they are for.

    Args:
        task: what the layout is for.
        judged: the layout.
        output: the plan file.
    """
    found = {"estimate": _estimate(task, judged), "solve": _solve(task, judged)}
    runtime, nodes = task.question.allowed.runtime, task.given.gpus_per_node
    if nodes is not None:
        found["note"] = f"give as --device a JSON file of the device with ranks_per_node {nodes}"
    try:
        if runtime == Runtime.MEGATRON:
            found["megatron"] = " ".join(_megatron(task, judged))
        if runtime == Runtime.TORCHTITAN:
            found["torchtitan"] = _torchtitan(judged, output)
    except SynthError as error:
        found[runtime] = f"none: {error}"
    return found


def _estimate(task: LayoutTask, judged: JudgedLayout) -> str:
    given, groups = task.given, judged.layout.groups
    values: dict[str, object] = {
        "device": given.device,
        "tp": groups.tensor,
        "cp": groups.context,
        "ep": groups.expert,
        "dp": groups.data,
        "seq-len": groups.seq_len,
        "micro-batch-size": groups.micro_batch_size,
    }
    usual = {"dtype": "bf16", "sharding": Sharding.ZERO1, "recompute": Recompute.NONE}
    more: dict[str, object] = {
        "dtype": groups.precision,
        "sharding": groups.sharding,
        "recompute": groups.recompute,
    }
    values |= {name: value for name, value in more.items() if value != usual[name]}
    values["software"] = task.software
    if given.calibration is not None:
        values["calibration"] = given.calibration
    if given.optimizer != type(given).model_fields["optimizer"].default:
        values["optimizer"] = given.optimizer
    words = ["synth", "estimate", given.model]
    for name, value in values.items():
        words += [f"--{name}", str(value)]
    return shlex.join([*words, "-o", _PROFILE])


def _solve(task: LayoutTask, judged: JudgedLayout) -> str:
    layout, runtime = judged.layout, task.question.allowed.runtime
    words = ["synth", "solve", _PROFILE, "-r", layout.ranks, "-m", layout.micro_batches]
    words += ["--placement", judged.placement]
    if runtime != Runtime.SYNTH:
        words += ["--for", runtime]
    if task.given.mem_limit is not None:
        cap = task.question.cap_bytes
        words += ["--mem-limit", "none" if cap is None else f"{cap}B"]
    return shlex.join([*map(str, words), "-o", "plan.json"])


def _megatron(task: LayoutTask, judged: JudgedLayout) -> Iterator[str]:
    layout, groups, plan = judged.layout, judged.layout.groups, judged.plan
    yield f"--tensor-model-parallel-size {groups.tensor}"
    if groups.tensor > 1 and groups.sequence:
        yield "--sequence-parallel"
    if groups.context > 1:
        yield f"--context-parallel-size {groups.context}"
    if groups.expert > 1:
        yield f"--expert-model-parallel-size {groups.expert} --expert-tensor-parallel-size 1"
    if layout.ranks > 1:
        yield f"--pipeline-model-parallel-size {layout.ranks}"
        yield f"--pipeline-model-parallel-layout {shlex.quote(to_megatron(plan))}"
    yield f"--micro-batch-size {groups.micro_batch_size}"
    yield f"--global-batch-size {task.question.global_batch} --seq-length {groups.seq_len}"
    if groups.sharding is Sharding.ZERO1:
        yield "--use-distributed-optimizer"
    if groups.sharding is Sharding.FSDP:
        yield "--use-torch-fsdp2"
    if task.question.software.overlaps_gradients and groups.data > 1:
        yield "--overlap-grad-reduce"
        if groups.sharding is Sharding.ZERO1:
            yield "--overlap-param-gather"
    if plan.recomputed_layers:
        options = megatron_recomputation(plan, megatron_parts(plan, {}))
        yield options or "--recompute-granularity full"


def _torchtitan(judged: JudgedLayout, output: Path | None) -> str:
    """The sections of torchtitan; data-parallel ranks shard their state with FSDP2."""
    groups = judged.layout.groups
    csv = "plan.csv" if output is None else str(output.with_suffix(".csv"))
    text = to_torchtitan(judged.plan, csv)
    sizes = [
        f"tensor_parallel_degree = {groups.tensor}",
        f"context_parallel_degree = {groups.context}",
        f"expert_parallel_degree = {groups.expert}",
        f"data_parallel_shard_degree = {groups.data}",
    ]
    if groups.sharding is Sharding.ZERO1 and groups.data > 1:
        sizes.append('fsdp_reshard_after_forward = "never"')
    head, _, rest = text.partition("\n")
    return "\n".join([head, *sizes, rest]).rstrip("\n")
