"""Speed-ups of PipeDream, GPipe and Pipelined BP, as far as their models are printed."""

import csv
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from benchmarks.papers.comparison import PaperTable, Row, counted
from benchmarks.papers.tables.closed_forms import ran
from synth.costs.costs import Costs
from synth.costs.stage_costs import StageCosts
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.lowering.lower import Lowered
from synth.schedule.verify import verify

# PipeDream's profile of VGG-16, 128 images: github.com/msr-fiddle/pipedream@11c40c0, graph.txt of
# profiler/image_classification/profiles/vgg16; activations and pooling belong to the layer before.
_VGG16 = Path(__file__).parents[1] / "vgg16.csv"
_CONVOLUTIONS = 13
_RANKS, _MINI_BATCHES = 8, 28
_LINKS = Links(default=Link(latency_us=50, bandwidth_bytes_per_s=1.25e9))  # 10 Gb/s


class Layer(NamedTuple):
    """A layer of the profile: microseconds and bytes."""

    forward_us: float
    backward_us: float
    output_bytes: int
    parameter_bytes: int


def _vgg16() -> list[Layer]:
    with _VGG16.open(encoding="utf-8", newline="") as file:
        return [
            Layer(
                1e3 * float(line["forward_ms"]),
                1e3 * float(line["backward_ms"]),
                int(line["output_bytes"]),
                int(line["parameter_bytes"]),
            )
            for line in csv.DictReader(file)
        ]


def _stage(layers: Sequence[Layer], speed: float, *, is_last: bool) -> StageCosts:
    forward = round(sum(layer.forward_us for layer in layers) / speed)
    backward = round(sum(layer.backward_us for layer in layers) / speed)
    parameters = sum(layer.parameter_bytes for layer in layers)
    durations = {
        OpKind.F: forward,
        OpKind.B: backward // 2,
        OpKind.W: backward - backward // 2,
        OpKind.BW: backward,
        OpKind.STEP: 0,
    }
    return StageCosts(
        duration_us=durations,
        static_bytes=2 * parameters,
        parameter_bytes=parameters,
        gradient_bytes=parameters,
        output_bytes=0 if is_last else layers[-1].output_bytes,
        saved_bytes=0,
        saved_w_bytes=0,
        rise_bytes=dict.fromkeys(durations, 0),
    )


def _costs(cuts: Sequence[int], speed: float) -> Costs:
    """Return the costs of stages that begin at the cuts, on devices faster by `speed`."""
    layers = _vgg16()
    ends = (*cuts[1:], len(layers))
    stages = tuple(
        _stage(layers[begin:end], speed, is_last=end == len(layers))
        for begin, end in zip(cuts, ends, strict=True)
    )
    return Costs(stages=stages, links=_LINKS)


def _sent(lowered: Lowered) -> int:
    collectives = sum(one.sent_bytes for one in lowered.collectives)
    return int(lowered.transfer_table.num_bytes.sum()) + collectives


def _us_per_mini_batch(family: str, costs: Costs, few: int, more: int) -> float:
    """Return the time that a further mini-batch takes."""
    spans = [
        verify(generate(family, _RANKS, m, costs=costs), costs)[1].makespan_us for m in (few, more)
    ]
    return (spans[1] - spans[0]) / (more - few)


def _pipedream() -> Iterator[Row]:
    # As many stages as ranks, so that gradients of later layers are added up beside backwards.
    shared = (0, 2, 4, 7, 10, 13, 14, 15)
    piped = (0, _CONVOLUTIONS)
    name = "pipedream:7-1,full"
    costs = _costs(shared, 1.0)
    parallel, _ = verify(generate("data-parallel", _RANKS, _RANKS, costs=costs), costs)
    costs = _costs(piped, 1.0)
    pipeline, _ = verify(generate(name, _RANKS, _MINI_BATCHES, costs=costs), costs)
    kept = Fraction(_sent(pipeline), _MINI_BATCHES) / Fraction(_sent(parallel), _RANKS)
    yield Row("VGG-16, 7-1: traffic saved", round(float(1 - kept), 3))
    for speed in (1, 5):
        costs = _costs(shared, speed)
        line = verify(generate("data-parallel", _RANKS, _RANKS, costs=costs), costs)[1]
        us = _us_per_mini_batch(name, _costs(piped, speed), _MINI_BATCHES, 2 * _MINI_BATCHES)
        row = "VGG-16, 7-1, 10 Gb/s: speed over data parallelism"
        yield Row(row if speed == 1 else f"{row}, devices {speed} times as fast",
                  round(line.makespan_us / _RANKS / us, 2))  # fmt: skip


