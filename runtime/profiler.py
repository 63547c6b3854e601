"""Measuring a model layer by layer: seconds and bytes of F, B, W, BW and STEP on one device."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from synth.kinds import OpKind
from synth.profile import LayerProfile, Timing

from .meter import measure
from .optimizer import adamw
from .stage import Stage

Moments = list[Any]


@dataclass(frozen=True)
class Sample:
    """One layer with an input as it meets it in the model."""

    layer: nn.Module
    x: Tensor
    targets: Tensor | None
    is_first: bool

    def stage(self) -> Stage:
        """The layer as a stage of its own, so that it is measured by what will run it."""
        return Stage([self.layer], is_first=self.is_first, is_last=self.targets is not None)


def profile_layer(sample: Sample, *, warmup: int, iterations: int) -> LayerProfile:
    """Measure one layer.

    Args:
        sample: the layer on its device, with a micro-batch.
        warmup: rounds that are not counted.
        iterations: rounds that are; F, B, W, BW and STEP are measured in each.
    """
    for parameter in sample.layer.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer = adamw(sample.layer, 0.0)
    times = _measure_times(sample, optimizer, warmup, iterations)
    held = _measure_bytes(sample)
    parameters = [p for p in sample.layer.parameters() if p.requires_grad]
    profile = LayerProfile(
        time_us={kind: _timing(samples) for kind, samples in times.items()},
        parameter_bytes=_bytes(sample.layer.parameters()),
        gradient_bytes=_bytes(parameters),
        optimizer_bytes=_optimizer_bytes(optimizer),
        output_bytes=held.output_bytes,
        saved_bytes=held.saved_bytes,
        saved_w_bytes=held.saved_w_bytes,
        rise_bytes={
            **held.rise_bytes,
            OpKind.BW: _fused_rise(sample),
            OpKind.STEP: _step_rise(optimizer, sample.x.device),
        },
        input_until=held.input_until,
        output_until=held.output_until,
        gradient_until=held.gradient_until,
        deferred_share=_deferred_share(sample, parameters),
    )
    for parameter in sample.layer.parameters():
        parameter.grad = None
    return profile


def _bytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _optimizer_bytes(optimizer: torch.optim.Optimizer | None) -> int:
    if optimizer is None:
        return 0
    states = optimizer.state.values()
    return _bytes(t for state in states for t in state.values() if isinstance(t, Tensor))


class _Stopwatch:
    """Times actions: by the host's clock on CPU, by events without a pause on CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._moments: dict[OpKind, list[tuple[Any, Any]]] = {kind: [] for kind in OpKind}

    def time(self, kind: OpKind, action: Callable[[], Any]) -> Any:
        start = self._now()
        result = action()
        self._moments[kind].append((start, self._now()))
        return result

    def _now(self) -> Any:
        if not self._on_cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def times_us(self, skip: int) -> dict[OpKind, list[float]]:
        """What was timed, without the first `skip` of each kind."""
        if self._on_cuda:
            torch.cuda.synchronize()
            return {
                kind: [start.elapsed_time(end) * 1000 for start, end in pairs[skip:]]
                for kind, pairs in self._moments.items()
            }
        return {
            kind: [(end - start) / 1000 for start, end in pairs[skip:]]
            for kind, pairs in self._moments.items()
        }


def _measure_times(
    sample: Sample, optimizer: torch.optim.Optimizer | None, warmup: int, iterations: int
) -> dict[OpKind, list[float]]:
    """Alternate F+B+W and F+BW, so that drift of the machine hits both alike."""
    watch = _Stopwatch(sample.x.device)
    stage = sample.stage()
    gradient = _output_gradient(stage, sample)
    step = optimizer.step if optimizer is not None else lambda: None
    for _ in range(warmup + iterations):
        watch.time(OpKind.F, lambda: stage.forward(0, sample.x, sample.targets))
        watch.time(OpKind.B, lambda: stage.backward_input(0, gradient))
        watch.time(OpKind.W, lambda: stage.backward_weight(0))
        stage.forward(0, sample.x, sample.targets)
        watch.time(OpKind.BW, lambda: stage.backward(0, gradient))
        watch.time(OpKind.STEP, step)
    return watch.times_us(skip=warmup)


def _output_gradient(stage: Stage, sample: Sample) -> Tensor:
    """A gradient of the output's shape, dense and small, as training has."""
    output = stage.output_like(sample.x, sample.targets)
    return torch.full_like(output, 1e-3)


def _timing(samples_us: Sequence[float]) -> Timing:
    if not samples_us:
        return Timing.exactly(0.0)
    ordered = torch.tensor(samples_us, dtype=torch.float64)
    p10, median, p90 = torch.quantile(
        ordered, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    ).tolist()
    return Timing(
        median_us=round(median, 3), p10_us=round(p10, 3), p90_us=round(p90, 3), n=len(samples_us)
    )


