"""Models of transformers from configs of our own, cut into layers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import synth
from synth.errors import SynthError
from synth.runtime.models import CutSpec, ModelSpec, load_layers
from synth.runtime.models.cut import cut_in_words, cut_model
from synth.runtime.models.cut.check import chained
from synth.runtime.models.cut.whole import loss_call
from synth.runtime.models.hugging_face import load_config, make_whole

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
DEEPSEEK = EXPERTS | {
    "num_key_value_heads": 4,
    "head_dim": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 64}
CAUSAL: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "qwen2": SIZES,
    "qwen3": SIZES,
    "mistral": SIZES,
    "gemma": SIZES,
    "gemma2": SIZES,
    "gemma3_text": SIZES,
    "gpt2": GPT2,
    "mixtral": SIZES | EXPERTS,
    "qwen2_moe": SIZES | EXPERTS,
    "qwen3_moe": SIZES | EXPERTS,
    "deepseek_v2": SIZES | DEEPSEEK,
    "deepseek_v3": SIZES | DEEPSEEK,
    "gpt_oss": SIZES | EXPERTS,
}
SHARING = SIZES | {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 64,
}
GEMMA_3N = SHARING | {"laurel_rank": 4, "altup_num_inputs": 2, "activation_sparsity_pattern": None}
# Angles that follow the length of the sequences, which is above that of the first training.
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 4,
}
T5 = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "is_encoder_decoder": True,
}
VIT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 5,
}

Batch = Callable[[], tuple[Any, Any]]


def checked(
    folder: Path, kind: str, sizes: dict[str, Any], batch: Batch | None = None
) -> list[str]:
    """Cut a model of a config, compare it with the whole, and return the names of its layers."""
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, **sizes}))
    cut = CutSpec((2, 8), batch, check=True)
    layers = load_layers(ModelSpec(f"hf:{path}", cut=cut))
    return [layer.name for layer in layers]  # type: ignore[misc]


@pytest.mark.parametrize("kind", CAUSAL)
def test_a_causal_model_is_cut_into_embedding_layers_and_head(kind: str, tmp_path: Path) -> None:
    names = checked(tmp_path, kind, CAUSAL[kind])
    assert len(names) == 5 and names[-1] == "lm_head"
    assert [name.rpartition(".")[2] for name in names[1:4]] == ["0", "1", "2"]


@pytest.mark.parametrize(("kind", "sizes"), [("gemma4_text", SHARING), ("gemma3n_text", GEMMA_3N)])
def test_keys_and_values_that_later_layers_share_travel_to_them(
    kind: str, sizes: dict[str, Any], tmp_path: Path
) -> None:
    names = checked(tmp_path, kind, sizes)
    assert [name.rpartition(".")[2] for name in names[1:5]] == ["0", "1", "2", "3"]
    with synth.empty_parameters():
        model = make_whole(ModelSpec(f"hf:{tmp_path}/config.json"))
    ids = torch.zeros(2, 8, dtype=torch.long)
    empty = cut_model(model, ids, ids, check=False)
    whole = make_whole(ModelSpec(f"hf:{tmp_path}/config.json"))
    filled = cut_model(whole, ids, ids, check=False)
    assert [piece.returned for piece in empty] == [piece.returned for piece in filled]
    assert "[2, 2, 8, 8] float32" in empty[2].returned


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 4}),
        ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 4}),
    ],
)
def test_angles_may_depend_on_the_length(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    assert len(checked(tmp_path, kind, SIZES | {"eos_token_id": 1} | changes)) == 5


def test_a_padding_token_changes_nothing(tmp_path: Path) -> None:
    assert len(checked(tmp_path, "gpt2", GPT2 | {"pad_token_id": 0})) == 5


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_padded_and_packed_sequences_are_cut_for_any_masks_and_places(
    kind: str, tmp_path: Path
) -> None:
    ids = torch.randint(1, 64, (2, 12), generator=torch.Generator().manual_seed(0))
    mask, places = torch.ones_like(ids), torch.arange(12).repeat(2, 1)
    checked(tmp_path, kind, CAUSAL[kind] | {"sliding_window": 4}, lambda: (
        {"input_ids": ids, "attention_mask": mask}, ids.flip(1)
    ))  # fmt: skip
    spec = ModelSpec(f"hf:{tmp_path}/config.json")
    places[0, 5:] -= 5
    for name, whole, other in (
        ("attention_mask", mask, mask.clone().index_fill_(1, torch.tensor([10, 11]), 0)),
        ("position_ids", torch.arange(12).repeat(2, 1), places),
    ):
        model = make_whole(spec)
        pieces = cut_model(model, {"input_ids": ids, name: whole}, ids.flip(1), check=False)
        given = {"input_ids": ids, name: other}
        expected = loss_call(model)(given, ids.flip(1))
        torch.testing.assert_close(chained(pieces, given, ids.flip(1)), expected)


def test_without_masks_attention_has_the_kernel_of_the_whole_model(tmp_path: Path) -> None:
    """In bfloat16 another one would be seen."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | CAUSAL["llama"]))
    ids = torch.randint(1, 64, (2, 12), generator=torch.Generator().manual_seed(0))
    cut_model(make_whole(ModelSpec(f"hf:{tmp_path}/config.json")).bfloat16(), ids, ids.flip(1))