def _gpipe() -> Iterator[Row]:
    """The time of one device over that of eight, with 32 micro-batches."""
    _, line = ran("gpipe", 8, 32)
    yield Row(
        "GPipe, Transformer-L on 8 devices", round(8 * line.mean_work_us / line.makespan_us, 2)
    )


# Seide et al., Interspeech 2011: 7 hidden layers of 2048 units, 11 frames of 39, and 9304 senones.
_WIDTHS = (429, *[2048] * 7, 9304)


def _products(begin: int, end: int) -> int:
    """Return the multiplications of layers `begin` to `end`, of F and B together."""
    layers = range(begin, end)
    # The first layer has no gradient of its input.
    return sum((3 if place else 2) * _WIDTHS[place] * _WIDTHS[place + 1] for place in layers)


def _delayed(products: Sequence[int], total: int) -> float:
    """Return the speed-up of Pipelined BP with these stages while the pipeline is full."""
    durations = [max(1, round(1e3 * each / total * len(products))) for each in products]
    stages = tuple(
        StageCosts(
            duration_us={
                OpKind.F: us // 3,
                OpKind.B: (us - us // 3) // 2,
                OpKind.W: us - us // 3 - (us - us // 3) // 2,
                OpKind.BW: us - us // 3,
                OpKind.STEP: 0,
            },
            static_bytes=0,
            output_bytes=0,
            saved_bytes=0,
            saved_w_bytes=0,
            rise_bytes=dict.fromkeys((*OpKind,), 0),
        )
        for us in durations
    )
    costs = Costs(stages=stages)
    spans = [
        verify(generate("delayed-update", len(stages), m, costs=costs), costs)[1].makespan_us
        for m in (40, 80)
    ]
    alone = 1e3 * len(products)
    return alone / ((spans[1] - spans[0]) / 40)


def _best_delayed(ranks: int, striped: int = 1) -> float:
    """Return the best speed-up over all cuts; the top layer may be shared by the last ranks."""
    num_layers = len(_WIDTHS) - 1
    whole = num_layers if striped == 1 else num_layers - 1
    total = _products(0, num_layers)
    found = 0.0
    count = ranks if striped == 1 else ranks - striped
    for cuts in combinations(range(1, whole), count - 1):
        bounds = [*zip((0, *cuts), (*cuts, whole), strict=True)]
        products = [_products(*one) for one in bounds]
        if striped > 1:
            products.append(_products(whole, num_layers) // striped)
        found = max(found, _delayed(products, total))
    return found


def _pipelined_bp() -> Iterator[Row]:
    two, four = _best_delayed(2), _best_delayed(4)
    yield Row("Pipelined BP on 2 GPUs", round(two, 2))
    yield Row("Pipelined BP on 2 GPUs: efficiency", round(two / 2, 3))
    striped = _best_delayed(4, striped=2)
    yield Row("Pipelined BP on 4 GPUs, striped top layer", round(striped, 2))
    yield Row("Pipelined BP on 4 GPUs, striped top layer: efficiency", round(striped / 4, 3))
    yield counted("Pipelined BP on 4 GPUs: faster with a striped top layer", (striped > four,))


def _speedups() -> Iterator[Row]:
    yield from _pipedream()
    yield from _gpipe()
    yield from _pipelined_bp()


TABLES = (PaperTable("speed-ups", "of PipeDream, GPipe and Pipelined BP.", _speedups),)
