"""Profiling a whole model: every kind of layer once, the links, and where it was measured."""

import datetime
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from synth import version
from synth.errors import SynthError
from synth.layer_profile import Layer, LayerProfile
from synth.links import Links
from synth.measurement_conditions import Conditions, spread_of
from synth.op_kinds import OpKind
from synth.optimizer import OptimizerSpec
from synth.profile import Profile, Provenance
from synth.units import format_bytes
from synth.workload import Workload

from ..execution.stage.side_effects import same_buffers
from ..input_function import InputFunction, MicroBatch
from ..optimize import commit_bytes
from ..training.building import prepare_device
from ..world import describe_device
from .layer_source import LayerSource
from .layer_walk import num_distinct, random_tokens, walk_layers
from .machine_watch import MachineWatch
from .pace import ProfilingPace, ProfilingProgress
from .profiler import profile_layer

_HOST_IS_CPU = "links.host is a copy within the CPU's own memory: there is no other to move to"
_SEED = 0
Tell = Callable[[str], None]
OnProgress = Callable[[ProfilingProgress], None]


def profile_model(
    workload: Workload,
    device: torch.device,
    *,
    batch: MicroBatch | None = None,
    warmup: int = 3,
    iterations: int = 20,
    links: Links | None = None,
    tell: Tell = lambda line: None,
    watch: MachineWatch | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> Profile:
    """Measure a model's layers on a device: the times (µs) and bytes of F, B, W, BW and STEP.

    Identical layers (same class, shapes and settings) are measured once and share the result. A
    built-in model, or one whose function yields its layers, has one layer at a time in memory; of
    a function that returns a list all layers are in the host's memory, and one on the device.

    Args:
        workload: the model and the micro-batch: token ids of the given shape, or the first
            micro-batch of the function `workload.inputs`.
        device: the device to measure.
        batch: that micro-batch, if it has been made before; None: it is made here.
        warmup: warm-up iterations per layer.
        iterations: measured iterations per layer.
        links: measured before, by `probe_links`; None: transfers take no time.
        tell: called with a line per measured layer.
        watch: a watch of the machine that was begun before; None: a new one.
        on_progress: called after each round of each layer.

    Raises:
        SynthError: the model or its inputs cannot be made, or a layer cannot take the output of the
            previous one.
    """
    prepare_device(workload, device)
    watch = watch or MachineWatch(threads=workload.threads)
    source = LayerSource.of(workload, _SEED)
    if batch is None and workload.inputs is not None:
        batch = InputFunction(workload.inputs).of(0)
    batch = batch or random_tokens(source.calls[0].module, workload, _SEED)
    rounds = _Rounds(warmup, iterations)
    return _measure(workload, source, batch, device, rounds, links, tell, watch, on_progress)


def profile_layers(
    layers: Sequence[nn.Module],
    inputs: Any,
    targets: Any,
    *,
    name: str = "model",
    device: torch.device | str = "cpu",
    optimizer: OptimizerSpec | None = None,
    autocast: str | None = None,
    warmup: int = 3,
    iterations: int = 20,
    links: Links | None = None,
) -> Profile:
    """Measure layers of a program's own: the times (µs) and bytes of F, B, W, BW and STEP.

    Each layer is moved to the device when it is its turn, and back to the CPU after it. Parameters
    and buffers, such as running statistics, stay as they are; gradients are cleared. The profile
    names no model that `synth run` could build; it serves for solving, and its plans for a
    `Pipeline`.

    Args:
        layers: the pipeline's layers in order, on the CPU. The first is called with the inputs,
            every other with the output of the previous one (a tuple or list is spread into
            arguments), the last with the targets in addition; it returns the scalar loss.
        inputs: the inputs of one micro-batch: a tensor, a tuple of positional arguments, or a tree
            of tensors; the first dimension of the first tensor is the number of samples.
        targets: the targets of the same micro-batch: a tensor or a tree of tensors.
        name: the name of the profile.
        device: the device to measure.
        optimizer: that will train the layers, such as `OptimizerSpec.parse("sgd")`; None: AdamW.
        autocast: the dtype to compute in under `torch.autocast`, such as "bfloat16".
        warmup: warm-up iterations per layer.
        iterations: measured iterations per layer.
        links: between ranks; None: transfers take no time.

    Raises:
        SynthError: there are no layers, or one cannot take the output of the previous one.
    """
    if not layers:
        raise SynthError("there are no layers to measure; give one at least")
    batch = MicroBatch(inputs, targets)
    workload = Workload(
        model=name,
        micro_batch_size=batch.num_samples,
        sequence_length=batch.sequence_length,
        autocast=autocast,
        optimizer=optimizer or OptimizerSpec(),
        threads=torch.get_num_threads(),
        runnable=False,
    )
    source, rounds = LayerSource.of_layers(workload, layers), _Rounds(warmup, iterations)
    watch, on = MachineWatch(threads=workload.threads), torch.device(device)
    with ExitStack() as unchanged:
        for layer in layers:
            unchanged.enter_context(same_buffers(layer))
        return _measure(workload, source, batch, on, rounds, links, lambda line: None, watch)


class _Rounds(NamedTuple):
    warmup: int
    iterations: int


def _measure(
    workload: Workload,
    source: LayerSource,
    batch: MicroBatch,
    device: torch.device,
    rounds: _Rounds,
    links: Links | None,
    tell: Tell,
    watch: MachineWatch,
    on_progress: OnProgress = lambda progress: None,
) -> Profile:
    pace = ProfilingPace(num_distinct(source.calls), sum(rounds), on_progress)
    profiles: dict[str, LayerProfile] = {}
    entries = []
    rise_bytes = 0
    for visited in walk_layers(source.calls, source.names, batch, device, source.fill):
        entries.append(Layer(name=visited.name, profile=visited.same_as))
        if visited.sample is None:
            continue
        pace.begin(visited.name)
        with watch.measuring():
            profile = profile_layer(
                visited.sample,
                workload.optimizer,
                **rounds._asdict(),
                on_round=pace.end_round,
            )
        profiles[visited.name] = profile
        if workload.optimizer.post_validation:
            own_bytes = commit_bytes([visited.sample.layer], workload.optimizer)
            rise_bytes = max(rise_bytes, own_bytes)
        tell(f"measured {visited.name}: {profile.work_us() / 1000:.3f} ms for F + B + W")
    if workload.optimizer.post_validation:
        profiles = _with_commits(profiles, rise_bytes)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        tell(reserve_advice(total - free, torch.cuda.memory_reserved(device)))
    conditions = watch.conditions(device, spread_of(profiles[e.profile] for e in entries))
    return Profile(
        name=workload.model,
        provenance=_provenance(device, workload, links, conditions),
        workload=workload,
        capacity_bytes=_capacity(device),
        links=links or Links(),
        layer_profiles=profiles,
        layers=tuple(entries),
    )


def reserve_advice(used_bytes: int, allocator_bytes: int) -> str:
    """The bytes in use beyond PyTorch's allocator, as the driver reports: a reserve for `solve`.

    They are this process's context and libraries, and the memory of other processes on the device.
    """
    beyond = max(0, used_bytes - allocator_bytes)
    tenths = -(-beyond // 10**8)
    return (
        f"the device has {format_bytes(beyond)} in use beyond PyTorch's allocator, which no plan "
        f"counts: solve with --mem-reserve {tenths / 10:.1f}GB or more, as communicators and "
        f"fragmentation are not in it"
    )


def _with_commits(profiles: dict[str, LayerProfile], rise_bytes: int) -> dict[str, LayerProfile]:
    """Add the rise of committing a late-validated step to the first op that writes gradients.

    Any such op may be the first.
    """
    writers = (OpKind.B, OpKind.W, OpKind.BW)
    return {
        name: profile.replace(
            rise_bytes=profile.rise_bytes
            | {kind: max(profile.rise_bytes[kind], rise_bytes) for kind in writers}
        )
        for name, profile in profiles.items()
    }


def _capacity(device: torch.device) -> int | None:
    """The device's memory; a CPU's belongs to everyone, so it has none."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)


def _provenance(
    device: torch.device, workload: Workload, links: Links | None, conditions: Conditions
) -> Provenance:
    on_cuda = device.type == "cuda"
    return Provenance(
        source="measured",
        device=describe_device(device),
        date=datetime.date.today().isoformat(),
        command=" ".join(["synth", *sys.argv[1:]]),
        cores=None if on_cuda else workload.threads,
        driver=_driver() if on_cuda else None,
        cuda=torch.version.cuda if on_cuda else None,
        torch=torch.__version__,
        commit=_commit(),
        notes=None if on_cuda or links is None or links.host is None else _HOST_IS_CPU,
        conditions=conditions,
    )


def _driver() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    lines = _output_of(query, Path.cwd())
    return lines.splitlines()[0] if lines else None


def _commit() -> str | None:
    """The commit of a checkout of synth; an installed one has its version."""
    root = Path(version.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return f"synth {version.__version__}"
    return _output_of(["git", "rev-parse", "--short=12", "HEAD"], root)


def _output_of(command: list[str], folder: Path) -> str | None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