@dataclass
class _Held:
    """What `_measure_bytes` finds; see `LayerProfile` for what the fields mean."""

    output_bytes: int = 0
    saved_bytes: int = 0
    saved_w_bytes: int = 0
    rise_bytes: dict[OpKind, int] = field(default_factory=dict)
    input_until: OpKind = OpKind.F
    output_until: OpKind = OpKind.F
    gradient_until: OpKind = OpKind.B


def _measure_bytes(sample: Sample) -> _Held:
    """Run F, B and W once, dropping everything that a pipeline would drop in between.

    All that is allocated is allocated inside measuring windows; what is left after F (after B) of
    the layer's own is the level then, less the input, output and gradient that are still alive.
    """
    device, found = sample.x.device, _Held()
    stage = sample.stage()
    windows = _Windows(device)
    x = windows.run(lambda: sample.x.clone())
    input_bytes = 0 if sample.is_first else windows.level
    y = windows.run(lambda: stage.forward(0, x, sample.targets))
    found.rise_bytes[OpKind.F] = windows.last_peak
    is_last = sample.targets is not None
    shape, own_bytes = y.detach(), _allocated_bytes(y)
    found.output_bytes = 0 if is_last else own_bytes
    gradient_like = torch.empty(shape.shape, dtype=shape.dtype, device="meta")
    watched_x, watched_y = _watch(x), _watch(y)
    del shape

    # Only the names die here: what autograd saved stays.
    held = [x, y]
    del x, y
    windows.run(held.clear)
    kept = _alive(watched_x, input_bytes) + _alive(watched_y, own_bytes)
    found.saved_bytes = windows.level - kept
    found.input_until = OpKind.B if _alive(watched_x, 1) else OpKind.F
    found.output_until = OpKind.B if _alive(watched_y, 1) else OpKind.F

    gradient = windows.run(lambda: torch.full_like(gradient_like, 1e-3, device=device))
    watched_gradient = _watch(gradient)
    gradient_bytes = _allocated_bytes(gradient)
    returned = windows.run(lambda: stage.backward_input(0, gradient))
    found.rise_bytes[OpKind.B] = windows.last_peak
    held = [gradient, returned]
    del gradient, returned
    windows.run(held.clear)
    kept = (
        _alive(watched_x, input_bytes)
        + _alive(watched_y, own_bytes)
        + _alive(watched_gradient, gradient_bytes)
    )
    found.saved_w_bytes = max(0, windows.level - kept)
    found.input_until = OpKind.W if _alive(watched_x, 1) else found.input_until
    found.output_until = OpKind.W if _alive(watched_y, 1) else found.output_until
    found.gradient_until = OpKind.W if _alive(watched_gradient, 1) else OpKind.B

    windows.run(lambda: stage.backward_weight(0))
    found.rise_bytes[OpKind.W] = windows.last_peak
    return found


class _Windows:
    """Measuring windows one after another, and the level that they add up to."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.level = 0
        self.last_peak = 0

    def run(self, action: Callable[[], Any]) -> Any:
        with measure(self._device) as found:
            result = action()
        self.level += found.net_bytes
        self.last_peak = found.peak_bytes
        return result


def _watch(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _alive(watched: StorageWeakRef, num_bytes: int) -> int:
    return 0 if watched.expired() else num_bytes


def _allocated_bytes(tensor: Tensor) -> int:
    """What the allocator hands out for a tensor: CUDA's rounds up to 512 bytes."""
    size = tensor.untyped_storage().nbytes()
    return -(-size // 512) * 512 if tensor.is_cuda else size


def _fused_rise(sample: Sample) -> int:
    """How far memory climbs during BW."""
    stage = sample.stage()
    gradient = _output_gradient(stage, sample)
    windows = _Windows(sample.x.device)
    windows.run(lambda: stage.forward(0, sample.x, sample.targets))
    windows.run(lambda: stage.backward(0, gradient))
    return windows.last_peak


def _step_rise(optimizer: torch.optim.Optimizer | None, device: torch.device) -> int:
    """How far memory climbs during STEP, once its state is there."""
    if optimizer is None:
        return 0
    with measure(device) as found:
        optimizer.step()
    return found.peak_bytes


def _deferred_share(sample: Sample, parameters: list[nn.Parameter]) -> float:
    """The share of the parameters' elements whose gradient W computes."""
    stage = sample.stage()
    gradient = _output_gradient(stage, sample)
    stage.forward(0, sample.x, sample.targets)
    stage.backward_input(0, gradient)
    deferred = sum(p.numel() for p in stage.deferred(0))
    stage.backward_weight(0)
    total = sum(p.numel() for p in parameters)
    return round(deferred / total, 4) if total else 1.0
