"""Multi-tensor kernels over gradients of different kinds."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from synth.runtime.optimize.multi_tensor import group_alike, squared_norm


def test_the_norm_is_of_all_gradients_whatever_their_dtype() -> None:
    torch.manual_seed(0)
    gradients = [
        torch.randn(3, 4),
        torch.randn(5).bfloat16(),
        torch.randn(2, dtype=torch.float64),
        torch.randn(3, dtype=torch.complex64),
        torch.randn(()),
    ]
    wanted = sum(float(g.to(torch.complex128).abs().square().sum()) for g in gradients)
    found = squared_norm(gradients, torch.device("cpu"))
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(wanted, rel=1e-6)


def test_no_gradients_have_the_norm_zero() -> None:
    assert float(squared_norm([], torch.device("cpu"))) == 0


def test_only_tensors_of_one_dtype_are_grouped() -> None:
    a, b, c = torch.ones(1), torch.ones(2).bfloat16(), torch.ones(3)
    assert [[len(t) for t in group] for group in group_alike([a, b, c])] == [[1, 3], [2]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_large_gradient_is_copied_for_its_norm(dtype: torch.dtype) -> None:
    gradient = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0)).to(dtype)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        found = squared_norm([gradient], torch.device("cpu"))
    assert float(found) == pytest.approx(float(gradient.double().square().sum()), rel=1e-4)
    largest = max(event.self_cpu_memory_usage for event in profiled.events())
    assert largest < gradient.nbytes / 4
