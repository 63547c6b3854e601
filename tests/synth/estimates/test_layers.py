"""FLOPs and bytes of layers against the closed forms of papers."""

from dataclasses import replace

import pytest

from synth.estimates.collectives import collective_us
from synth.estimates.data_parallel import DataParallelExchanges
from synth.estimates.device import device_of
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import Factors, software_of
from synth.estimates.layer_ops import LayerOps, Work
from synth.estimates.layout import (
    AttentionKernel,
    Layout,
    Precision,
    Recompute,
    Sharding,
    Software,
)
from synth.estimates.memory import MemoryOf
from synth.estimates.model_config import model_of
from synth.estimates.model_shape import gpt
from synth.estimates.ops import Attention, ExchangeKind, GroupExchange, Role, Traffic
from synth.op_kinds import OpKind
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


def test_an_encoder_attends_to_all_tokens_and_a_decoder_to_half_of_them() -> None:
    """2·B·s²·h FLOPs for each of two products, forward."""
    length, batch = 512, 4
    layout = Layout(seq_len=length, micro_batch_size=batch)
    encoder = GPT.model_copy(update={"causal": False})
    flops = [
        LayerOps(shape, layout, Software(), 8).decoder(dense=True).flops(Role.F)
        for shape in (GPT, encoder)
    ]
    assert flops[1] - flops[0] == pytest.approx(2 * batch * length**2 * GPT.hidden)


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


def test_a_backward_computes_the_scores_again_only_if_they_are_not_kept() -> None:
    call = Attention(8, 64, 64, 128, 128, Role.B)
    assert call.flops / replace(call, role=Role.F).flops == 2.5
    assert replace(call, is_fused=False).flops / replace(call, role=Role.F).flops == 2.0
    work = LayerOps(GPT, Layout(seq_len=64), UNFUSED, 8).decoder(dense=True)
    assert work.flops(Role.B) + work.flops(Role.W) == 2 * work.flops(Role.F)


def test_without_sequence_parallelism_embedding_and_head_sum_once() -> None:
    def kinds(work: Work, role: Role) -> list[ExchangeKind]:
        return [one.kind for one in work.by_role[role] if isinstance(one, GroupExchange)]

    for sequence in (True, False):
        ops = LayerOps(GPT, Layout(seq_len=64, tensor=4, sequence=sequence), Software(), 8)
        found = [[kinds(work, role) for role in Role] for work in (ops.embedding(), ops.head())]
        if sequence:
            scatter, gather = [ExchangeKind.REDUCE_SCATTER], [ExchangeKind.ALL_GATHER]
            assert found == [[scatter, scatter, []], [gather, gather, []]]
        else:
            total = [ExchangeKind.ALL_REDUCE]
            assert found == [[total, [], []], [[], total, []]]


def test_multi_token_prediction_keeps_a_projection_and_logits() -> None:
    shape = model_of("deepseek-v3")
    layout = Layout(seq_len=4096, expert=8, data=8)
    memory = MemoryOf(shape, layout, Software(), ADAM)
    (mtp, held), (layer, plain) = memory.of("mtp"), memory.of("moe_block")
    more = mtp.parameter_bytes - layer.parameter_bytes
    assert more == pytest.approx(2 * (2 * shape.hidden**2 + 3 * shape.hidden))
    assert held.saved - plain.saved > 4 * 4096 * shape.vocab


def test_down_projections_and_routers_are_whole_on_every_tensor_rank() -> None:
    shape = model_of("deepseek-v3")
    one, eight = (
        MemoryOf(shape, Layout(seq_len=4096, tensor=tp, expert=8, data=8), Software(), ADAM)
        for tp in (1, 8)
    )
    first, second = (each.decoder_states(dense=False).shared for each in (one, eight))
    whole = shape.hidden * (1536 + 512 + 64 + 256)
    assert second > whole
    assert second - whole == pytest.approx((first - whole) / 8, rel=0.01)


def test_more_tensor_ranks_than_heads_of_keys_have_a_head_each() -> None:
    shape = model_of("llama3-70b")
    few, many = (
        MemoryOf(shape, Layout(seq_len=4096, tensor=tp), Software(), ADAM).decoder_states(
            dense=True
        )
        for tp in (8, 16)
    )
    keys = 2 * shape.head_dim * shape.hidden
    assert many.shared == pytest.approx((few.shared - keys) / 2 + keys, rel=1e-3)


def test_latent_attention_exchanges_the_keys_and_values_of_all_heads_in_a_context() -> None:
    shape = model_of("deepseek-v3")
    layout = Layout(seq_len=4096, context=2, data=1)
    work = LayerOps(shape, layout, Software(), 8).decoder(dense=True)
    sent = [one for one in work.by_role[Role.F] if isinstance(one, GroupExchange)]
    assert [one.num_bytes for one in sent] == [0.25 * 2 * 128 * (192 + 128) * 4096]


def states_of(sharding: Sharding) -> Estimator:
    shape, device = model_of("mixtral-8x7b"), device_of("h100")
    return Estimator(shape, device, Layout(seq_len=4096, data=8, expert=8, sharding=sharding))


def test_experts_that_one_rank_has_are_not_gathered() -> None:
    estimator = states_of(Sharding.FSDP)
    states = estimator.states("moe_block")
    assert states.experts > 3 * states.shared > 0
    whole = GroupExchange(ExchangeKind.ALL_GATHER, 2 * states.shared, 1, 8)
    found = estimator.exchanges.gather_us([states])
    assert found == collective_us(estimator.device, whole)


