"""Multi-tensor kernels over gradients of different kinds."""

import pytest
import torch

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
