"""The work of `synth profile`."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from synth.cli.answer.output import Format, answer, answer_json, talk, warn_of
from synth.cli.answer.profile import profile_summary, whole_step_lines
from synth.cli.profile import ProfileRequest
from synth.cli.progress.line import current_line
from synth.cli.read.own_model import file_of
from synth.cli.read.parsed_command import given_options
from synth.errors import SynthError
from synth.interop.times_csv import from_times_csv
from synth.profile import Profile
from synth.profile.layer_times import without_inputs
from synth.profile.links import Links
from synth.profile.mesh import DeviceGroup
from synth.profile.whole_step import WholeStep
from synth.profile.workload import Workload
from synth.records.safe_read import read_text
from synth.system.messages import warn

if TYPE_CHECKING:
    import torch

    from synth.runtime.input_function import MicroBatch
    from synth.runtime.profiling.machine_watch import MachineWatch
    from synth.runtime.profiling.pace import ProfilingProgress
    from synth.runtime.profiling.rank_processes import RankProcesses


def work(request: ProfileRequest) -> None:
    model, peak_flops = request.model, request.peak_flops
    if model.lower().endswith(".csv"):
        _check_only_of_times(model)
        _read_times(Path(model), request, peak_flops)
        return
    policies = request.recompute_policy or ()
    request.check_files(*filter(None, map(file_of, (model, request.inputs, *policies))))
    from synth.runtime.dtypes import dtype_of
    from synth.runtime.models.recompute_policies import check_policy
    from synth.runtime.profiling.machine_watch import MachineWatch
    from synth.runtime.world import pick_device, under_torchrun

    for policy in policies:
        check_policy(policy)
    is_started = under_torchrun()
    request.check_processes(int(os.environ["WORLD_SIZE"]) if is_started else None)
    workload, batch = _workload(model, request)
    for name in filter(None, (workload.dtype, workload.autocast)):
        dtype_of(name)
    measure = partial(_measure, workload, batch, request, peak_flops_per_s=peak_flops)
    if is_started and request.tensor_parallel is not None:
        _measure_together(request, measure)
        return
    if is_started:
        _measure_inside_torchrun(request, measure)
        return
    chosen, ranks = pick_device(request.device), request.ranks
    watch = MachineWatch(processes=ranks or 1, threads=request.threads)
    measure(chosen, links=partial(_links_of_this_machine, ranks, chosen), watch=watch)


def _workload(model: str, request: ProfileRequest) -> "tuple[Workload, MicroBatch | None]":
    """Return the workload, and the first micro-batch if a function makes them.

    Raises:
        SynthError: the model, its inputs or its optimizer cannot be made of the options.
    """
    from synth.runtime.models import ModelSpec, check_spec

    spec = ModelSpec(model, request.model_arguments)
    check_spec(spec)
    batch = None if request.inputs is None else _first_of(request.inputs, request)
    recompute, size = request.recompute, request.tensor_parallel
    workload = Workload(
        model=model,
        arguments=dict(spec.arguments),
        micro_batch_size=batch.num_samples if batch else request.micro_batch_size or 1,
        sequence_length=batch.sequence_length if batch else request.seq_len or 1024,
        inputs=request.inputs,
        dtype=request.dtype,
        autocast=request.autocast,
        recomputed_layers=tuple(recompute) if recompute else None,
        cut=request.cut,
        optimizer=request.optimizer_spec,
        threads=request.threads,
        group=None if size is None else DeviceGroup(tensor=size),
    )
    return workload, batch


# The options that go with a CSV of times; all others are of a measurement.
_OF_TIMES = (
    "model", "output", "force", "micro_batch_size", "seq_len", "peak_flops", "quiet", "format",
)  # fmt: skip


def _check_only_of_times(model: str) -> None:
    """Refuse options of a measurement."""
    for name, option in given_options().items():
        if name not in _OF_TIMES:
            raise SynthError(
                f"{option} is for measuring a model, and {model} has times that were measured; "
                f"leave {option} out"
            )


def _read_times(path: Path, request: ProfileRequest, peak_flops_per_s: float | None) -> None:
    """Make a profile of a CSV file of times.

    Raises:
        SynthError: the file cannot be read or used.
    """
    request.check_files(path)
    layers = from_times_csv(read_text(path, "a CSV file of layers"), str(path))
    if lacking := without_inputs(layers):
        warn(
            f"warning: {', '.join(lacking)}: saved is less than the output of the layer before; it "
            f"should contain this input, or planned peaks are too low"
        )
    profile = Profile.from_times(
        path.stem,
        layers,
        micro_batch_size=request.micro_batch_size or 1,
        sequence_length=request.seq_len or 1,
        peak_flops_per_s=peak_flops_per_s,
    )
    output = request.output
    profile.save(output)
    _answer(profile, request, None)
    talk(f"written: {output}; `synth solve {output} --link LATENCY,BANDWIDTH` sets the links")


def _first_of(inputs: str, request: ProfileRequest) -> "MicroBatch":
    """Return the first micro-batch that the function makes.

    Raises:
        SynthError: its size or length is given too, or the function fails.
    """
    size = request.micro_batch_size
    if size is not None or request.seq_len is not None:
        option = "--seq-len" if size is None else "--micro-batch-size"
        raise SynthError(
            f"{option} is given, and --inputs {inputs}, which makes the micro-batches; leave "
            f"{option} out"
        )
    from synth.runtime.input_function import InputFunction

    return InputFunction(inputs).of(0)


def _links_of_this_machine(ranks: int | None, device: "torch.device") -> Links:
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


def _link_to_host(device: "torch.device") -> Links:
    from synth.runtime.profiling.host_probe import probe_host

    return Links(host=probe_host(device))


def _measure_inside_torchrun(request: ProfileRequest, measure: Callable[..., None]) -> None:
    """Measure the links between all ranks, and the layers on rank 0."""
    import torch.distributed as dist

    from synth.runtime.profiling.link_probe import probe_links
    from synth.runtime.profiling.machine_watch import MachineWatch
    from synth.runtime.world import join_world

    processes = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    watch = MachineWatch(processes=processes, threads=request.threads)
    # The other ranks wait while rank 0 measures, which may take long.
    with join_world(request.device, timeout_s=24 * 3600) as world:
        is_alone = world.size == 1
        links = partial(_link_to_host, world.device) if is_alone else partial(probe_links, world)
        if world.rank == 0:
            measure(world.device, links=links, watch=watch)
        else:
            links()
        dist.barrier()


def _measure_together(request: ProfileRequest, measure: Callable[..., None]) -> None:
    """Measure the layers on all processes together, which are one rank."""
    from synth.runtime.profiling.machine_watch import MachineWatch
    from synth.runtime.profiling.rank_processes import RankProcesses
    from synth.runtime.world import join_world

    size = request.tensor_parallel
    watch = MachineWatch(processes=size or 1, threads=request.threads)
    with join_world(request.device) as world:
        processes = RankProcesses.of_world(world.device, request.parallelize)
        links = partial(_link_to_host, world.device)
        if world.rank == 0:
            talk("links between ranks are not measured, so transfers take no time")
        measure(
            world.device, links=links, watch=watch, processes=processes, is_first=world.rank == 0
        )


def _measure(
    workload: Workload,
    batch: "MicroBatch | None",
    request: ProfileRequest,
    device: "torch.device",
    *,
    links: Callable[[], Links],
    peak_flops_per_s: float | None,
    watch: "MachineWatch",
    processes: "RankProcesses | None" = None,
    is_first: bool = True,
) -> None:
    """Measure the layers, and write and show the profile."""
    from synth.runtime.profiling.profile_model import profile_model

    profiles: list[Profile] = []
    steps: list[WholeStep] = []

    def keep(found: Profile) -> None:
        profiles.append(found.replace(peak_flops_per_s=peak_flops_per_s))
        if is_first:
            profiles[0].save(request.output)
        # The rest is the check of a whole step, without which the answer is complete.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    gives_up = signal.getsignal(signal.SIGINT)
    tell = talk if is_first else lambda line: None
    try:
        profile_model(
            workload,
            device,
            batch=batch,
            warmup=request.warmup,
            iterations=request.iters,
            separate=request.separate,
            pairs=request.pairs,
            policies=tuple(dict.fromkeys(request.recompute_policy or ())),
            links=links,
            tell=tell,
            watch=watch,
            processes=processes,
            on_progress=_show_progress if is_first else lambda progress: None,
            on_profile=keep,
            on_whole_step=steps.append,
        )
    except KeyboardInterrupt:
        tell("no whole step is compared with its parts, as it was interrupted")
    finally:
        signal.signal(signal.SIGINT, gives_up)
    if not is_first:
        return
    [profile] = profiles
    step = steps[0] if steps else None
    _answer(profile, request, step)
    warn_of(profile.provenance.conditions, "this profile")
    for doubt in () if step is None else step.doubts():
        warn(doubt)
    talk(f"written: {request.output}")


def _answer(profile: Profile, request: ProfileRequest, step: WholeStep | None) -> None:
    """Write the profile to stdout, with the step that was compared with its parts, if one was."""
    if request.format == Format.JSON:
        compared = {} if step is None else {"whole_step": step.model_dump(mode="json")}
        answer_json(profile.to_data() | compared)
    else:
        compared_lines = [] if step is None else whole_step_lines(step)
        answer("\n".join([profile_summary(profile), *compared_lines]))


def _show_progress(progress: "ProfilingProgress") -> None:
    """Show what is being measured, and about how long the rest takes."""
    expected = None if progress.left_s is None else time.monotonic() + progress.left_s
    current_line().tell(f"measuring {progress.words}", expected=expected)
