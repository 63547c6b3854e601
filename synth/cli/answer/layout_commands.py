"""The commands and options with which a layout is estimated, solved and run."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from synth.cli.answer.priced_options import (
    has_graphs,
    needs_one_connection,
    priced_in_megatron,
    priced_in_torchtitan,
)
from synth.errors import SynthError
from synth.estimates.device import device_of
from synth.estimates.layout import Precision, Recompute, Sharding
from synth.interop.group_options import megatron_group, torchtitan_group
from synth.interop.megatron import PAIRS_OPTIONS, megatron_parts, to_megatron
from synth.interop.recomputation import (
    megatron_recomputation,
    torchtitan_checkpointing,
    torchtitan_full,
    torchtitan_ops,
)
from synth.interop.torchtitan import HEADER, to_torchtitan, torchtitan_parts
from synth.layouts.answer import SOLVED, JudgedLayout
from synth.options.layout_task import LayoutTask
from synth.options.values import written_partition
from synth.plan.runtimes import Runtime
from synth.profile.mesh import DeviceGroup

_ONE_CONNECTION = "CUDA_DEVICE_MAX_CONNECTIONS=1"
_PROFILE, _PLAN = "layout.json", Path("plan.json")

_GROUP = re.compile(r"group=(\d+)")
_MEGATRON_PRECISION = {
    Precision.BF16: "--bf16",
    Precision.FP8: "--bf16 --fp8-format hybrid",
    Precision.FP4: "--bf16 --fp4-format e2m1",
}


def commands(task: LayoutTask, judged: JudgedLayout, output: Path | None) -> Mapping[str, str]:
    """Return commands and options by what they are for.

    Args:
        output: the plan file.
    """
    found, runtime = {"estimate": _estimate(task, judged)}, task.question.allowed.runtime
    # A search orders ops without F and BW at once, and begins with those of a plan for synth alone.
    is_searched = runtime == Runtime.SYNTH or not judged.plan.schedule().overlapped
    if judged.layout.ranks > 1 and is_searched:
        found["solve" if output is None else "search longer"] = _solve(task, judged, output)
    if output is not None and judged.layout.ranks > 1 and runtime != Runtime.SYNTH:
        found["export"] = _export(runtime, output)
    if runtime != Runtime.SYNTH and task.nodes is not None:
        nodes, gpus = task.nodes
        launched = f"torchrun --nnodes {nodes} --nproc-per-node {gpus}"
        is_set = runtime == Runtime.MEGATRON and needs_one_connection(
            task.question.device, judged.layout.groups
        )
        found["launch"] = f"{_ONE_CONNECTION} {launched}" if is_set else launched
    try:
        if runtime == Runtime.MEGATRON:
            found["megatron"] = " ".join(_megatron(task, judged))
        if runtime == Runtime.TORCHTITAN:
            found["torchtitan"] = _torchtitan(task, judged, output)
    except SynthError as error:
        found[runtime] = f"none: {error}"
    return found


def _estimate(task: LayoutTask, judged: JudgedLayout) -> str:
    given, groups = task.given, judged.layout.groups
    values: dict[str, object] = {"device": given.device}
    node = task.question.device.ranks_per_node
    if node != device_of(given.device).ranks_per_node:
        values["gpus-per-node"] = node
    values |= {
        "tp": groups.tensor,
        "cp": groups.context,
        "ep": groups.expert,
        **({"etp": groups.expert_tensor} if groups.expert_tensor > 1 else {}),
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
    if groups.narrow_gather:
        words.append("--fp8-param-gather")
    return shlex.join([*words, "-o", _PROFILE])


def _export(runtime: Runtime, output: Path) -> str:
    """The command that writes what the options of a runtime read."""
    words = ["synth", "export", str(output)]
    is_csv = runtime != Runtime.MEGATRON
    return shlex.join([*words, *(["-o", str(_csv(output))] if is_csv else ["--to", "megatron"])])


def _solve(task: LayoutTask, judged: JudgedLayout, output: Path | None) -> str:
    """The command that solves the pipeline, from the plan of the output if there is one."""
    layout, runtime = judged.layout, task.question.allowed.runtime
    words: list[object] = [
        "synth",
        "solve",
        _PROFILE,
        "-r",
        layout.ranks,
        "-m",
        layout.micro_batches,
    ]
    words += ["--placement", judged.placement]
    if runtime != Runtime.SYNTH:
        words += ["--for", runtime]
    if task.given.mem_limit is not None:
        cap = task.question.cap_bytes
        words += ["--mem-limit", "none" if cap is None else f"{cap}B"]
    if output is not None:
        # Of Megatron-LM's orders none is searched from a plan.
        if runtime != Runtime.MEGATRON:
            words += ["--partition", written_partition(judged.plan.partition), "--hint", output]
        output = output.with_stem(f"{output.stem}-longer")
    return shlex.join([*map(str, words), "-o", str(output or _PLAN)])


def _megatron(task: LayoutTask, judged: JudgedLayout) -> Iterator[str]:
    layout, groups, plan = judged.layout, judged.layout.groups, judged.plan
    group = plan.workload.group or DeviceGroup()
    yield from megatron_group(group)
    if layout.ranks > 1:
        yield f"--pipeline-model-parallel-size {layout.ranks}"
        yield f"--pipeline-model-parallel-layout {shlex.quote(to_megatron(plan))}"
        yield from _megatron_group(task, judged)
    yield f"--micro-batch-size {groups.micro_batch_size}"
    yield f"--global-batch-size {task.question.global_batch} --seq-length {groups.seq_len}"
    yield _MEGATRON_PRECISION[groups.precision]
    if groups.narrow_gather:
        yield "--fp8-param-gather"
    yield from priced_in_megatron(task.question, layout)
    if plan.schedule().overlapped:
        yield PAIRS_OPTIONS
    yield from _megatron_recomputation(task, judged)


def _megatron_group(task: LayoutTask, judged: JudgedLayout) -> Iterator[str]:
    """Yield the size of groups of micro-batches, if it is not the number of ranks."""
    count, name = judged.layout.micro_batches, judged.schedule
    if name.startswith(SOLVED):
        placement = judged.plan.schedule().placement
        name = task.question.allowed.order_on(placement, count) or name
    if found := _GROUP.search(name):
        yield f"--microbatch-group-size-per-virtual-pipeline-stage {found[1]}"


def _megatron_recomputation(task: LayoutTask, judged: JudgedLayout) -> Iterator[str]:
    """Yield what was judged: within layers, all layers, or those that the plan names.

    Raises:
        SynthError: no options say so.
    """
    plan, recompute = judged.plan, judged.layout.groups.recompute
    if recompute is Recompute.OPS:
        raise SynthError("Megatron-LM does not recompute by torchtitan's policy of ops")
    is_whole = recompute is Recompute.FULL or plan.recomputed_layers
    if is_whole and has_graphs(task.question):
        raise SynthError(
            "Megatron-LM has no CUDA graphs of layers that it recomputes, which the estimate takes "
            "for granted; give --software megatron"
        )
    if recompute is Recompute.FULL:
        yield "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    elif plan.recomputed_layers:
        options = megatron_recomputation(plan, megatron_parts(plan, {}))
        if options is None or recompute is Recompute.SELECTIVE:
            raise SynthError("no options of Megatron-LM say which layers are recomputed")
        yield options
    elif recompute is Recompute.SELECTIVE:
        yield "--recompute-granularity selective"


def _torchtitan(task: LayoutTask, judged: JudgedLayout, output: Path | None) -> str:
    """The sections of torchtitan; data-parallel ranks shard their state with FSDP2.

    Without a pipeline a rank has a micro-batch at a time, and torchtitan adds up the gradients of
    as many as the whole batch takes.
    """
    layout, groups, plan = judged.layout, judged.layout.groups, judged.plan
    degrees = [*torchtitan_group(plan.workload.group or DeviceGroup())]
    rest: list[str] = []
    local = f"local_batch_size = {groups.micro_batch_size}"
    training = ["[training]", local, f"seq_len = {groups.seq_len}"]
    if layout.ranks > 1:
        parallel, of_training, *_ = to_torchtitan(plan, str(_csv(output))).split("\n\n")
        rest = [
            line
            for line in parallel.partition("[parallelism]")[2].splitlines()
            if line not in degrees
        ]
        training = of_training.splitlines()
    priced, *further = priced_in_torchtitan(task.question, layout)
    training += [f"global_batch_size = {task.question.global_batch}", *priced]
    parallel_lines = [*degrees, *_data_degrees(judged), *rest]
    sections = [[*HEADER, "[parallelism]", *parallel_lines], training]
    sections += [_torchtitan_recomputation(judged), *further]
    return "\n\n".join("\n".join(lines) for lines in sections)


def _data_degrees(judged: JudgedLayout) -> Iterator[str]:
    groups = judged.layout.groups
    shards = 1 if groups.sharding is Sharding.NONE else groups.data
    yield f"data_parallel_replicate_degree = {groups.data // shards}"
    yield f"data_parallel_shard_degree = {shards}"
    if groups.sharding is Sharding.ZERO1 and groups.state_ranks > 1:
        yield 'fsdp_reshard_after_forward = "never"'


def _torchtitan_recomputation(judged: JudgedLayout) -> list[str]:
    """The section of what was judged.

    Raises:
        SynthError: there is none.
    """
    plan, recompute = judged.plan, judged.layout.groups.recompute
    ops = recompute is Recompute.OPS
    if recompute is Recompute.FULL:
        return torchtitan_full()
    if ops and not plan.recomputed_layers:
        return torchtitan_ops()
    found = torchtitan_checkpointing(plan, torchtitan_parts(plan, {}))
    if found is None or ops or recompute is Recompute.SELECTIVE:
        raise SynthError("no section of torchtitan says what is recomputed")
    return found


def _csv(output: Path | None) -> Path:
    return (output or _PLAN).with_suffix(".csv")
