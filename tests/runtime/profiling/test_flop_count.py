"""FLOPs that are counted equal the closed forms of papers, and those of autograd's own backward."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from synth.profile.workload import Workload
from synth.runtime.models import ModelSpec, build_model
from synth.runtime.profiling.flop_count import _grouped_product, forward_flops
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
    return build_model(ModelSpec(model, arguments), seed=0, indices=[1]).layers[1]


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


class Experts(nn.Module):
    """Three experts, each of which multiplies the rows that are routed to it by its own matrix."""

    ends: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.randn(3, 16, 32))
        self.register_buffer("ends", torch.tensor([8, 20, 32], dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "grouped":
            y: Tensor = torch._grouped_mm(x, self.weight, offs=self.ends)
            return y
        starts = [0, *self.ends.tolist()]
        pairs = zip(starts, starts[1:], self.weight, strict=False)
        return torch.cat([_by(self.how, x[i:j], w) for i, j, w in pairs])


def _by(how: str, x: Tensor, weight: Tensor) -> Tensor:
    if how == "mm":
        return x @ weight
    if how == "bmm":
        return torch.bmm(x[None], weight[None])[0]
    if how == "baddbmm":
        return torch.baddbmm(torch.zeros(1, 1, 32), x[None], weight[None])[0]
    if how == "mv":
        return torch.stack([torch.mv(weight.T, row) for row in x])
    return torch.einsum("ti,io->to", x, weight)


@pytest.mark.parametrize("how", ["grouped", "mm", "bmm", "baddbmm", "mv", "einsum"])
def test_experts_take_the_same_flops_however_their_products_are_called(how: str) -> None:
    dtype = torch.bfloat16 if how == "grouped" else torch.float32
    sample = Sample(Experts(how).to(dtype), torch.randn(32, 16, dtype=dtype), None, is_first=False)
    assert forward_flops(sample) == 2 * 32 * 16 * 32


@pytest.mark.parametrize(
    ("a", "b"),
    [((12, 16), (3, 16, 8)), ((3, 16, 8), (8, 12)), ((16, 12), (12, 8)), ((3, 4, 16), (3, 16, 8))],
    ids=["rows", "columns", "inner", "batch"],
)
def test_all_forms_of_a_grouped_product_count_each_group_s_own(
    a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    ends = [4, 8, 12]
    if len(a) == len(b) == 3:
        expected = sum(2 * a[1] * a[2] * b[2] for _ in ends)
    elif len(a) == 2 and len(b) == 3:
        expected = sum(2 * 4 * a[1] * b[2] for _ in ends)
    elif len(a) == 3:
        expected = sum(2 * a[1] * a[2] * 4 for _ in ends)
    else:
        expected = sum(2 * a[0] * 4 * b[1] for _ in ends)
    assert _grouped_product(a, b) == expected
