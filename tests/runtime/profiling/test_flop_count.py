"""FLOPs that are counted equal the closed forms of papers, and those of autograd's own backward."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from synth.profile.workload import Workload
from synth.runtime.models import ModelSpec, build_layers
from synth.runtime.profiling.flop_count import forward_flops
from synth.runtime.profiling.profile_model import profile_layers, profile_model
from synth.runtime.profiling.sample import Sample

WIDTH, BLOCKS, VOCABULARY, LENGTH, BATCH = 32, 3, 64, 16, 2
TOKENS = BATCH * LENGTH


class Loss(nn.Module):
    """The last of a stack of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = nn.functional.cross_entropy(self.linear(x), targets)
        return loss


def one_block(model: str, **arguments: int | float | str | bool) -> nn.Module:
    """The transformer block of a built-in model."""
    arguments |= {"width": WIDTH, "num_blocks": 1, "context_length": LENGTH}
    return build_layers(ModelSpec(model, arguments), seed=0, indices=[1])[1]


def test_a_linear_stack_takes_six_flops_per_weight_and_sample() -> None:
    layers = [nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 4), Loss()]
    inputs, targets = torch.randn(5, 8), torch.zeros(5, dtype=torch.int64)
    profile = profile_layers(layers, inputs, targets, warmup=0, iterations=1)
    found = [profile.layer_profile(i).forward_flops for i in range(4)]
    assert found == [2 * 5 * 8 * 16, 0, 2 * 5 * 16 * 4, 2 * 5 * 4 * 3]
    assert profile.flops is not None
    assert profile.flops.per_micro_batch == 6 * 5 * (8 * 16 + 16 * 4 + 4 * 3)


@pytest.mark.parametrize("checkpoint", [False, True], ids=["plain", "checkpointed"])
def test_a_gpt_takes_6n_and_its_attention_12lhqt_per_token(checkpoint: bool) -> None:
    """Chowdhery et al. 2022, "PaLM", appendix B; Narayanan et al. 2021 print the same per layer.

    N are the weights of matrices. A checkpointed layer's second forward does not count.
    """
    arguments: dict[str, int | float | str | bool] = {
        "vocabulary_size": VOCABULARY,
        "width": WIDTH,
        "num_blocks": BLOCKS,
        "num_heads": 2,
        "context_length": LENGTH,
        "checkpoint": checkpoint,
    }
    workload = Workload(
        model="gpt", arguments=arguments, micro_batch_size=BATCH, sequence_length=LENGTH
    )
    found = profile_model(workload, torch.device("cpu"), warmup=0, iterations=1).flops
    weights = 12 * WIDTH**2 * BLOCKS + VOCABULARY * WIDTH
    attention = 12 * BLOCKS * WIDTH * LENGTH
    assert found is not None
    assert found.per_micro_batch == TOKENS * (6 * weights + attention)
    assert found.peak_per_s is None


def test_heads_of_keys_and_values_may_be_fewer_than_those_of_queries() -> None:
    block = one_block("llama", num_heads=4, num_kv_heads=2)
    matrices = sum(p.numel() for p in block.parameters() if p.dim() == 2)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    expected = TOKENS * (2 * matrices + 4 * LENGTH * WIDTH)
    assert forward_flops(Sample(block, x, None, is_first=False)) == expected


def test_autograd_s_backward_takes_twice_the_flops_of_the_forward() -> None:
    block = one_block("gpt", num_heads=2)
    x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
    forward = forward_flops(Sample(block, x, None, is_first=False))
    # A flash kernel computes QKᵀ again in its backward, which is recomputation.
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        y = block(x)
        with FlopCounterMode(display=False) as counter:
            y.sum().backward()
    assert counter.get_total_flops() == 2 * forward