def test_fsdp_holds_gathered_parameters_while_it_computes() -> None:
    plain, sharded = (
        states_of(sharding).profile().layer_profiles["moe_block"]
        for sharding in (Sharding.ZERO1, Sharding.FSDP)
    )
    whole = states_of(Sharding.FSDP).states("moe_block").whole_bytes
    for kind, times in ((OpKind.F, 2), (OpKind.B, 2)):
        assert sharded.rise_bytes[kind] - plain.rise_bytes[kind] == pytest.approx(times * whole)
    assert sharded.rise_bytes[OpKind.BW] >= 3 * whole


@pytest.mark.parametrize(
    ("optimizer", "gradient_bytes"), [("adamw+master", 2), ("adamw+master+float32-gradients", 4)]
)
def test_gradients_are_reduced_in_the_dtype_in_which_they_are_kept(
    optimizer: str, gradient_bytes: int
) -> None:
    layout = Layout(seq_len=64, data=64, sharding=Sharding.FSDP)
    spec = OptimizerSpec.parse(optimizer)
    model, device = model_of("llama3-70b"), device_of("h100")
    estimator = Estimator(model, device, layout, optimizer=spec)
    times = estimator.profile().layer_profiles["block"].time_us
    # Of few tokens a layer takes as long as its exchanges.
    states = [estimator.states("block")]
    exchanges = DataParallelExchanges(device, layout, Factors(), gradient_bytes)
    reduced, gathered = exchanges.reduce_us(states), exchanges.gather_us(states)
    assert times[OpKind.W].median_us == pytest.approx(reduced, abs=1e-3)
    assert times[OpKind.BW].median_us == pytest.approx(gathered + reduced, abs=1e-3)


def test_full_recomputation_gathers_no_parameters_again() -> None:
    def backward(recompute: Recompute) -> float:
        layout = Layout(seq_len=64, data=64, sharding=Sharding.FSDP, recompute=recompute)
        profile = Estimator(model_of("llama3-70b"), device_of("h100"), layout).profile()
        return profile.layer_profiles["block"].time_us[OpKind.BW].median_us

    # Of few tokens a layer takes as long as its exchanges.
    assert backward(Recompute.FULL) == backward(Recompute.NONE)


def test_pipeline_neighbours_are_behind_all_ranks_of_data_parallelism() -> None:
    shape, device = model_of("llama3-8b"), device_of("h100")
    near = Estimator(shape, device, Layout(seq_len=64, tensor=2)).links()
    far = Estimator(shape, device, Layout(seq_len=64, tensor=2, data=4)).links()
    assert near.nodes is not None and near.nodes[0].ranks_per_node == 4
    slow, fast = far.default.bandwidth_bytes_per_s, near.default.bandwidth_bytes_per_s
    assert not far.nodes and slow is not None and fast is not None and slow < fast


def test_the_optimizer_reads_only_its_share_of_the_gradients() -> None:
    def step_us(data: int) -> float:
        layout = Layout(seq_len=64, data=data)
        profile = Estimator(model_of("llama3-8b"), device_of("h100"), layout).profile()
        return profile.layer_profiles["block"].time_us[OpKind.STEP].median_us

    # Of 34 bytes of traffic for a parameter all but 4 are shared.
    assert step_us(64) < 0.2 * step_us(1)


def test_transformer_engine_keeps_casts_of_weights_and_torchao_wide_inputs() -> None:
    """Two bytes an element of the matrices of a layer, and one in place of two of each input."""
    shape, device = model_of("llama3-8b"), device_of("h100")
    layers = {}
    for name in ("megatron", "torchtitan"):
        for precision in (Precision.BF16, Precision.FP8):
            layout = Layout(seq_len=4096, tensor=2, precision=precision)
            found = Estimator(shape, device, layout, software_of(name)).profile()
            layers[name, precision] = found.layer_profiles["block"]
    narrow, wide = layers["megatron", Precision.FP8], layers["megatron", Precision.BF16]
    h, f, t = 4096, 14336, 4096
    matrices = 2 * h * h + 2 * h * 1024 + 3 * h * f
    assert narrow.optimizer_bytes - wide.optimizer_bytes == 2 * matrices // 2
    # Two norms' results, attention's in bfloat16 and in float8, and the MLP's product.
    assert wide.saved_bytes - narrow.saved_bytes == t // 2 * (2 * h + f - h)
    same, other = layers["torchtitan", Precision.FP8], layers["torchtitan", Precision.BF16]
    assert (same.saved_bytes, same.optimizer_bytes) == (other.saved_bytes, other.optimizer_bytes)


@pytest.mark.parametrize(("expert", "once", "sorts"), [(4, True, 1), (4, False, 2), (8, False, 1)])
def test_tokens_sent_once_for_each_expert_are_sorted_twice(
    expert: int, once: bool, sorts: int
) -> None:
    """By expert before the exchange, and by expert of the rank behind it, if it has several."""
    shape = model_of("mixtral-8x7b")
    layout = Layout(seq_len=4096, expert=expert, data=8)
    ops = LayerOps(shape, layout, Software(sends_once=once), 8)
    row_bytes = 4096 * 2 * shape.hidden * 2
    for role in (Role.F, Role.B):
        assert Traffic(sorts * 4.0 * row_bytes, sorts * 6) in ops.mlp(dense=False).by_role[role]
