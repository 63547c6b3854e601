"""Measuring one layer: seconds and bytes of F, B, W, BW and STEP on its device."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from synth.op_kinds import MEASURED, OpKind
from synth.profile.layer_profile import LayerProfile, Timing, smaller_rises
from synth.profile.optimizer import OptimizerSpec
from synth.schedule.ops import Op

from ..execution.base.boundary import Tensors
from ..execution.base.clock import OpClock
from ..execution.gradients.all_reduce import local_part
from ..optimize import StageOptimizer, StepSettings, widen_gradients, zero_gradient
from .flop_count import forward_flops
from .held_bytes import held_bytes, recompute_saved_bytes
from .meter import measure
from .pairs import pair_samples_us
from .sample import Sample


def profile_layer(
    sample: Sample,
    spec: OptimizerSpec,
    *,
    warmup: int,
    iterations: int,
    pairs: bool = False,
    on_round: Callable[[], None] = lambda: None,
    on_left_to_b: Callable[[Mapping[str, int]], None] = lambda left: None,
) -> LayerProfile:
    """Measure one layer.

    Args:
        warmup: rounds that are not counted.
        iterations: rounds that are; F, B, W, BW and STEP are measured in each.
        pairs: also measure F and BW of two micro-batches at once; the device is a CUDA device.
        on_round: called after each round.
        on_left_to_b: given the sub-modules of which B computes weight gradients, by their elements.
    """
    parameters = [p for p in sample.layer.parameters() if p.requires_grad]
    if spec.float32_gradients:
        widen_gradients([sample.layer])
    for parameter in parameters:
        parameter.grad = zero_gradient(parameter)
    gradients = [p.grad for p in parameters if p.grad is not None]
    update = _Update(sample.layer, spec)
    times = _measure_times(sample, update if parameters else None, warmup, iterations, on_round)
    pair_us = None
    if pairs:
        both = _output_gradients(sample)
        pair_us = _timing(pair_samples_us(sample, both, warmup=warmup, iterations=iterations))
    held = held_bytes(sample)
    rises = held.rise_bytes | {OpKind.STEP: _rise(update, sample.device)}
    on_left_to_b(left := _left_to_b(sample))
    num_elements = sum(p.numel() for p in parameters)
    profile = LayerProfile(
        time_us={kind: _timing(times.get(kind, [])) for kind in MEASURED},
        parameter_bytes=_bytes([*sample.layer.parameters(), *sample.layer.buffers()]),
        gradient_bytes=_bytes(gradients),
        optimizer_bytes=update.state_bytes,
        output_bytes=held.output_bytes,
        output_gradient_bytes=(
            None if held.output_gradient_bytes == held.output_bytes else held.output_gradient_bytes
        ),
        saved_bytes=held.saved_bytes,
        saved_w_bytes=held.saved_w_bytes,
        rise_bytes=rises,
        inner_rise_bytes=smaller_rises(held.inner_rise_bytes, rises),
        input_until=held.input_until,
        output_until=held.output_until,
        gradient_until=held.gradient_until,
        tensors=held.tensors,
        recompute_saved_bytes=recompute_saved_bytes(sample, held),
        deferred_share=1 - sum(left.values()) / num_elements if num_elements else 1.0,
        forward_flops=forward_flops(sample),
        pair_us=pair_us,
    )
    for parameter in parameters:
        parameter.grad = None
    return profile


def _measure_times(
    sample: Sample,
    update: Callable[[], None] | None,
    warmup: int,
    iterations: int,
    on_round: Callable[[], None],
) -> Mapping[OpKind, list[float]]:
    """Alternate F+BW and F+B+W, so that drift of the machine hits both alike.

    The F that is measured follows a backward, as most of a step do. One behind STEP, which replaces
    the caches' contents, takes 7 % longer in a layer of eight experts on a CPU.
    """
    stage, clock = sample.stage(), OpClock(sample.device)
    gradients = _output_gradients(sample)
    for round_number in range(warmup + iterations):
        if round_number in (0, warmup):
            clock.begin()
        sample.forward(stage, sample.copy_of_x(), fused=True)
        with clock.measure(Op(OpKind.BW, 0)):
            stage.backward(0, gradients)
        x = sample.copy_of_x()
        with clock.measure(Op(OpKind.F, 0)):
            sample.forward(stage, x)
        with clock.measure(Op(OpKind.B, 0)):
            stage.backward_input(0, gradients)
        with clock.measure(Op(OpKind.W, 0)):
            stage.backward_weight(0)
        if update is not None:
            with clock.measure(Op(OpKind.STEP, 0)):
                update()
        on_round()
    times: defaultdict[OpKind, list[float]] = defaultdict(list)
    for op, start_us, end_us in clock.moments_us():
        times[op.kind].append(end_us - start_us)
    return times


def _output_gradients(sample: Sample) -> Tensors:
    """Gradients of the output's shapes, dense and small, as training has."""
    return tuple(gradient.fill_(1e-3) for gradient in sample.exit.gradients(sample.device))


def _timing(samples_us: Sequence[float]) -> Timing:
    if not samples_us:
        return Timing.exactly(0.0)
    quantiles = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    found = torch.quantile(torch.tensor(samples_us, dtype=torch.float64), quantiles)
    p10, median, p90 = (round(value, 3) for value in found.tolist())
    return Timing(median_us=median, p10_us=p10, p90_us=p90, n=len(samples_us))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in map(local_part, tensors))


class _Update:
    """All that STEP does for a layer, whenever it does it: a step validated later is done twice."""

    def __init__(self, layer: nn.Module, spec: OptimizerSpec) -> None:
        self._optimizer = StageOptimizer(layer.parameters(), spec)
        self._late = spec.post_validation
        self.state_bytes = self._optimizer.state_bytes()

    def __call__(self) -> None:
        settings = StepSettings(learning_rate=0.0)
        if self._late:
            self._optimizer.preview(settings)
        self._optimizer.step(settings)
        if not self._late:
            self._optimizer.show()


def _rise(action: Callable[[], None], device: torch.device) -> int:
    """The rise of memory during an action."""
    with measure(device) as found:
        action()
    return found.peak_bytes


def _left_to_b(sample: Sample) -> dict[str, int]:
    """The elements of weight gradients that B computes, by the sub-modules that have them."""
    stage, gradients = sample.stage(), _output_gradients(sample)
    for _ in range(2):  # the first backward shows what can wait
        sample.forward(stage, sample.copy_of_x())
        stage.backward_input(0, gradients)
        deferred = {id(p) for p in stage.deferred(0)}
        stage.backward_weight(0)
    left: Counter[str] = Counter()
    for name, parameter in sample.layer.named_parameters():
        if parameter.requires_grad and id(parameter) not in deferred:
            left[name.rpartition(".")[0]] += parameter.numel()
    return dict(left.most_common())
