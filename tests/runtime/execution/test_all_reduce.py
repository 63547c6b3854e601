"""Sums of many tensors over a group."""

from typing import Any

import torch
from torch import Tensor

from synth.runtime.execution.gradients.all_reduce import buckets


def sizes(tensors: list[Tensor], most_bytes: float) -> list[list[int]]:
    return [[t.numel() for t in bucket] for bucket in buckets(tensors, most_bytes)]


def test_small_neighbours_share_a_bucket_and_large_ones_are_alone() -> None:
    tensors = [torch.empty(n) for n in (1, 2, 3, 100, 4, 5)]
    assert sizes(tensors, 4 * 6) == [[1, 2, 3], [100], [4], [5]]
    assert sizes(tensors, float("inf")) == [[1, 2, 3, 100, 4, 5]]
    assert sizes([], 24) == []


def test_a_bucket_is_of_one_dtype() -> None:
    tensors = [torch.empty(1), torch.empty(2), torch.empty(3).bfloat16(), torch.empty(4)]
    assert sizes(tensors, float("inf")) == [[1, 2], [3], [4]]


def add_up(rank: int, size: int) -> list[Tensor]:
    import torch.distributed as dist

    from synth.runtime.execution.gradients.all_reduce import start_all_reduce

    tensors = [
        torch.full((2, 3), rank + 1.0),
        torch.full((), 3.0 * (rank + 1)),
        torch.full((4,), complex(rank, 2), dtype=torch.complex64),
        torch.full((5,), rank + 1.0, dtype=torch.bfloat16),
        torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.ones(300_000),
    ]
    for work in start_all_reduce(dist.group.WORLD, tensors, divisor=size):
        work.wait()
    assert start_all_reduce(dist.group.WORLD, [], divisor=size) == []
    return tensors


def test_gloo_gets_tensors_of_a_device_one_by_one() -> None:
    """Its coalesced all-reduce refuses those of CUDA, for which meta stands here."""
    import torch.distributed as dist

    from synth.runtime.execution.gradients.all_reduce import start_all_reduce

    class Gloo(dist.ProcessGroupGloo):
        def allreduce(self, tensors: list[Tensor]) -> int:
            return len(tensors)

        def allreduce_coalesced(self, tensors: list[Tensor]) -> int:
            assert all(tensor.device.type == "cpu" for tensor in tensors)
            return len(tensors)

    group = Gloo.__new__(Gloo)
    on_device, on_host = ([torch.empty(3, device=d) for _ in range(2)] for d in ("meta", "cpu"))
    assert [str(one) for one in start_all_reduce(group, on_device)] == ["1", "1"]
    assert [str(one) for one in start_all_reduce(group, on_host)] == ["2"]


def test_tensors_of_all_kinds_become_their_average(pool: Any) -> None:
    wanted = [
        torch.full((2, 3), 1.5),
        torch.tensor(4.5),
        torch.full((4,), complex(0.5, 2), dtype=torch.complex64),
        torch.full((5,), 1.5, dtype=torch.bfloat16),
        torch.arange(24.0).view(1, 2, 3, 4),
        torch.ones(300_000),
    ]
    for found in pool.run(add_up, 2):
        for mine, true in zip(found, wanted, strict=True):
            assert torch.equal(mine, true)
