"""Requests of estimates and calibrations that are wrong, out of range, or ambiguous."""

from pathlib import Path
from typing import Any

import pytest

import synth
from synth.errors import SynthError
from synth.estimates.calibrate import program_of, runs_of
from synth.estimates.layout import Layout, Recompute, Sharding
from synth.estimates.model_config import shape_of
from synth.estimates.named import estimated, is_named
from synth.estimates.published import published_runs, run_of
from synth.profiles import load

ROW = {
    "model": "llama3-8b",
    "device": "h100",
    "seq": "8192",
    "global_batch": "16",
    "gpus": "8",
    "precision": "bf16",
    "tokens_per_s_gpu": "9000",
}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"recompute": "everything"}, "recompute 'everything', which is not understood"),
        ({"sharding": "zero3"}, "sharding 'zero3', which is not understood"),
        ({"schedule": "dualpipe"}, "schedule 'dualpipe', which is not understood"),
        ({"precision": "fp16"}, "precision 'fp16', which is not understood"),
        ({"sp": "maybe"}, "sp 'maybe', which is not understood"),
        ({"tp": "2.4"}, "tp '2.4'; a whole number"),
        ({"tp": "3"}, "32 heads, which 3 ranks"),
        ({"tp": "70000"}, "out of range"),
        ({"seq": "1e14"}, "out of range"),
        ({"tp": "2", "dp": "8"}, "8 gpus, and tp × pp × cp × dp is 16"),
        ({"pp": "2", "sharding": "fsdp"}, "FSDP with pp"),
        ({"pp": "2", "schedule": "interleaved 1F1B"}, "without vp"),
        ({"hidden": "4096", "heads": "0.3"}, "give its config.json"),
    ],
)
def test_a_row_that_means_nothing_known_is_refused(row: dict[str, str], message: str) -> None:
    with pytest.raises(SynthError, match=message):
        run_of(ROW | row)


def test_words_of_a_row_are_taken_as_they_are() -> None:
    row = {"tp": "2", "sharding": "FSDP", "recompute": "full", "note": "compiled, not eager"}
    estimator = run_of(ROW | row).step.estimator
    layout = estimator.layout
    assert (layout.sharding, layout.recompute) == (Sharding.FSDP, Recompute.FULL)
    assert layout.sequence and estimator.software.traffic == 1
    assert not run_of(ROW | row | {"sp": "no"}).step.estimator.layout.sequence
    assert run_of(ROW | {"recompute": "ops"}).step.estimator.layout.recompute is Recompute.OPS


def test_all_published_rows_are_read() -> None:
    assert len(published_runs()) == 277


@pytest.mark.parametrize(
    "options",
    [
        {"seq_len": 2_000_000_000},
        {"seq_len": 10**14},
        {"tp": 70_000},
        {"micro_batch_size": 2**31 - 1, "seq_len": 2**30},
    ],
)
def test_sizes_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SynthError, match=r"out of range|heads, which"):
        synth.estimate("llama3-8b", "h100", **options)


@pytest.mark.parametrize("sizes", ["-tp99999999", "-s999999999-b999999999"])
def test_a_name_with_sizes_out_of_range_is_refused(sizes: str) -> None:
    with pytest.raises(SynthError, match=r"out of range|heads"):
        estimated(f"llama3-8b-h100{sizes}")


@pytest.mark.parametrize("sizes", ["-tp0", "-s0", "-b9999999999", "-tp" + 200 * "9"])
def test_sizes_that_are_none_make_no_name(sizes: str) -> None:
    assert not is_named(f"llama3-8b-h100{sizes}")
    with pytest.raises(SynthError, match="as llama3-70b-h100-tp8"):
        load(f"llama3-8b-h100{sizes}")


@pytest.mark.parametrize(
    "options",
    [
        {"dp": 64},
        {"tp": 2, "sp": False},
        {"sharding": "fsdp"},
        {"sharding": "none"},
        {"recompute": "full"},
        {"software": "torchtitan"},
        {"optimizer": "sgd"},
        {"calibration": "none"},
        {"device": "b200", "dtype": "fp4"},
    ],
)
def test_a_profile_has_the_name_of_a_named_one_only_if_it_is_the_same(
    options: dict[str, Any],
) -> None:
    usual = synth.estimate("llama3-8b", "h100").name
    assert usual == "llama3-8b-h100-tp1-s4096" and is_named(usual)
    name = synth.estimate("llama3-8b", **{"device": "h100", **options}).name
    assert name.startswith("llama3-8b-") and not is_named(name)