VISION = {"image_size": 16, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1}
VISION |= {"intermediate_size": 16, "num_attention_heads": 2}
WITH_IMAGES: dict[str, tuple[dict[str, Any], str]] = {
    "llava": ({"vision_config": VISION, "image_token_index": 63}, "llama"),
    "qwen2_vl": ({"vision_config": {"depth": 1, "embed_dim": 16, "hidden_size": 32}}, ""),
    "gemma3": ({"vision_config": VISION, "mm_tokens_per_image": 4}, ""),
}


@pytest.mark.parametrize("kind", WITH_IMAGES)
def test_models_with_images_are_cut_for_text_or_embeddings(kind: str) -> None:
    parts, text_kind = WITH_IMAGES[kind]
    text: dict[str, Any] = SIZES | ({"model_type": text_kind} if text_kind else {})
    if kind == "qwen2_vl":
        text = text | {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
    config = transformers.CONFIG_MAPPING[kind](text_config=text, **parts)
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config).train()
    ids = torch.randint(1, 60, (2, 8), generator=torch.Generator().manual_seed(0))
    pixels = {"pixel_values": torch.randn(2, 3, 16, 16), "input_ids": ids}
    if kind == "qwen2_vl":
        pixels["pixel_values"] = torch.randn(8, 3 * 2 * 14 * 14)
        pixels["image_grid_thw"] = torch.tensor([[1, 2, 2], [1, 2, 2]])
    with pytest.raises(SynthError, match=r"given pixel_values.*which cannot .* text part alone: g"):
        cut_model(model, pixels, ids)
    pieces = cut_model(model, {"inputs_embeds": torch.randn(2, 8, 32)}, ids)
    assert len(pieces) == SIZES["num_hidden_layers"] + 1
    told = cut_in_words(cut_model(model, ids, ids, check=False))
    assert told is not None and "weights that the forward does not use" in told


def test_a_model_of_images_without_a_language_model_is_refused_by_its_own_reason() -> None:
    small = SIZES | {"projection_dim": 8, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.CLIPConfig(vision_config=VISION, text_config=small, projection_dim=8)
    pixels = {"pixel_values": torch.randn(2, 3, 16, 16), "input_ids": torch.ones(2, 8).long()}
    with pytest.raises(SynthError, match="returns a CLIPOutput without logits"):
        cut_model(transformers.CLIPModel(config), pixels, torch.tensor([0, 1]))


def test_a_language_model_with_images_is_cut_for_tokens_alone(tmp_path: Path) -> None:
    images = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision = images | {"num_attention_heads": 2, "image_size": 16, "patch_size": 4}
    sizes = {"text_config": SIZES, "vision_config": vision, "mm_tokens_per_image": 4}
    names = checked(tmp_path, "gemma3", sizes)
    assert names[1:4] == [f"model.language_model.layers.{number}" for number in range(3)]


def test_an_encoder_decoder_is_cut_with_both_its_inputs(tmp_path: Path) -> None:
    def batch() -> tuple[Any, Any]:
        ids = torch.arange(24).reshape(2, 12)
        return {"input_ids": ids, "decoder_input_ids": ids[:, :8] + 1}, ids[:, 1:9]

    names = checked(tmp_path, "t5", T5, batch)
    blocks = ["encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"]
    assert [name for name in names if ".block." in name] == blocks


def test_a_vision_transformer_is_cut_with_its_images(tmp_path: Path) -> None:
    def batch() -> tuple[Any, Any]:
        return {"pixel_values": torch.randn(2, 3, 16, 16)}, torch.tensor([1, 4])

    names = checked(tmp_path, "vit", VIT, batch)
    assert len(names) == 4 and names[-1] == "classifier"


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        ("t5", T5, "takes input_ids and decoder_input_ids, and token ids alone are not enough"),
        ("vit", VIT, "takes pixel_values, .*: give --inputs"),
        ("no_such_kind", {}, "transformers finds no config that it can use"),
        ("clap", {}, "^[^ ]*config.json: the installed .* has no model with a head for .clap."),
    ],
)
def test_what_is_missing_is_said(
    kind: str, sizes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SynthError, match=message):
        checked(tmp_path, kind, sizes)


