"""Vocabulary parallelism beside its paper's measurements (arXiv 2411.05288, tables 1, 4, 5)."""

from typing import NamedTuple

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.families import generate
from synth.schedule.verify import verify

NUM_MICRO_BATCHES = 128
VOCABULARIES = (1 << 15, 1 << 16, 1 << 17, 1 << 18)
GIB = 1 << 30

Row = tuple[float, float, float, float]


class Measured(NamedTuple):
    """MFU in % by vocabulary of 1F1B ("Baseline"), Vocab-1 and Vocab-2, and the latter's peaks."""

    baseline: Row
    vocab_1: Row
    vocab_2: Row
    peaks_1: Row
    peaks_2: Row


# By ranks, layers, hidden size and tokens of a sequence.
PAPER = {
    (8, 32, 3072, 2048): Measured(
        (46.16, 40.48, 33.11, 25.23),
        (50.42, 50.28, 49.93, 50.12),
        (50.23, 50.18, 49.82, 49.69),
        (15.63, 16.02, 16.84, 18.59),
        (14.83, 15.23, 16.04, 17.78),
    ),
    (8, 32, 3072, 4096): Measured(
        (47.05, 41.87, 35.00, 26.75),
        (50.98, 50.98, 50.83, 50.66),
        (50.93, 50.75, 50.56, 50.40),
        (24.04, 24.47, 25.41, 27.34),
        (22.44, 22.89, 23.80, 25.73),
    ),
    (16, 48, 4096, 2048): Measured(
        (45.66, 40.09, 32.44, 24.21),
        (49.02, 50.62, 50.54, 50.66),
        (48.90, 50.49, 50.46, 50.46),
        (24.37, 24.63, 25.14, 26.26),
        (23.57, 23.83, 24.35, 25.47),
    ),
    (16, 48, 4096, 4096): Measured(
        (47.56, 41.21, 33.88, 25.33),
        (50.93, 50.97, 50.71, 51.22),
        (50.97, 50.80, 50.68, 50.90),
        (39.46, 39.73, 40.31, 41.53),
        (37.89, 38.18, 38.77, 39.92),
    ),
    (32, 64, 5120, 2048): Measured(
        (42.81, 37.28, 28.97, 20.86),
        (45.85, 45.92, 45.90, 46.11),
        (45.54, 45.86, 45.86, 46.16),
        (33.38, 33.55, 33.86, 34.51),
        (32.72, 32.88, 33.20, 33.84),
    ),
    (32, 64, 5120, 4096): Measured(
        (43.68, 38.11, 30.05, 21.63),
        (46.41, 46.44, 46.68, 46.83),
        (46.23, 46.35, 46.55, 46.84),
        (57.41, 57.56, 57.88, 58.58),
        (56.09, 56.26, 56.61, 57.31),
    ),
}


def costs_of(*times: tuple[int, int, int]) -> Costs:
    stages = [
        uniform_costs(1, forward_us=f, backward_input_us=b, backward_weight_us=w).stages[0]
        for f, b, w in times
    ]
    return Costs(stages=tuple(stages))


def makespan_us(name: str, p: int, costs: Costs) -> int:
    made = generate(name, p, NUM_MICRO_BATCHES, costs=costs)
    return verify(made, costs)[1].makespan_us


@pytest.mark.parametrize(
    "setup", [pytest.param(each, marks=pytest.mark.slow if each[0] > 8 else ()) for each in PAPER]
)
def test_gains_are_the_measured_ones_but_for_what_the_parts_lose(
    setup: tuple[int, int, int, int],
) -> None:
    """By operations alone (table 4): F, B and W of a layer 24 h + 4 s, of the head 2 V each.

    The head's parts reach 76 to 93 % of a p-th of its speed (table 3), which is not in the times
    here, so the simulated time is up to 12 % shorter.
    """
    p, layers, hidden, seq = setup
    measured, ratios = PAPER[setup], []
    for number, vocabulary in enumerate(VOCABULARIES):
        each_us = 10_000
        head_us = round(each_us * 2 * vocabulary * p / layers / (24 * hidden + 4 * seq))
        part_us = round(head_us / p)
        own, last = (each_us,) * 3, (each_us + head_us,) * 3
        usual_us = makespan_us("1f1b", p, costs_of(*[own] * (p - 1), last))
        passes = {
            "1f1b-vocab:1": ((part_us, 2 * part_us, 0), measured.vocab_1),
            "1f1b-vocab": ((2 * part_us, part_us, 0), measured.vocab_2),
        }
        for name, (of_head, found) in passes.items():
            costs = costs_of(*[(0, 0, 0)] * p, *[own] * p, *[of_head] * p)
            simulated = makespan_us(name, p, costs) / usual_us
            assert 0.88 <= simulated / (measured.baseline[number] / found[number]) <= 1
            ratios.append(simulated)
    # The larger the vocabulary, the larger the gain; algorithm 2 is no slower than 1.
    assert ratios[0::2] == sorted(ratios[0::2], reverse=True)
    assert all(two <= one for one, two in zip(ratios[0::2], ratios[1::2], strict=True))


@pytest.mark.parametrize("setup", PAPER)
def test_algorithm_1_measurably_holds_one_micro_batch_more(
    setup: tuple[int, int, int, int],
) -> None:
    """p + 2 and p + 1: the peaks differ by 34 s h bytes for each layer of a rank (Korthikanti)."""
    p, layers, hidden, seq = setup
    micro_batch = 34 * seq * hidden * layers / p / GIB
    measured = PAPER[setup]
    for more, less in zip(measured.peaks_1, measured.peaks_2, strict=True):
        assert more - less == pytest.approx(micro_batch, rel=0.05)
