"""The learning rate of a step is what torch's schedulers come to, step by step."""

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from synth.run_options.learning_rate import Decay, LearningRate

TOTAL, WARMUP, PEAK, LEAST = 30, 5, 0.8, 0.1


def rates_of(scheduler: LRScheduler, optimizer: SGD) -> list[float]:
    rates = []
    for _ in range(TOTAL):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
def test_each_schedule_is_torchs_own(decay: Decay) -> None:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    falling = TOTAL - WARMUP
    after = {
        "constant": LinearLR(optimizer, 1.0, 1.0),
        "linear": LinearLR(optimizer, 1.0, LEAST / PEAK, falling),
        "cosine": CosineAnnealingLR(optimizer, falling, LEAST),
    }
    optimizer.param_groups[0]["lr"] = PEAK
    warmup = LinearLR(optimizer, 1 / WARMUP, 1.0, WARMUP - 1)
    both = SequentialLR(optimizer, [warmup, after[decay]], [WARMUP])
    least = 0.0 if decay == "constant" else LEAST
    rate = LearningRate(peak=PEAK, decay=decay, warmup_steps=WARMUP, least=least)
    assert [rate.at(step, TOTAL) for step in range(TOTAL)] == pytest.approx(
        rates_of(both, optimizer)
    )


def test_after_the_last_step_the_rate_stays_at_its_least() -> None:
    rate = LearningRate(peak=1.0, decay="cosine", least=0.25)
    assert rate.at(1000, 10) == 0.25
