"""Measuring layers alone in turns with a whole step, so that both see the same machine."""

from collections.abc import Callable, Sequence
from statistics import median

from synth.op_kinds import OpKind
from synth.profile.whole_step import Turns
from synth.schedule.ops import Op

from ..execution.base.clock import OpClock
from ..execution.base.without_graph import without_graph
from ..input_function import MicroBatch
from ..models.layered_stage import LayerCall
from .sample import Sample

_F, _B, _W = Op(OpKind.F, 0), Op(OpKind.B, 0), Op(OpKind.W, 0)


def samples_of(calls: Sequence[LayerCall], batch: MicroBatch) -> list[Sample]:
    """Run layers one after another without autograd; return each with its input.

    Args:
        batch: on the device of the layers.
    """
    x, found = batch.inputs, list[Sample]()
    trained: tuple[bool, ...] = (False,)
    for place, call in enumerate(calls):
        targets = batch.targets if place == len(calls) - 1 else None
        sample = Sample(call.module, x, targets, place == 0, call, trained)
        with without_graph():
            x = sample.run()
        trained = sample.trained_outputs(x)
        found.append(sample)
    return found


def in_turns(
    whole_us: Callable[[], float], samples: Sequence[Sample], clock: OpClock, rounds: int
) -> Turns:
    """Run a whole step, then each layer alone, and so on; return the medians.

    Args:
        samples: the layers, whose parameters have gradients.
        clock: records the times of ops.
        rounds: of both; one more is not counted.
    """
    parts = [_part(sample, clock) for sample in samples]
    wholes, alone = list[float](), [list[float]() for _ in parts]
    for _ in range(1 + rounds):
        wholes.append(whole_us())
        for times, part_us in zip(alone, parts, strict=True):
            times.append(part_us())
    return Turns(
        whole_us=round(median(wholes[1:]), 3),
        parts_us=round(sum(median(times[1:]) for times in alone), 3),
    )


def _part(sample: Sample, clock: OpClock) -> Callable[[], float]:
    """Return what runs F, B and W of a layer, behind a backward, and returns their time."""
    stage = sample.stage()
    gradients = tuple(g.fill_(1e-3) for g in sample.exit.gradients(sample.device))

    def part_us() -> float:
        sample.forward(stage, sample.copy_of_x(), fused=True)
        stage.backward(0, gradients)
        x = sample.copy_of_x()
        clock.begin()
        with clock.measure(_F):
            sample.forward(stage, x)
        with clock.measure(_B):
            stage.backward_input(0, gradients)
        with clock.measure(_W):
            stage.backward_weight(0)
        return sum(end_us - start_us for _, start_us, end_us in clock.moments_us())

    return part_us
