"""The trials of stages without data: they tell what the stage gives on the device of the run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from synth.runtime.batch import Batch
from synth.runtime.execution.stage.shapes import ShapeFinder
from synth.runtime.models.layered_stage import LayerCall, LayeredStage
from synth.schedule.model import Placement


class OneRank:
    """The rank with the first stage, alone."""

    rank = 0

    def agree(self, owner: int, find: Callable[[], Any]) -> Any:
        return find()


def dtype_given(trial_device: str) -> torch.dtype:
    """The dtype that a stage without data is said to give under autocast."""
    with torch.device("meta"):
        layer = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    call = LayerCall(0, layer, autocast=torch.float16)
    stage = LayeredStage([call], is_first=True, is_last=False)
    stage.trial_device = torch.device(trial_device)
    group: Any = OneRank()
    shapes = ShapeFinder(group, Placement.linear(2), {0: stage}, changing=False)
    [[boundary]] = shapes.of(Batch([torch.zeros(3, 8)]), 1)
    assert boundary.leaves[0].shape == (3, 8)
    return boundary.leaves[0].dtype


def test_autocast_is_that_of_the_device_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA a norm computes in float32 under autocast, on a CPU in float16.

    This machine need not have CUDA: tensors without data are enough.
    """
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    with torch.autocast("cpu", torch.float16):
        real = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))(torch.zeros(3, 8))
    assert dtype_given("cpu") == real.dtype == torch.float16
    assert dtype_given("cuda:0") == torch.float32