def test_runs_of_a_source_are_of_its_program() -> None:
    assert program_of("torchtitan", None) == program_of("torchtitan", "torchtitan") == "torchtitan"
    assert program_of("mlperf", None) == program_of("my-runs.csv", None) == "megatron"
    with pytest.raises(SynthError, match="are of torchtitan, not of megatron"):
        program_of("torchtitan", "megatron")
    assert runs_of("mlperf", "H100", "megatron", None)


def test_a_profile_to_calibrate_with_is_of_bfloat16(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    measured = load("zb-1.5b-p8-m24")
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"dtype": "float32"}, "is of float32; give a profile of bfloat16"),
        ({"dtype": "bfloat16", "recomputed_layers": ("block.*",)}, "recomputes layers"),
    )
    for change, message in changes:
        measured.replace(workload=measured.workload.replace(**change)).save(path)
        with pytest.raises(SynthError, match=message):
            runs_of(str(path), "h100", "megatron", "llama3-8b")


BLOOM = {"model_type": "bloom", "n_layer": 70, "vocab_size": 250880}
DECODER = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "vocab_size": 32000,
}


def test_bloom_names_its_sizes_in_either_way() -> None:
    short = shape_of(BLOOM | {"n_embed": 14336, "num_attention_heads": 112}, "bloom")
    assert short == shape_of(BLOOM | {"hidden_size": 14336, "n_head": 112}, "bloom")


BERT = {
    "model_type": "bert",
    "hidden_size": 2560,
    "num_hidden_layers": 64,
    "intermediate_size": 10240,
    "num_attention_heads": 64,
    "vocab_size": 29056,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_sequences_are_not_longer_than_learned_positions(kind: str) -> None:
    shape = shape_of(BERT | {"model_type": kind}, "b")
    Layout(seq_len=512).check(shape)
    with pytest.raises(SynthError, match=r"^b has learned positions of 512 tokens.* 513; give"):
        Layout(seq_len=513).check(shape)


def test_a_bert_is_an_encoder_with_biases_and_a_tied_head() -> None:
    shape = shape_of(BERT, "bert-64")
    assert (shape.head_dim, shape.causal, shape.tied, shape.gated) == (40, False, True, False)
    # 12 h² a layer, and embeddings; biases and norms are less than a thousandth.
    expected = 64 * 12 * 2560**2 + (29056 + 512) * 2560
    assert shape.parameters == pytest.approx(expected, rel=1e-3)


def test_a_window_of_mistral_holds_for_all_layers() -> None:
    config = DECODER | {"model_type": "mistral", "sliding_window": 4096}
    shape = shape_of(config, "m")
    assert (shape.window, shape.window_layers) == (4096, 1.0)
    assert shape_of(config | {"sliding_window": None}, "m").window == 0


MOE = DECODER | {
    "model_type": "qwen3_moe",
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


@pytest.mark.parametrize(
    ("given", "dense"),
    [
        ({"mlp_only_layers": [0, 1]}, (0, 1)),
        ({"mlp_only_layers": [3]}, (3,)),
        ({"decoder_sparse_step": 2}, (0, 2, 4)),
    ],
)
def test_layers_without_experts_are_read(given: dict[str, Any], dense: tuple[int, ...]) -> None:
    """Of transformers' condition: no such layer, and layer + 1 a multiple of the step."""
    experts = shape_of(MOE | {"num_hidden_layers": 6} | given, "q").experts
    assert experts is not None and experts.dense == dense


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DECODER | {"model_type": "llama", "hidden_size": 4095}, "config of x: hidden_size 4095"),
        (BLOOM | {"model_type": "gpt2", "n_embd": 768, "n_head": 7}, "n_embd 768 is no multiple"),
    ],
)
def test_a_config_that_is_not_estimated_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SynthError, match=message):
        shape_of(config, "x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 32, "model": "qwen3-32b", "seq_len": 4096}, None),
        ({"tp": 7}, "64 heads, which 7 ranks"),
    ],
)
def test_heads_are_checked_before_tokens(options: dict[str, Any], message: str | None) -> None:
    given = {"model": "llama3-70b", "device": "h100", **options}
    if message is None:
        assert synth.estimate(**given).layers
        return
    with pytest.raises(SynthError, match=message):
        synth.estimate(**given)
