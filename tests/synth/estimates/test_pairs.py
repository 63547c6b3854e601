"""The estimated time of F and BW at once, beside what was published of it."""

import pytest

import synth
from synth.estimates.rates import read_table
from synth.op_kinds import OpKind
from synth.profile import Profile

# Of F and BW of a layer with experts at once against one after the other, the best published.
BEST_PUBLISHED = 1.80


def qwen3() -> Profile:
    return synth.estimate("qwen3-235b-a22b", "h100", seq_len=4096, tp=2, ep=32, dp=16)


def throughput_of(row: str) -> float:
    (found,) = [each for each in read_table("published.csv") if each["id"] == row]
    return float(found["tokens_per_s_gpu"])


def test_the_gain_is_that_of_the_two_published_runs_that_differ_in_it_alone() -> None:
    """Qwen3-235B-A22B on 256 H100, 8 ranks of 4 stages and 128 micro-batches."""
    published = throughput_of("201") / throughput_of("200")
    assert published == pytest.approx(1.119, abs=0.001)
    apart, at_once = (
        synth.simulate(
            name, qwen3(), ranks=8, micro_batches=128, partition="even", mem_limit="none"
        )
        for name in ("interleaved:4", "interleaved:4,overlap")
    )
    gain = apart.claim.makespan_us / at_once.claim.makespan_us
    assert gain == pytest.approx(published, abs=0.01)
    # One micro-batch more is held on the way.
    assert max(apart.claim.peak_bytes) < max(at_once.claim.peak_bytes)


@pytest.mark.parametrize("ep", [8, 32, 64])
def test_a_layer_gains_no_more_than_was_ever_published(ep: int) -> None:
    layer = synth.estimate(
        "qwen3-235b-a22b", "h100", seq_len=4096, tp=2, ep=ep, dp=64
    ).layer_profiles["moe_block"]
    assert layer.pair_us is not None
    apart_us = sum(layer.time_us[kind].median_us for kind in (OpKind.F, OpKind.BW))
    longest_us = max(layer.time_us[kind].median_us for kind in (OpKind.F, OpKind.BW))
    assert longest_us <= layer.pair_us.median_us
    assert 1 < apart_us / layer.pair_us.median_us < BEST_PUBLISHED


def test_without_an_exchange_of_experts_nothing_is_hidden() -> None:
    assert not synth.estimate("llama3-8b", "h100", tp=2, dp=8).has_pairs
    assert not synth.estimate("qwen3-235b-a22b", "h100", tp=2, dp=16, recompute="full").has_pairs
