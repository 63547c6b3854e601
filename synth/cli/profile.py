"""`synth profile`: measure a model's layers on this machine's device."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.answer.output import answer, talk, warn_of
from synth.cli.progress.line import current_line
from synth.cli.read.options import ForceOption, PeakFlopsOption
from synth.errors import SynthError
from synth.model_flops import format_flops, parse_flops_per_s
from synth.optimizer import OptimizerSpec, OptimizerSwitches
from synth.overwrite_guard import PROFILE, check_replaceable
from synth.record import check_outputs
from synth.units import format_bytes, format_us

if TYPE_CHECKING:
    import torch

    from synth.links import Link, Links
    from synth.model_flops import ModelFlops
    from synth.profile import Profile
    from synth.runtime.input_function import MicroBatch
    from synth.runtime.profiling.machine_watch import MachineWatch
    from synth.runtime.profiling.pace import ProfilingProgress
    from synth.workload import ModelArguments, Workload


def command(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="Built-in model (gpt-bytes, gpt2-small, llama3-8b, …), or "
            "path/to/file.py:function or package.module:function that returns a list of layers; "
            "or a .csv file of times that were measured elsewhere."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Profile file to write.")],
    arguments: Annotated[
        list[str] | None,
        typer.Option("--arg", help="Argument name=value of the model's function. Can be repeated."),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="Function that returns or yields (inputs, targets) of a micro-batch, also as "
            "package.module:function; without it, inputs are random token ids.",
        ),
    ] = None,
    micro_batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Sequences per micro-batch.", show_default="1, or of --inputs"),
    ] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens per sequence.", show_default="1024, or of --inputs"),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Parameter type: float32 or bfloat16.")] = "float32",
    optimizer: Annotated[str, typer.Option(help="adamw, sgd, or sgd:MOMENTUM.")] = "adamw",
    *,
    switches: OptimizerSwitches,
    autocast: Annotated[
        str | None, typer.Option(help="Compute type under torch.autocast: bfloat16.")
    ] = None,
    recompute: Annotated[
        list[str] | None,
        typer.Option(
            help="Activation checkpointing: layers to recompute within B, by name or pattern "
            "('block.*'). Can be repeated."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads per rank.")] = 1,
    warmup: Annotated[int, typer.Option(min=0, help="Warm-up iterations.")] = 3,
    iters: Annotated[int, typer.Option(min=1, help="Measured iterations.")] = 20,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=2, help="Also measure the links between this many processes on this machine."
        ),
    ] = None,
    peak_flops: PeakFlopsOption = None,
    force: ForceOption = False,
) -> None:
    """Measure MODEL layer by layer: time and memory of F, B, W, BW and STEP.

    Under torchrun, rank 0 measures the layers, and all ranks the links between them.
    """
    peak_per_s = None if peak_flops is None else parse_flops_per_s(peak_flops)
    if model.lower().endswith(".csv"):
        _check_only_of_times(context, model)
        _read_times(Path(model), output, force, micro_batch_size, seq_len, peak_per_s)
        return
    named = [given.rpartition(":")[0] or None for given in (model, inputs) if given is not None]
    check_outputs(output, inputs=named)
    check_replaceable(output, PROFILE, "-o", force)
    from synth.runtime.dtypes import dtype_of
    from synth.runtime.models import ModelSpec, check_spec
    from synth.runtime.profiling.machine_watch import MachineWatch
    from synth.runtime.world import pick_device, under_torchrun
    from synth.workload import Workload

    spec = ModelSpec(model, _parse_arguments(arguments or []))
    check_spec(spec)
    batch = None if inputs is None else _first_of(inputs, micro_batch_size, seq_len)
    workload = Workload(
        model=model,
        arguments=dict(spec.arguments),
        micro_batch_size=batch.num_samples if batch else micro_batch_size or 1,
        sequence_length=batch.sequence_length if batch else seq_len or 1024,
        inputs=inputs,
        dtype=dtype,
        autocast=autocast,
        recomputed_layers=tuple(recompute) if recompute else None,
        optimizer=switches.added_to(OptimizerSpec.parse(optimizer)),
        threads=threads,
    )
    for name in filter(None, (dtype, autocast)):
        dtype_of(name)
    measure = partial(
        _measure,
        workload,
        batch,
        warmup=warmup,
        iters=iters,
        output=output,
        peak_flops_per_s=peak_per_s,
    )
    if under_torchrun():
        _measure_inside_torchrun(device, threads, measure)
        return
    chosen = pick_device(device)
    watch = MachineWatch(processes=ranks or 1, threads=threads)
    measure(chosen, links=_links_of_this_machine(ranks, chosen), watch=watch)


# The options that go with a CSV of times; all others are of a measurement.
_OF_TIMES = ("model", "output", "force", "micro_batch_size", "seq_len", "peak_flops", "quiet")


def _check_only_of_times(context: typer.Context, model: str) -> None:
    """Refuse options of a measurement.

    Raises:
        SynthError: names the first one.
    """
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in _OF_TIMES and source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            raise SynthError(
                f"{option} is for measuring a model, and {model} has times that were measured; "
                f"leave {option} out"
            )


def _read_times(
    path: Path,
    output: Path,
    force: bool,
    size: int | None,
    length: int | None,
    peak_flops_per_s: float | None,
) -> None:
    """Make a profile of a CSV file of times.

    Raises:
        SynthError: the file cannot be read or used.
    """
    from synth.interop.times_csv import from_times_csv
    from synth.profile import Profile
    from synth.safe_read import read_text

    check_outputs(output, inputs=[path])
    check_replaceable(output, PROFILE, "-o", force)
    layers = from_times_csv(read_text(path, "a CSV file of layers"), str(path))
    profile = Profile.from_times(
        path.stem,
        layers,
        micro_batch_size=size or 1,
        sequence_length=length or 1,
        peak_flops_per_s=peak_flops_per_s,
    )
    profile.save(output)
    answer(_summary(profile))
    talk(f"written: {output}; `synth solve {output} --link LATENCY,BANDWIDTH` sets the links")


def _first_of(inputs: str, size: int | None, length: int | None) -> "MicroBatch":
    """Return the first micro-batch that the function makes.

    Raises:
        SynthError: its size or length is given too, or the function fails.
    """
    if size is not None or length is not None:
        option = "--seq-len" if size is None else "--micro-batch-size"
        raise SynthError(
            f"{option} is given, and --inputs {inputs}, which makes the micro-batches; leave "
            f"{option} out"
        )
    from synth.runtime.input_function import InputFunction

    return InputFunction(inputs).of(0)


def _parse_arguments(given: list[str]) -> "ModelArguments":
    parsed: ModelArguments = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals or not name.isidentifier():
            raise SynthError(f"--arg {item!r} is not understood; write name=value, e.g. width=512")
        parsed[name] = _parse_value(text)
    return parsed


def _parse_value(text: str) -> int | float | str | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _links_of_this_machine(ranks: int | None, device: "torch.device") -> "Links":
    if ranks is None:
        talk(
            "links between ranks are not measured, so transfers take no time; --ranks N measures "
            "them"
        )
        return _link_to_host(device)
    from synth.runtime.training.launch import launch_link_probe

    current_line().tell("measuring the links")
    talk(f"measuring the links between {ranks} processes, and to the host's memory")
    links: Links = launch_link_probe(ranks, device.type)
    return links


def _link_to_host(device: "torch.device") -> "Links":
    from synth.links import Links
    from synth.runtime.profiling.host_probe import probe_host

    return Links(host=probe_host(device))


def _measure_inside_torchrun(device: str, threads: int, measure: Callable[..., None]) -> None:
    """Measure the links between all ranks, and the layers on rank 0."""
    import torch.distributed as dist

    from synth.runtime.profiling.link_probe import probe_links
    from synth.runtime.profiling.machine_watch import MachineWatch
    from synth.runtime.world import join_world

    processes = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    watch = MachineWatch(processes=processes, threads=threads)
    # The other ranks wait while rank 0 measures, which may take long.
    with join_world(device, timeout_s=24 * 3600) as world:
        links = probe_links(world) if world.size > 1 else _link_to_host(world.device)
        if world.rank == 0:
            measure(world.device, links=links, watch=watch)
        dist.barrier()


def _measure(
    workload: "Workload",
    batch: "MicroBatch | None",
    device: "torch.device",
    *,
    warmup: int,
    iters: int,
    links: "Links | None",
    output: Path,
    peak_flops_per_s: float | None,
    watch: "MachineWatch",
) -> None:
    """Measure the layers, and write and show the profile."""
    from synth.runtime.profiling.profile_model import profile_model

    profile = profile_model(
        workload,
        device,
        batch=batch,
        warmup=warmup,
        iterations=iters,
        links=links,
        tell=talk,
        watch=watch,
        on_progress=_show_progress,
    )
    profile = profile.replace(peak_flops_per_s=peak_flops_per_s)
    profile.save(output)
    answer(_summary(profile))
    warn_of(profile.provenance.conditions, "this profile")
    talk(f"written: {output}")


def _show_progress(progress: "ProfilingProgress") -> None:
    """Show what is being measured, and about how long the rest takes."""
    expected = None if progress.left_s is None else time.monotonic() + progress.left_s
    current_line().tell(f"measuring {progress.words}", expected=expected)


def _summary(profile: "Profile") -> str:
    """Return a table with a line per distinct layer: times in ms, bytes per micro-batch."""
    from synth.op_kinds import OpKind

    kinds = (OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP)
    head = "layer             count" + "".join(f"{kind + ' ms':>10s}" for kind in kinds)
    lines = [head + "        saved    retained  parameters"]
    for name, layer in profile.layer_profiles.items():
        count = sum(entry.profile == name for entry in profile.layers)
        times = "".join(f"{layer.time_us[kind].median_us / 1000:10.3f}" for kind in kinds)
        lines.append(
            f"{name:16s}{count:7d}{times}{format_bytes(layer.saved_bytes):>13s}"
            f"{format_bytes(layer.saved_w_bytes):>12s}{format_bytes(layer.parameter_bytes):>12s}"
        )
    lines.append(f"link: {_described(profile.links.default)}")
    if profile.links.host is not None:
        lines.append(f"link to the host's memory: {_described(profile.links.host)}")
    if profile.flops is not None:
        lines.append(_said_of(profile.flops))
    if profile.provenance.notes is not None:
        lines.append(profile.provenance.notes)
    return "\n".join(lines)


def _said_of(flops: "ModelFlops") -> str:
    """Return the FLOPs of a micro-batch, and the peak or the option that sets it."""
    count = f"{format_flops(flops.per_micro_batch)} per micro-batch, forward and backward"
    if flops.peak_per_s is None:
        return f"{count}; --peak-flops RATE of the device gives the MFU"
    return f"{count}; peak {format_flops(flops.peak_per_s)}/s"


def _described(link: "Link") -> str:
    rate = link.bandwidth_bytes_per_s
    speed = f"{format_bytes(rate)}/s" if rate else "unlimited"
    return f"latency {format_us(link.latency_us)}, bandwidth {speed}"
