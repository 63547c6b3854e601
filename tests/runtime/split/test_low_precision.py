"""Layers of low precision leave their weight gradients to W."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.split_cost_layers import Float8Mlp, RoutedExperts
from synth.runtime.split import Recorder

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "float8": lambda: Float8Mlp(32),
    "routed experts": lambda: RoutedExperts(32, 4),
}


@pytest.mark.parametrize("name", LAYERS)
def test_most_gradients_of_low_precision_wait_for_w(name: str) -> None:
    torch.manual_seed(0)
    mine = LAYERS[name]()
    theirs, recorder = copy.deepcopy(mine), Recorder(mine)
    for _ in range(3):
        x = torch.randn(2, 16, 32)
        mine_x, true_x = x.clone().requires_grad_(), x.clone().requires_grad_()
        tape = recorder.new_tape()
        recorder.backward_input(tape, recorder.forward(tape, mine, mine_x).pow(2).sum())
        waiting = tape.deferred
        tape.backward_weight()
        theirs(true_x).pow(2).sum().backward()
        assert mine_x.grad is not None and true_x.grad is not None
        assert torch.equal(mine_x.grad, true_x.grad)
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert a.grad is not None and b.grad is not None
            assert torch.equal(a.grad, b.grad)
    share = sum(p.numel() for p in waiting) / sum(p.numel() for p in mine.parameters())
    assert share >= 0.85
