"""Profiling a whole model: every kind of layer once, the links, and where it was measured."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import nn

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.layer_profile import Layer, LayerProfile, LayerVariant, smaller_rises
from synth.profile.links import Links
from synth.profile.measurement_conditions import spread_of
from synth.profile.optimizer import OptimizerSpec
from synth.profile.workload import Workload
from synth.units import format_bytes

from ..execution.gradients.all_reduce import is_sharded
from ..input_function import InputFunction, MicroBatch
from ..models.checks import check_has_sizes
from ..optimize import commit_bytes
from ..state.module_state import StatePicture, picture_of, unchanged
from ..world import prepare_device
from .apart import check_apart
from .layer_source import LayerSource
from .layer_walk import num_distinct, random_tokens, walk_layers
from .machine_watch import MachineWatch
from .options import ProfilingKeywords, ProfilingOptions
from .pace import ProfilingPace
from .profiler import profile_layer
from .provenance import provenance_of
from .sample import Sample
from .step_check import StepCheck
from .tied_sizes import LayerSizes, tied_parameters
from .variants import measured_variants

_SEED = 0
_MOST_NAMES = 4
# Of F and BW of all layers, which are run four times to see whether they share what they must not.
_LONGEST_STEP_S = 3.0
_WHOLE = "; whole on each process"


def profile_model(
    workload: Workload,
    device: torch.device,
    *,
    batch: MicroBatch | None = None,
    **keywords: Unpack[ProfilingKeywords],
) -> Profile:
    """Measure a model's layers on a device: the times (µs) and bytes of F, B, W, BW and STEP.

    Identical layers (same class, shapes and settings, but for numbers and names of their places)
    are measured once and share the result. A built-in model, or one whose function yields its
    layers, has one layer at a time in memory; of a function that returns a list all layers are in
    the host's memory, and one on the device.

    Args:
        workload: the model and the micro-batch: token ids of the given shape, or the first
            micro-batch of the function `workload.inputs`.
        device: the device to measure.
        batch: that micro-batch, if it has been made before; None: it is made here.
        **keywords: fields of `ProfilingOptions`.

    Raises:
        SynthError: the model or its inputs cannot be made, or a layer cannot take the output of the
            previous one.
    """
    prepare_device(workload, device)
    profiler = _ModelProfiler(workload, device, ProfilingOptions(**keywords))
    source = LayerSource.of(workload, _SEED)
    if batch is None and workload.inputs is not None:
        batch = InputFunction(workload.inputs).of(0)
    batch = batch or random_tokens(source.calls[0].module, workload, _SEED)
    return profiler.profile(source, batch)


def profile_layers(
    layers: Sequence[nn.Module],
    inputs: Any,
    targets: Any,
    *,
    name: str = "model",
    device: torch.device | str = "cpu",
    optimizer: OptimizerSpec | None = None,
    autocast: str | None = None,
    **keywords: Unpack[ProfilingKeywords],
) -> Profile:
    """Measure layers of a program's own: the times (µs) and bytes of F, B, W, BW and STEP.

    Each layer is moved to the device when it is its turn, and back to the CPU after it. Parameters,
    buffers and other state, such as counters, stay as they are; gradients are cleared. The profile
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
        **keywords: fields of `ProfilingOptions`.

    Raises:
        SynthError: there are no layers, one is no module, or one cannot take the output of the
            previous one.
    """
    if not layers:
        raise SynthError("there are no layers to measure; give one at least")
    if not isinstance(layers, Iterable) or not all(isinstance(x, nn.Module) for x in layers):
        raise SynthError(f"layers is {layers!r:.60}; give a list of modules")
    for index, layer in enumerate(layers):
        check_has_sizes(layer, f"layer {index}")
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
    source = LayerSource.of_layers(workload, layers)
    profiler = _ModelProfiler(workload, torch.device(device), ProfilingOptions(**keywords))
    with unchanged(*layers):
        return profiler.profile(source, batch)


class _ModelProfiler:
    """Measures the layers of a workload on a device, and watches the machine meanwhile."""

    def __init__(self, workload: Workload, device: torch.device, options: ProfilingOptions) -> None:
        """Begin to watch the machine, if the options have no watch that has begun before.

        Raises:
            SynthError: pairs are to be measured on another device than CUDA's.
        """
        if options.pairs and device.type != "cuda":
            raise SynthError(
                f"F and BW at once were to be measured on {device.type}, which runs them one after "
                f"the other; take a CUDA device, or leave pairs out"
            )
        self._workload, self._device, self._options = workload, device, options
        self._watch = options.watch or MachineWatch(threads=workload.threads)

    def profile(self, source: LayerSource, batch: MicroBatch) -> Profile:
        """Measure each distinct layer once, with the real output of the layer before it."""
        workload, device, options = self._workload, self._device, self._options
        pace = ProfilingPace(
            num_distinct(source.calls, separate=options.separate),
            (options.warmup + options.iterations) * (1 + len(options.policies)),
            options.on_progress,
        )
        fill = source.fill
        if options.processes is not None:
            _check_untied(source)
            fill = options.processes.filling(fill, device)
        start = self._start(source)
        check = StepCheck(source, device, options)
        profiles: dict[str, LayerProfile] = {}
        sizes: dict[str, LayerSizes] = {}
        entries = []
        commit_rise_bytes = num_elsewhere = 0
        is_any_divided = False
        for visited in walk_layers(
            source.calls, source.names, batch, device, fill, separate=options.separate
        ):
            entries.append(Layer(name=visited.name, profile=visited.same_as))
            num_elsewhere += visited.is_elsewhere
            if visited.sample is None:
                check.add(visited)
                continue
            is_divided = any(map(is_sharded, visited.sample.layer.parameters()))
            is_any_divided |= is_divided
            if options.processes is not None:
                options.processes.check_whole(visited.name, visited.sample)
            pace.begin(visited.name)
            left: dict[str, int] = {}
            try:
                profile = self._profile_layer(visited.sample, pace, left)
            except Exception as error:  # of the user's code, of any class
                kind = "" if isinstance(error, SynthError) else f"{type(error).__name__}: "
                raise SynthError(
                    f"layer {visited.name} cannot be measured: {kind}{error}"
                ) from error
            measure = partial(self._profile_layer, pace=pace, left={})
            variants = measured_variants(
                visited.name, visited.sample, profile, options.policies, measure, options.tell
            )
            profiles[visited.name] = profile = profile.replace(variants=variants)
            sizes[visited.name] = LayerSizes.of(visited.sample.layer, workload.optimizer)
            if workload.optimizer.post_validation:
                own_bytes = commit_bytes([visited.sample.layer], workload.optimizer)
                commit_rise_bytes = max(commit_rise_bytes, own_bytes)
            options.tell(
                f"measured {visited.name}: {profile.work_us() / 1000:.3f} ms for F + B + W"
                f"{_said_of_left(profile, left)}"
                f"{_WHOLE * (options.processes is not None and not is_divided)}"
            )
            check.add(visited)
        if options.processes is not None and not is_any_divided:
            raise SynthError(
                "no parameter of any layer is divided, so each process of a rank would compute all "
                "of it; let the function of --parallelize name modules as `layer.named_modules()` "
                "does, or measure with one process per rank"
            )
        each = [profiles[entry.profile] for entry in entries]
        self._check_apart(source, batch, each, start)
        if num_elsewhere:
            options.tell(_of_places(num_elsewhere))
        self._advise()
        links = options.links() if callable(options.links) else options.links
        conditions = self._watch.conditions(device, spread_of(profiles[e.profile] for e in entries))
        found = Profile(
            name=workload.model,
            provenance=provenance_of(
                device, workload, links, conditions, source.conversion, source.notes
            ),
            workload=workload,
            capacity_bytes=_capacity(device),
            links=links or Links(),
            layer_profiles=profiles,
            layers=tuple(entries),
            tied_parameters=tied_parameters(source.ties, entries, profiles, sizes),
        )
        complete = found
        if workload.optimizer.post_validation:
            complete = found.replace(layer_profiles=_with_commits(profiles, commit_rise_bytes))
        options.on_profile(complete)
        check.run(found, batch)
        return complete

    def _check_apart(
        self,
        source: LayerSource,
        batch: MicroBatch,
        profiles: Sequence[LayerProfile],
        start: StatePicture | None,
    ) -> None:
        """Check that layers share nothing that ranks do not, if they are there and it is short."""
        seconds = sum(p.time_us[OpKind.F].median_us + p.time_us[OpKind.BW].median_us
                      for p in profiles) / 1e6  # fmt: skip
        if start is not None and seconds <= _LONGEST_STEP_S:
            check_apart(source.calls, source.names, batch, start)

    def _start(self, source: LayerSource) -> StatePicture | None:
        """Return the state of the layers; None: they are not all here, or are not compared."""
        modules = [call.module for call in source.calls]
        is_there = not any(p.is_meta for module in modules for p in module.parameters())
        is_alone = self._options.processes is None and self._device.type == "cpu"
        return picture_of(*modules) if is_there and is_alone else None

    def _profile_layer(
        self, sample: Sample, pace: ProfilingPace, left: dict[str, int]
    ) -> LayerProfile:
        with self._watch.measuring():
            own = profile_layer(
                sample,
                self._workload.optimizer,
                warmup=self._options.warmup,
                iterations=self._options.iterations,
                pairs=self._options.pairs,
                on_round=pace.end_round,
                on_left_to_b=left.update,
            )
            processes = self._options.processes
            return own if processes is None else processes.most(own)

    def _advise(self) -> None:
        """Tell the memory of a GPU that plans do not count."""
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            reserved = torch.cuda.memory_reserved(self._device)
            self._options.tell(reserve_advice(total - free, reserved))


def _check_untied(source: LayerSource) -> None:
    """Refuse layers that share parameters, which would be divided twice."""
    if source.ties:
        first = source.names[source.ties[0].places[0][0]]
        raise SynthError(
            f"layer {first} shares parameters with others, which --tensor-parallel does not "
            f"divide; untie them, or measure with one process per rank"
        )


def _said_of_left(profile: LayerProfile, left: Mapping[str, int]) -> str:
    """Name the sub-modules that leave much to B, the largest first."""
    if not profile.defers_little:
        return ""
    named = ", ".join(name or "the layer itself" for name in list(left)[:_MOST_NAMES])
    more = f" and {len(left) - _MOST_NAMES} more" if len(left) > _MOST_NAMES else ""
    return f"; B computes the weight gradients of {named}{more}"


def _of_places(count: int) -> str:
    layers = "one layer differs" if count == 1 else f"{count} layers differ"
    return (
        f"{layers} from a measured one in numbers or names of its place alone, such as layer_idx, "
        f"and run the same ops: not measured again (`separate` measures each)"
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

    def raised(costs: LayerProfile | LayerVariant) -> dict[str, dict[OpKind, int]]:
        more = {kind: max(costs.rise_bytes[kind], rise_bytes) for kind in writers}
        inner = {kind: max(rise, rise_bytes) for kind, rise in costs.inner_rise_bytes.items()}
        rises = {**costs.rise_bytes, **more}
        return {"rise_bytes": rises, "inner_rise_bytes": smaller_rises(inner, rises)}

    return {
        name: profile.replace(
            **raised(profile),
            variants={
                policy: variant.replace(**raised(variant))
                for policy, variant in profile.variants.items()
            },
        )
        for name, profile in profiles.items()
    }


def _capacity(device: torch.device) -> int | None:
    """The device's memory; a CPU's belongs to everyone, so it has none."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)
