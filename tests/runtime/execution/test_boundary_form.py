"""Tensors between stages keep their order in memory; gradients of those that ask come back."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.runtime.execution.base.boundary import Boundary, Leaf, packed, unpacked
from synth.runtime.execution.stage import shapes
from synth.runtime.execution.stage.stage import Stage


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4),
        torch.randn(2, 3, 4).transpose(1, 2),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.randn(2, 3, 8)[:, :, ::2],
        torch.randn(3, 1).expand(3, 4),
    ],
    ids=["contiguous", "transposed", "channels last", "with gaps", "expanded"],
)
def test_what_is_sent_is_contiguous_and_arrives_as_it_was(tensor: Tensor) -> None:
    leaves = (Leaf.of(tensor, trained=True),)
    (sent,) = packed(leaves, [tensor])
    (found,) = unpacked(leaves, [sent])
    assert sent.is_contiguous()
    assert torch.equal(found, tensor)
    if tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size():
        assert sent.data_ptr() == tensor.data_ptr()
        assert found.stride() == tensor.stride() == leaves[0].empty("cpu").stride()


class WithTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x), x.detach().cos()


def test_no_gradient_comes_back_of_a_table() -> None:
    stage = Stage(WithTable(), is_first=True, is_last=False)
    x = torch.randn(3, 4)
    own = shapes._trained_tensors(stage, (x,), None, {}, WithTable()(x))
    assert own == [True, False]
    assert Boundary.of(WithTable()(x), trained=own).gradients("cpu")[0].shape == (3, 4)


def own_of_wrapped(rank: int, size: int, wrap: str) -> tuple[Any, list[bool]]:
    """Return what asks for gradients, and whether parameters have any after a trial and a step."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    module: nn.Module = WithTable()
    if wrap == "ddp":
        module = DistributedDataParallel(module, process_group=dist.group.WORLD)
    else:
        fully_shard(module, mesh=init_device_mesh("cpu", (size,)))
    stage, x = Stage(module, is_first=True, is_last=False), torch.randn(3, 4)
    own = shapes._trained_tensors(stage, (x,), None, {}, WithTable()(x))
    module(x)[0].sum().backward()  # the wrapper reduces as ever
    return own, [p.grad is not None for p in module.parameters()]


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_no_gradient_comes_back_of_a_table_of_a_wrapped_stage(wrap: str, pool: Any) -> None:
    for own, have_gradients in pool.run(own_of_wrapped, 2, wrap):
        assert own == [True, False]
        assert all(have_gradients)


def test_graphs_of_convolutions_are_found_without_fake_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Recomputed layers read storages, of which fake tensors write a traceback to the terminal."""
    made: list[Any] = []
    monkeypatch.setattr(shapes, "FakeTensorMode", lambda **options: made.append(options))
    stage = Stage(nn.Sequential(nn.Conv2d(3, 3, 3), WithTable()), is_first=True, is_last=False)
    x = torch.randn(2, 3, 6, 6)
    output = (x[..., :4], x[..., :4])
    assert shapes._trained_tensors(stage, (x,), None, {}, output) == [True, False]
    assert not made


def test_convolutions_are_tried_out_with_the_layout_that_they_return() -> None:
    conv = nn.Conv2d(3, 3, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    tried = shapes._try_out(
        Stage(copy.deepcopy(conv), is_first=True, is_last=False), (x,), None, {}
    )
    assert tried.stride() == conv(x).stride()
