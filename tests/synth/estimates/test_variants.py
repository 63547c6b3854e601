"""Variants of estimated layers, and their memory, against closed forms and counts by hand."""

from dataclasses import replace
from typing import Any

import pytest

import synth
from synth.costs.recomputation import Recomputation
from synth.costs.recomputed_layers import recomputed, recomputing
from synth.estimates.attention_memory import AttentionBytes
from synth.estimates.collectives import collective_us
from synth.estimates.device import device_of
from synth.estimates.estimated_layer import DEFAULT_OPTIMIZER
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import Factors, software_of
from synth.estimates.layer_ops import LayerOps
from synth.estimates.layout import AttentionKernel, Layout, Precision, Recompute, Software
from synth.estimates.memory import MemoryOf
from synth.estimates.model_config import model_of
from synth.estimates.model_shape import ModelShape, gpt
from synth.estimates.op_times import parts_of
from synth.estimates.ops import ExchangeKind, GroupExchange, Matmul, Role
from synth.estimates.products import again, kept, products
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.plan.published.family_searches import FamilySearches
from synth.plan.published.order_scores import Judge
from synth.profile.layer_profile import LayerProfile
from synth.schedule.placements import placement
from synth.schedule.recomputation_rules import MEGATRON, RecomputationMenu

UNFUSED = Software(attention=AttentionKernel.UNFUSED)
LLAMA = model_of("llama3-8b")
GIB = 2**30

# Korthikanti et al. 2022 (arXiv 2205.05198), table 3: heads, hidden, layers, stages, interleaving,
# micro-batch; and of figure 1 the states and activations in GiB of the first stage: of tensor
# parallelism alone, and with sequence parallelism and selective recomputation.
FIGURE_1 = {
    "22b": (64, 6144, 48, 1, 1, 4, 45.6, 59.25, 9.6),
    "175b": (96, 12288, 96, 8, 3, 1, 45.6, 66.84, 12.4),
    "530b": (128, 20480, 105, 35, 3, 1, 31.6, 114.02, 23.1),
    "1t": (160, 25600, 128, 64, 1, 1, 33.0, 131.25, 26.6),
}


@pytest.mark.parametrize("name", FIGURE_1)
def test_memory_is_that_of_the_selective_recomputation_papers_first_figure(name: str) -> None:
    heads, hidden, layers, ranks, rounds, batch, states, plain, selective = FIGURE_1[name]
    shape = gpt(name, layers=layers, hidden=hidden, heads=heads, vocab=51200)
    # The first stage keeps L · (1 + (p − 1) / pm) layers of one micro-batch (section 4.2.3).
    held = layers * (1 + (ranks - 1) / (ranks * rounds)) if rounds > 1 else layers
    for recompute, sequence, printed in (
        (Recompute.NONE, False, plain),
        (Recompute.SELECTIVE, True, selective),
    ):
        layout = Layout(
            seq_len=2048,
            micro_batch_size=batch,
            tensor=8,
            sequence=sequence,
            recompute=recompute,
        )
        memory = MemoryOf(shape, layout, UNFUSED, DEFAULT_OPTIMIZER)
        activations = held * (memory.decoder(dense=True).saved + memory.boundary)
        assert activations / GIB == pytest.approx(printed, abs=0.06)
        one = memory.decoder_states(dense=True)
        total = one.parameter_bytes + one.gradient_bytes + one.optimizer_bytes
        assert layers / ranks * total / GIB == pytest.approx(states, abs=0.06)


def estimated(shape: ModelShape, layout: Layout, software: Software) -> LayerProfile:
    found = Estimator(shape, device_of("h100"), layout, software).profile(variants=True)
    return found.layer_profiles["block"]


def test_b_has_the_scores_that_are_computed_again_for_a_while() -> None:
    """5as²b that F dropped, and 4as²b of their gradients, beside what the layer has anyhow."""
    shape = gpt("g", layers=2, hidden=1024, heads=16, vocab=512)
    layout = Layout(seq_len=4096, micro_batch_size=2)
    layer = estimated(shape, layout, UNFUSED)
    scores = 16 * 4096**2 * 2
    selective = layer.variants["selective"]
    assert layer.saved_bytes - selective.saved_bytes == 5 * scores
    assert selective.rise_bytes[OpKind.B] - layer.rise_bytes[OpKind.B] == 5 * scores
    assert layer.rise_bytes[OpKind.B] > 4 * scores
    # F has the scores only before the MLP has saved anything.
    assert selective.rise_bytes[OpKind.F] < layer.rise_bytes[OpKind.F]


@pytest.mark.parametrize("software", ["megatron", "megatron-2021"])
def test_selective_recomputation_repeats_the_kernels_of_attention(software: str) -> None:
    layout = Layout(seq_len=4096)
    device, program = device_of("a100"), software_of(software)
    estimator = Estimator(LLAMA, device, layout, program)
    layer = estimator.profile(variants=True).layer_profiles["block"]
    core = LayerOps(LLAMA, layout, program, 8).attention().core
    more_us = layer.variants["selective"].time_us[OpKind.BW].median_us
    more_us -= layer.time_us[OpKind.BW].median_us
    assert more_us == pytest.approx(parts_of(core, device, program).total_us, abs=0.01)