def test_a_model_that_leaves_out_layers_at_random_is_refused() -> None:
    from transformers import OPTConfig, OPTForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "word_embed_proj_dim": 16,
        "ffn_dim": 16,
        "num_hidden_layers": 2,
    }
    config = OPTConfig(**sizes, num_attention_heads=2, vocab_size=32, layerdrop=0.1)
    ids = torch.ones(1, 4, dtype=torch.long)
    with pytest.raises(SynthError, match=r"at random \(layerdrop is 0.1\), .* --arg layerdrop=0"):
        cut_model(OPTForCausalLM(config).train(), ids, ids)
    assert len(cut_model(OPTForCausalLM(config).eval(), ids, ids)) > 2


def test_a_model_without_logits_is_refused() -> None:
    from transformers import BertConfig, BertModel

    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    model = BertModel(BertConfig(**sizes, num_attention_heads=2, vocab_size=32))
    ids = torch.ones(1, 4, dtype=torch.long)
    with pytest.raises(SynthError, match=r"without logits, .* or that of a module around it, take"):
        cut_model(model, ids, ids)


def test_arguments_change_the_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **SIZES}))
    layers = load_layers(ModelSpec(f"hf:{path}", {"num_hidden_layers": 2}))
    assert len(layers) == 4
    with pytest.raises(SynthError, match="its config has no 'depth'"):
        load_layers(ModelSpec(f"hf:{path}", {"depth": 2}))


WITHOUT_WIDTH = {name: value for name, value in SIZES.items() if name != "head_dim"}


@pytest.mark.parametrize(
    ("sizes", "arguments", "message"),
    [
        (SIZES, {"num_hidden_layers": "two"}, "does not take num_hidden_layers=two"),
        (SIZES | {"hidden_size": "abc"}, {}, "finds no config that it can use: .*hidden_size"),
        (WITHOUT_WIDTH, {"num_attention_heads": 0}, "does not take num_attention_heads=0"),
        (SIZES | {"pad_token_id": 100}, {}, "cannot make it: .*Padding_idx"),
        (SIZES | {"attn_implementation": "some/kernel"}, {}, "attn_implementation='some/kernel'"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    sizes: dict[str, Any], arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **sizes}))
    with pytest.raises(SynthError, match=message):
        load_layers(ModelSpec(f"hf:{path}", arguments))


def test_a_config_whose_forward_fails_is_said_to_be_the_cause(tmp_path: Path) -> None:
    sizes = SIZES | DEEPSEEK | {"head_dim": 8}  # not that of the rotated part
    with pytest.raises(SynthError, match=r"RuntimeError: .*: check the fields of its config$"):
        checked(tmp_path, "deepseek_v3", sizes)


def test_fields_that_follow_from_an_argument_do_so(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **WITHOUT_WIDTH}))
    config = load_config(ModelSpec(f"hf:{path}", {"num_attention_heads": 8}))
    assert config.head_dim == 4
    path.write_text(json.dumps({"model_type": "gemma2", **SIZES}))
    config = load_config(ModelSpec(f"hf:{path}", {"num_hidden_layers": 6}))
    assert len(config.layer_types) == 6


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synth.system.extras.find_spec", lambda name: None)
    with pytest.raises(SynthError, match=r"needs the package transformers, .*\[hf\]"):
        load_layers(ModelSpec("hf:config.json"))
