"""Parameters kept and gathered in float8 (`--fp8-param-gather`): bytes counted by hand."""

import pytest

import synth
from synth.errors import SynthError
from synth.estimates.collectives import collective_us
from synth.estimates.device import device_of
from synth.estimates.estimated_profile import Estimator
from synth.estimates.layout import Layout, Precision, Sharding
from synth.estimates.model_config import model_of
from synth.estimates.ops import ExchangeKind, GroupExchange
from synth.layouts.named_layout import read_layout
from synth.layouts.quick_bounds import QuickBounds, Waiting
from synth.options.arguments.plan import LayoutArguments
from synth.options.layout_task import read_layout_task

LLAMA, MIXTRAL, H100 = model_of("llama3-70b"), model_of("mixtral-8x22b"), device_of("h100")

# Of a decoder layer: queries and output 8,192², keys and values 8,192 × 1,024, three matrices of
# the MLP 8,192 × 28,672, on each of 8 ranks; two norms on all of them.
MATRICES = (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672) // 8
NORMS = 2 * 8192


def layout(*, narrow_gather: bool = True) -> Layout:
    return Layout(
        seq_len=4096,
        tensor=8,
        data=8,
        precision=Precision.FP8,
        narrow_gather=narrow_gather,
    )


def test_matrices_take_a_byte_and_a_turned_cast_of_a_byte() -> None:
    """Without it they take two bytes, and casts of one byte, straight and turned."""
    plain = Estimator(LLAMA, H100, layout(narrow_gather=False)).states("block")
    narrow = Estimator(LLAMA, H100, layout()).states("block")
    assert plain.parameter_bytes == 2 * MATRICES + 2 * NORMS
    assert plain.cast_bytes == 2 * MATRICES
    assert narrow.parameter_bytes == MATRICES + 2 * NORMS
    assert narrow.cast_bytes == MATRICES
    assert narrow.static_bytes == plain.static_bytes - 2 * MATRICES
    assert (narrow.gradient_bytes, narrow.optimizer_bytes) == (
        plain.gradient_bytes,
        plain.optimizer_bytes,
    )


def test_data_parallel_ranks_gather_a_byte_of_each_matrix_and_two_of_the_rest() -> None:
    """Eight ranks of tensor parallelism fill a node, so the eight that gather are in eight."""
    estimator = Estimator(LLAMA, H100, layout())
    states = [estimator.states("block"), estimator.states("embedding")]
    embedding_bytes = 2 * LLAMA.vocab * LLAMA.hidden // 8
    gathered = MATRICES + 2 * NORMS + embedding_bytes
    call = GroupExchange(ExchangeKind.ALL_GATHER, gathered, 8, 1)
    expected_us = estimator.factors.values[2] * collective_us(H100, call)
    assert estimator.exchanges.gather_us(states) == pytest.approx(expected_us, rel=1e-9)


def test_experts_are_gathered_in_float8_and_their_router_is_not() -> None:
    wide = Layout(seq_len=4096, expert=8, data=8, precision=Precision.FP8, narrow_gather=True)
    states = Estimator(MIXTRAL, H100, wide).states("moe_block")
    shared_bytes, expert_bytes = states.gathered_bytes
    attention = 2 * 6144**2 + 2 * 6144 * 8 * 128
    assert expert_bytes == 3 * 6144 * 16384
    assert shared_bytes == attention + 2 * (8 * 6144 + 2 * 6144)


def test_embedding_and_head_stay_in_bfloat16() -> None:
    for kind in ("embedding", "head"):
        plain = Estimator(LLAMA, H100, layout(narrow_gather=False)).states(kind)
        assert Estimator(LLAMA, H100, layout()).states(kind) == plain


def test_the_option_goes_with_float8_and_a_distributed_optimizer_of_megatron() -> None:
    with pytest.raises(SynthError, match=r"keeps parameters as .* dtype bf16 is given"):
        synth.estimate("llama3-70b", "h100", tp=8, fp8_param_gather=True)
    with pytest.raises(SynthError, match="sharding zero1, and fsdp is given"):
        synth.estimate(
            "llama3-70b", "h100", tp=8, dtype="fp8", fp8_param_gather=True, sharding="fsdp"
        )
    for program in ("torchtitan", "megatron-2021", "llm-foundry"):
        with pytest.raises(SynthError, match="is of Megatron-LM with Transformer Engine"):
            synth.estimate(
                "llama3-70b", "h100", tp=8, dtype="fp8", fp8_param_gather=True, software=program
            )
    given = {"model": "llama3-70b", "device": "h100", "gpus": 64, "global_batch": 64}
    torchtitan = {"dtype": "fp8", "fp8_param_gather": True, "runtime": "torchtitan"}
    with pytest.raises(SynthError, match="is of Megatron-LM with Transformer Engine"):
        read_layout_task(LayoutArguments.model_validate(given | torchtitan))


def test_an_estimated_profile_says_that_parameters_are_in_float8() -> None:
    plain, narrow = (
        synth.estimate("llama3-70b", "h100", tp=8, dtype="fp8", fp8_param_gather=given)
        for given in (False, True)
    )
    assert narrow.provenance.estimate is not None and plain.provenance.estimate is not None
    assert "narrow_gather True" in narrow.provenance.estimate.layout
    assert "narrow_gather" not in plain.provenance.estimate.layout
    saved = plain.layer_profile(1).static_bytes - narrow.layer_profile(1).static_bytes
    assert saved == 2 * MATRICES


def test_layouts_have_the_same_bound_of_passes_and_need_less_memory() -> None:
    given = {"model": "llama3-70b", "device": "h100", "gpus": 64, "global_batch": 64}
    found = []
    for narrow_gather in (False, True):
        options = {"dtype": "fp8", "fp8_param_gather": narrow_gather, "mem_limit": "none"}
        question = read_layout_task(LayoutArguments.model_validate(given | options)).question
        layout = read_layout("tp=8,pp=2,dp=4", question).layout
        assert layout.groups.narrow_gather is narrow_gather
        bounds = QuickBounds(question)
        waiting = bounds.of([layout])
        assert isinstance(waiting, Waiting)
        found.append((waiting.bound_us, bounds.least_bytes(layout.groups, layout.ranks)))
    (plain_us, plain_bytes), (narrow_us, narrow_bytes) = found
    assert narrow_us == plain_us
    # One of two ranks has at least 40 of 80 layers.
    assert plain_bytes - narrow_bytes == pytest.approx(40 * 2 * MATRICES, rel=0.03)


def test_sharded_parameters_in_float8_are_refused() -> None:
    with pytest.raises(SynthError, match="fsdp is given"):
        layout().replace(sharding=Sharding.FSDP).check(LLAMA)