@pytest.mark.parametrize(("precision", "more"), [(Precision.BF16, 0), (Precision.FP8, 2)])
def test_with_flash_attention_little_is_dropped(precision: Precision, more: int) -> None:
    """The logarithms of sums, and with float8 the result that its matrix saves only in float8."""
    layer = estimated(LLAMA, Layout(seq_len=4096, precision=precision), Software())
    dropped = layer.saved_bytes - layer.variants["selective"].saved_bytes
    assert dropped == 4 * 4096 * LLAMA.heads + more * 4096 * LLAMA.hidden


def test_ops_keeps_every_second_product_of_a_llama() -> None:
    """Queries, values, the gate and the last result (torchtitan's list of q, k, v, o, w1, w3, w2).

    Beside them the results of attention, and with tensor parallelism those of two scatters.
    """
    layout = Layout(seq_len=4096)
    listed = products(LLAMA, layout, dense=True)
    h, g, f = 4096, 1024, 14336
    assert [each.n for each in listed] == [h, g, g, h, f, f, h]
    assert [each.n for each in kept(listed)] == [h, g, f, h]
    assert [each.n for each in again(listed)] == [g, h, f]
    flash = 2 * h + 4 * LLAMA.heads
    per_token = 2 * (h + g + f + h) + flash
    for precision in (Precision.BF16, Precision.FP8):
        layer = estimated(LLAMA, layout.replace(precision=precision), Software())
        assert layer.variants["ops"].saved_bytes == 4096 * per_token
    shared = estimated(LLAMA, Layout(seq_len=4096, tensor=2), Software())
    whole, split = 2 * h, 2 * (h + g + f) + flash
    assert shared.variants["ops"].saved_bytes == 4096 * (whole + split / 2 + 2 * 2 * h / 2)


def test_ops_repeats_the_other_products_and_what_memory_bounds() -> None:
    layout = Layout(seq_len=4096, tensor=2, recompute=Recompute.OPS)
    ops = LayerOps(LLAMA, layout, Software(), 8)
    found = ops.recomputed("block", ops.of("block"))
    assert [one.n for one in found if isinstance(one, Matmul)] == [512, 4096, 7168]
    kinds = [one.kind for one in found if isinstance(one, GroupExchange)]
    assert kinds == [ExchangeKind.ALL_GATHER] * 2


@pytest.mark.parametrize("expert", [2, 8])
def test_ops_of_experts_repeats_router_and_experts_but_no_exchange(expert: int) -> None:
    """torchtitan never keeps the router's product, and always the results of all-to-all."""
    shape = model_of("mixtral-8x7b")
    layout = Layout(seq_len=64, expert=expert, data=expert, recompute=Recompute.OPS)
    ops = LayerOps(shape, layout, Software(), 8)
    found = ops.recomputed("moe_block", ops.of("moe_block"))
    # Keys and the output's product, the router, and the experts' two.
    widths = [(one.n, one.k) for one in found if isinstance(one, Matmul)]
    assert widths == [(1024, 4096), (4096, 4096), (8, 4096), (2 * 14336, 4096), (4096, 14336)]
    assert not any(isinstance(one, GroupExchange) for one in found)
    memory = MemoryOf(shape, layout, Software(), DEFAULT_OPTIMIZER).decoder(dense=False)
    # Queries, values, attention's result and sums, and two copies of a token there and back.
    per_token = 2 * (4096 + 1024 + 4096) + 4 * 32 + 2 * 2 * (2 * 4096)
    assert memory.saved == 64 * per_token
    alone = MemoryOf(shape, layout.replace(expert=1), Software(), DEFAULT_OPTIMIZER)
    assert alone.decoder(dense=False).saved == 64 * (per_token - 2 * 2 * (2 * 4096))


def test_layers_that_are_recomputed_already_have_no_variants() -> None:
    for recompute in ("selective", "ops", "full"):
        profile = synth.estimate("llama3-8b", "h100", recompute=recompute)
        assert not any(layer.variants for layer in profile.layer_profiles.values())


def test_a_plan_chooses_among_the_variants_of_an_estimate() -> None:
    profile = synth.estimate("llama3-8b", "h100", software="megatron-2021", calibration="none")
    again_profile = recomputing(profile, {3: "selective", 4: "ops"})
    assert again_profile.layers[3].profile == "block (recomputed: selective)"
    assert again_profile.layers[4].profile == "block (recomputed: ops)"


