"""A forward that saves nothing, run again by R: its random draws, memory and refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.runtime.execution.base.boundary import Boundary, Leaf
from synth.runtime.execution.base.stage_protocol import ForwardInput
from synth.runtime.execution.stage.stage import Stage
from synth.runtime.profiling.meter import measure

WIDTH, ROWS = 256, 64


def dropping() -> Stage:
    torch.manual_seed(3)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)]
    return Stage(layers, is_first=False, is_last=False)


def received() -> tuple[tuple[Tensor, ...], Boundary]:
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(5))
    return (x,), Boundary((Leaf(tuple(x.shape), x.dtype, True),))


def gradients(stage: Stage, fused: bool, microbatch: int = 0) -> list[Tensor]:
    """B and W, or BW; the input's gradient, then the parameters'."""
    given = (torch.ones(ROWS, WIDTH),)
    if fused:
        (back,) = stage.backward(microbatch, given)
    else:
        (back,) = stage.backward_input(microbatch, given)
        stage.backward_weight(microbatch)
    found = [back, *(p.grad.clone() for p in stage.parameters() if p.grad is not None)]
    for parameter in stage.parameters():
        parameter.grad = None
    return found


@pytest.mark.parametrize("fused", [False, True])
def test_r_drops_out_what_f_did_and_others_draw_as_if_it_had_not_run(fused: bool) -> None:
    stage, (row, entry) = dropping(), received()
    torch.manual_seed(9)
    (kept,) = stage.forward(0, ForwardInput(row, entry=entry, fused=fused))
    after_f = torch.rand(4)
    expected = gradients(stage, fused)
    torch.manual_seed(9)
    (light,) = stage.forward_light(0, ForwardInput(row, entry=entry))
    torch.rand(7)
    torch.manual_seed(21)
    stage.rebuild(0, ForwardInput(row, entry=entry, fused=fused))
    drawn = torch.rand(4)
    assert torch.equal(light, kept)
    assert all(map(torch.equal, gradients(stage, fused), expected))
    torch.manual_seed(21)
    assert torch.equal(drawn, torch.rand(4))
    torch.manual_seed(9)
    stage.forward_light(0, ForwardInput(row, entry=entry))
    assert torch.equal(torch.rand(4), after_f)


def test_a_light_forward_holds_its_output_alone() -> None:
    stage, (row, entry) = dropping(), received()
    held: list[Any] = []
    with measure(torch.device("cpu")) as light:
        held.append(stage.forward_light(0, ForwardInput(row, entry=entry)))
    with measure(torch.device("cpu")) as rebuilt:
        stage.rebuild(0, ForwardInput(row, entry=entry))
    assert light.net_bytes == ROWS * WIDTH * 4
    assert rebuilt.net_bytes > 0
    with measure(torch.device("cpu")) as usual:
        held.append(stage.forward(1, ForwardInput(row, entry=entry)))
    # R makes no output for others; what F keeps besides it is the same.
    assert rebuilt.net_bytes == usual.net_bytes - light.net_bytes


def test_a_stage_that_changes_its_input_cannot_be_run_once_more() -> None:
    stage, (row, entry) = Stage([nn.ReLU(inplace=True)], is_first=False, is_last=False), received()
    with pytest.raises(SynthError, match="changes its input in place"):
        stage.forward_light(0, ForwardInput(row, entry=entry))


class OfGradMode(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if torch.is_grad_enabled() else 2 * y


class WithFewerRows(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if torch.is_grad_enabled() else y[:3]


@pytest.mark.parametrize("kind", [OfGradMode, WithFewerRows])
def test_a_forward_that_depends_on_the_graph_cannot_be_run_once_more(kind: Any) -> None:
    stage, (row, entry) = Stage(kind(WIDTH, 4), is_first=False, is_last=False), received()
    stage.begin()
    stage.forward_light(0, ForwardInput(row, entry=entry))
    with pytest.raises(SynthError, match="another output than its forward did"):
        stage.rebuild(0, ForwardInput(row, entry=entry))


def test_micro_batches_under_way_are_forgotten() -> None:
    stage, (row, entry) = dropping(), received()
    stage.forward_light(0, ForwardInput(row, entry=entry))
    stage.forget()
    with pytest.raises(KeyError):
        stage.rebuild(0, ForwardInput(row, entry=entry))
