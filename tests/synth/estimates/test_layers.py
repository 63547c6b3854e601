"""FLOPs and bytes of layers against the closed forms of papers."""

import pytest

from synth.estimates.layer_ops import LayerOps
from synth.estimates.layout import AttentionKernel, Layout, Recompute, Sharding, Software
from synth.estimates.memory import MemoryOf
from synth.estimates.model_config import model_of
from synth.estimates.model_shape import gpt
from synth.estimates.ops import ExchangeKind, GroupExchange, Role
from synth.profile.optimizer import OptimizerSpec

GPT = gpt("g", layers=12, hidden=1536, heads=16, vocab=51200)
UNFUSED = Software(attention=AttentionKernel.UNFUSED)
ADAM = OptimizerSpec.parse("adamw+master+float32-gradients")


def test_flops_are_those_of_the_megatron_paper() -> None:
    """72·B·s·l·h²·(1 + s/6h + V/12lh), forward and backward without a second forward.

    (Narayanan et al. 2021, equation 2, less its recomputed forward of the layers.)
    """
    length, batch = 2048, 4
    ops = LayerOps(GPT, Layout(seq_len=length, micro_batch_size=batch), UNFUSED, 8)
    layer, head = ops.decoder(dense=True), ops.head()
    # The backward of unfused attention has four products, that of a fused one five.
    forward = 12 * layer.flops(Role.F) + head.flops(Role.F)
    h = GPT.hidden
    relative = 1 + length / (6 * h) + GPT.vocab / (12 * 12 * h)
    assert 3 * forward == pytest.approx(72 * batch * length * 12 * h**2 * relative)


@pytest.mark.parametrize("tensor", [1, 8])
def test_activations_are_those_of_the_selective_recomputation_paper(tensor: int) -> None:
    """sbh(34 + 5as/h)/t with sequence parallelism (Korthikanti et al. 2022, table 2)."""
    length, batch = 2048, 4
    layout = Layout(seq_len=length, micro_batch_size=batch, tensor=tensor)
    memory = MemoryOf(GPT, layout, UNFUSED, ADAM)
    held = memory.decoder(dense=True).saved + memory.boundary  # the input is the layer's own
    h, heads = GPT.hidden, GPT.heads
    paper = length * batch * h * (34 + 5 * heads * length / h) / tensor
    assert held == pytest.approx(paper)
    selective = layout.replace(recompute=Recompute.SELECTIVE)
    kept = MemoryOf(GPT, selective, UNFUSED, ADAM)
    held = kept.decoder(dense=True).saved + kept.boundary
    assert held == pytest.approx(length * batch * h * 34 / tensor)


def test_without_sequence_parallelism_norms_and_residuals_stay_whole() -> None:
    """sbh(10 + 24/t + 5as/ht) (the same paper, table 2)."""
    layout = Layout(seq_len=2048, tensor=8, sequence=False)
    memory = MemoryOf(GPT, layout, UNFUSED, ADAM)
    held = memory.decoder(dense=True).saved + memory.boundary
    h, heads = GPT.hidden, GPT.heads
    assert held == pytest.approx(2048 * h * (10 + 24 / 8 + 5 * heads * 2048 / (8 * h)))


def test_states_are_18_bytes_a_parameter_and_6_with_a_twelfth_shared() -> None:
    def total(sharding: Sharding) -> int:
        memory = MemoryOf(GPT, Layout(seq_len=64, data=4, sharding=sharding), UNFUSED, ADAM)
        states = memory.decoder_states(dense=True)
        return states.parameter_bytes + states.gradient_bytes + states.optimizer_bytes

    number = GPT.layer_parameters(dense=True)
    assert total(Sharding.NONE) == pytest.approx(18 * number, abs=16)
    assert total(Sharding.ZERO1) == pytest.approx((6 + 12 / 4) * number, abs=16)
    assert total(Sharding.FSDP) == pytest.approx(18 / 4 * number, abs=16)


def test_experts_are_shared_by_their_own_ranks() -> None:
    shape = model_of("mixtral-8x22b")
    layout = Layout(seq_len=4096, data=16, expert=8)
    states = MemoryOf(shape, layout, Software(), ADAM).decoder_states(dense=False)
    others = shape.layer_parameters(dense=False) - shape.expert_parameters
    assert states.parameter_bytes == 2 * (others + shape.expert_parameters // 8)
    own = 12 * (others / 16 + shape.expert_parameters / 8 / 2)
    assert states.optimizer_bytes == pytest.approx(own, rel=1e-6)


def test_tensor_parallelism_exchanges_the_activations_four_times_in_each_direction() -> None:
    layout = Layout(seq_len=1024, tensor=8)
    work = LayerOps(GPT, layout, UNFUSED, 8).decoder(dense=True)
    for role, times in ((Role.F, 4), (Role.B, 4), (Role.W, 0)):
        sent = [one for one in work.by_role[role] if isinstance(one, GroupExchange)]
        assert [one.num_bytes for one in sent] == [2 * 1024 * GPT.hidden] * times
    kinds = {one.kind for one in work.by_role[Role.F] if isinstance(one, GroupExchange)}
    assert kinds == {ExchangeKind.ALL_GATHER, ExchangeKind.REDUCE_SCATTER}


def test_a_local_layer_attends_to_its_window_only() -> None:
    gemma = model_of("gemma3-27b")
    layout = Layout(seq_len=8192)
    local = LayerOps(gemma, layout, Software(), 8).decoder(dense=True)
    whole = LayerOps(gemma.replace(window=0, window_layers=0), layout, Software(), 8)
    assert local.flops(Role.F) < whole.decoder(dense=True).flops(Role.F)


def test_active_experts_alone_count_flops() -> None:
    """6 FLOPs a token and active parameter; a router and attention on top."""
    shape = model_of("qwen3-235b-a22b")
    assert shape.experts is not None
    active = shape.layer_parameters(dense=False) - shape.expert_parameters
    active += shape.experts.per_token * shape.mlp_parameters(shape.experts.ffn)
    layout = Layout(seq_len=256, data=8, expert=8)
    work = LayerOps(shape, layout, Software(), 8).decoder(dense=False)
    scores = 2 * 256 * 128 * 2 * shape.heads * shape.head_dim
    assert work.flops(Role.F) - scores == pytest.approx(2 * 256 * active, rel=0.002)
