"""Profiling a whole model: every kind of layer once, the links, and where it was measured."""

import datetime
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import synth
from synth.measurement_conditions import Conditions, spread_of
from synth.op_kinds import OpKind
from synth.profile import Layer, LayerProfile, Links, Profile, Provenance, Workload
from synth.units import format_bytes

from ..dtypes import dtype_of
from ..models import ModelSpec, build_layers, layer_names
from ..optimize import commit_bytes
from ..training.building import calls_of, prepare_device
from ..world import describe_device
from .layer_walk import walk_layers
from .machine_watch import MachineWatch
from .profiler import profile_layer

_HOST_IS_CPU = "links.host is a copy within the CPU's own memory: there is no other to move to"
_SEED = 0
Tell = Callable[[str], None]


def profile_model(
    workload: Workload,
    device: torch.device,
    *,
    warmup: int = 3,
    iterations: int = 20,
    links: Links | None = None,
    tell: Tell = lambda line: None,
    watch: MachineWatch | None = None,
) -> Profile:
    """Measure a model's layers on a device.

    Identical layers (same class, shapes and settings) are measured once and share the result. The
    model is built in host memory; its layers are on the device one at a time.

    Args:
        workload: the model and the shape of a micro-batch.
        device: the device to measure.
        warmup: warm-up iterations per layer.
        iterations: measured iterations per layer.
        links: measured before, by `probe_links`; None: transfers take no time.
        tell: called with a line per measured layer.
        watch: of the machine, begun before; None: a new one.

    Raises:
        SynthError: the model cannot be built, or a layer cannot take the output of the previous
            one.
    """
    watch = watch or MachineWatch(threads=workload.threads)
    prepare_device(workload, device)
    spec = ModelSpec(workload.model, workload.arguments)
    built = build_layers(spec, seed=_SEED, dtype=dtype_of(workload.dtype))
    names = layer_names(list(built.values()))
    calls = calls_of(workload, built, names)
    profiles: dict[str, LayerProfile] = {}
    entries = []
    rise_bytes = 0
    for visited in walk_layers(calls, names, workload, device, _SEED):
        entries.append(Layer(name=visited.name, profile=visited.same_as))
        if visited.sample is None:
            continue
        with watch.measuring():
            profile = profile_layer(
                visited.sample, workload.optimizer, warmup=warmup, iterations=iterations
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
    root = Path(synth.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return f"synth {synth.__version__}"
    return _output_of(["git", "rev-parse", "--short=12", "HEAD"], root)


def _output_of(command: list[str], folder: Path) -> str | None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
