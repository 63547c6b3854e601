"""F and BW at once: two streams that wait for each other where they must; a CPU has none."""

import pytest
import torch
from torch import nn

from synth.errors import SynthError
from synth.runtime.profiling.pairs import pair_samples_us
from synth.runtime.profiling.profile_model import profile_layers
from synth.runtime.profiling.sample import Sample
from tests.runtime.cuda_fake.checker import check
from tests.runtime.cuda_fake.device import CudaFake
from tests.runtime.cuda_fake.trace import Work


def test_the_two_streams_wait_for_what_each_needs() -> None:
    fake = CudaFake()
    with fake.active():
        layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(fake.device)
        for parameter in layer.parameters():
            parameter.grad = torch.zeros_like(parameter)
        x = torch.ones(3, 4, device=fake.device)
        sample = Sample(layer, x, None, is_first=False)
        gradients = (torch.ones(3, 4, device=fake.device),)
        fake.recorder.trace.clear()
        found = pair_samples_us(sample, gradients, warmup=1, iterations=4)
    assert len(found) == 4
    assert check(fake.recorder.trace) == []
    work = [entry for entry in fake.recorder.trace if isinstance(entry, Work)]
    assert len({entry.stream for entry in work}) == 2
    # Of the ten forwards and backwards half run on each.
    products = [entry.stream for entry in work if entry.name in ("aten::addmm", "aten::mm")]
    assert 2 * products.count(products[0]) == len(products)


def test_a_cpu_runs_nothing_at_once() -> None:
    layers = [nn.Linear(4, 4), nn.Linear(4, 1)]
    with pytest.raises(SynthError, match="on cpu, which runs them one after the other"):
        profile_layers(layers, torch.ones(2, 4), None, pairs=True)