@pytest.mark.parametrize(("software", "is_short"), [("torchtitan", True), ("megatron", False)])
def test_checkpoints_without_reentrance_end_before_the_last_product(
    software: str, is_short: bool
) -> None:
    layout, device = Layout(seq_len=4096), device_of("h100")
    layer = Estimator(LLAMA, device, layout, software_of(software)).profile().layer_profiles
    block = layer["block"]
    more_us = recomputed(block).time_us[OpKind.BW].median_us - block.time_us[OpKind.BW].median_us
    forward_us = block.time_us[OpKind.F].median_us
    last = Matmul(4096, LLAMA.hidden, LLAMA.ffn, Role.F, "bfloat16")
    last_us = parts_of([last], device, software_of(software)).total_us if is_short else 0.0
    assert forward_us - more_us == pytest.approx(last_us, abs=0.01)
    whole = Estimator(
        LLAMA, device, layout.replace(recompute=Recompute.FULL), software_of(software)
    ).profile()
    assert whole.layer_profiles["block"].time_us[OpKind.BW].median_us == pytest.approx(
        block.time_us[OpKind.BW].median_us + more_us
    )


def attention(layout: Layout, **more: Any) -> AttentionBytes:
    return AttentionBytes.of(LLAMA, layout, Software(**more))


def test_a_ring_of_keys_and_values_keeps_those_of_all_ranks() -> None:
    """Of 8 ranks 7 pairs beside the own one, 8 results, and a sum in float32 of twice as much."""
    tokens, length = 4096, 8 * 4096
    ring = attention(Layout(seq_len=length, context=8))
    pair, out = 2 * 2 * tokens * 1024, 2 * tokens * 4096
    assert ring.forward == 7 * pair + 8 * out + 2 * out
    alone = attention(Layout(seq_len=tokens))
    assert alone.forward == 0
    # Two buffers, each of a pair and of its gradient.
    assert ring.backward - alone.backward == 4 * pair


def test_torchtitan_gathers_the_keys_and_values_of_all_heads() -> None:
    layout = Layout(seq_len=8 * 4096, context=8)
    gathered = attention(layout, repeats_keys=True)
    assert gathered.forward == 2 * 2 * 8 * 4096 * 4096


def test_a_token_is_sent_once_to_each_rank_with_deepep() -> None:
    """Of top 2 on 2 ranks 1.5 of 2 copies are sent."""
    call = GroupExchange(ExchangeKind.ALL_TO_ALL, 1e9, 1, 2, copies=2)
    device = device_of("h100")
    empty_us = collective_us(device, replace(call, num_bytes=0))
    each, once = (
        collective_us(device, replace(call, copies=copies)) - empty_us for copies in (1, 2)
    )
    assert once / each == pytest.approx(0.75)
    shape = model_of("mixtral-8x7b")
    for name, copies in (("megatron", 2), ("megatron-plain", 1)):
        layout = Layout(seq_len=64, expert=8, data=8)
        work = LayerOps(shape, layout, software_of(name), 8).decoder(dense=False)
        sent = [one for one in work.by_role[Role.F] if isinstance(one, GroupExchange)]
        assert [one.copies for one in sent] == [copies] * 2


def test_factors_scale_what_is_computed_again() -> None:
    layout, software = Layout(seq_len=4096), software_of("torchtitan")
    plain, slower = (
        Estimator(LLAMA, device_of("h100"), layout, software, Factors(values=(x, x, x)))
        .profile()
        .layer_profiles["block"]
        for x in (1.0, 2.0)
    )
    assert slower.recompute_us == pytest.approx(2 * plain.recompute_us)


@pytest.mark.parametrize("menu", [MEGATRON, None])
def test_published_schedules_are_tried_under_a_policy(menu: RecomputationMenu | None) -> None:
    """With many scores beside few others the policy frees most, and adds the least work.

    A framework has it in all layers or none; without one, only the ranks that need it have it.
    """
    shape = gpt("g", layers=24, hidden=6144, heads=64, vocab=51200)
    layout = Layout(seq_len=2048, micro_batch_size=4, tensor=8)
    program = software_of("megatron-2021")
    profile = Estimator(shape, device_of("a100"), layout, program).profile(variants=True)
    caps, where = (18 * 10**9,) * 4, placement("linear", 4)
    judge = Judge(Objective.MAKESPAN, caps)
    search = FamilySearches(profile, 8, judge, menu=menu).of("1f1b", where)
    found = search.with_layers(search.plain())
    assert found is not None and max(found.peaks_bytes) <= caps[0]
    every = dict.fromkeys(range(1, 25), "selective")
    if menu is None:
        needed = {layer: every[layer] for layer in (1, 2, 3, 4, 7, 8, 9)}
        assert found.recomputed_layers == Recomputation(needed)
        fewer = [{n: needed[n] for n in needed if n != left_out} for left_out in needed]
        tried = [recomputing(profile, Recomputation(layers)) for layers in (needed, *fewer)]
        plans = [synth.simulate("1f1b", one, ranks=4, micro_batches=8) for one in tried]
        fits = [max(plan.claim.peak_bytes) <= caps[0] for plan in plans]
        assert fits == [True] + [False] * len(fewer)
    else:
        assert found.recomputed_layers == Recomputation(every)
