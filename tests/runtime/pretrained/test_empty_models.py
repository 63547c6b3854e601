"""Models whose parameters have no values yet are otherwise as they are with values."""

from typing import Any

import torch
from torch import nn

import synth
from synth.runtime.models.empty import allocate_parameters


class Tied(nn.Module):
    """Its embedding and its head share a parameter, which is made first."""

    def __init__(self) -> None:
        super().__init__()
        weight = nn.Parameter(torch.randn(8, 4))
        weight.no_weight_decay = True  # type: ignore[attr-defined]
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8)
        self.embed.weight = weight
        self.head.weight = weight


def test_parameters_that_a_variable_ties_stay_tied() -> None:
    with synth.empty_parameters():
        first, second = Tied(), Tied()
    for model in (first, second):
        assert model.embed.weight is model.head.weight
        assert model.embed.weight.is_meta
    assert first.embed.weight is not second.embed.weight
    allocate_parameters([first], "cpu")
    assert first.embed.weight is first.head.weight and not first.head.weight.is_meta


def test_attributes_of_parameters_stay() -> None:
    with synth.empty_parameters():
        model: Any = Tied()
    model.head.bias.is_mine = True
    assert model.embed.weight.no_weight_decay
    allocate_parameters([model], "cpu")
    assert model.embed.weight.no_weight_decay and model.head.bias.is_mine
