"""Measuring F of one micro-batch and BW of another one at once, on two streams of a CUDA device."""

from functools import partial

from synth.op_kinds import OpKind
from synth.schedule.ops import Op

from ..execution.base.boundary import Tensors
from ..execution.base.clock import OpClock
from ..execution.program.pair_streams import PairStreams
from .sample import Sample

_BW, _NEXT_F, _NEXT_BW = Op(OpKind.BW, 0, 0), Op(OpKind.F, 0, 1), Op(OpKind.BW, 0, 1)


def pair_samples_us(
    sample: Sample, gradients: Tensors, *, warmup: int, iterations: int
) -> list[float]:
    """Return the times of both at once, from the begin of the first to the end of the last.

    Args:
        sample: a layer on a CUDA device, with a micro-batch; its parameters have gradients.
        gradients: of its output.
        warmup: rounds that are not counted.
        iterations: rounds that are.
    """
    stage, clock = sample.stage(), OpClock(sample.device)
    ops = (Op(OpKind.F, 0, 0), _NEXT_F, _BW, _NEXT_BW)
    streams = PairStreams(ops, {_NEXT_F}, sample.device)
    backward = streams.running(_BW, partial(stage.backward, 0, gradients))
    next_backward = streams.running(_NEXT_BW, partial(stage.backward, 1, gradients))
    for round_number in range(warmup + iterations):
        if round_number in (0, warmup):
            clock.begin()
        sample.forward(stage, sample.copy_of_x(), fused=True)
        x = sample.copy_of_x()
        forward = streams.running(
            _NEXT_F, partial(sample.forward, stage, x, fused=True, microbatch=1)
        )
        with clock.measure(_NEXT_F):
            forward()
            backward()
        next_backward()
    return [end_us - start_us for _, start_us, end_us in clock.moments_us()]
