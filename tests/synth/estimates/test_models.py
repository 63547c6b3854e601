"""Sizes of real models against those that their authors print."""

import json
from pathlib import Path
from typing import Any

import pytest

from synth.errors import SynthError
from synth.estimates.model_config import model_names, model_of, shape_of
from synth.estimates.model_shape import gpt

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama3-8b", 8.03),
        ("llama3-70b", 70.55),
        ("llama3-405b", 405.85),
        ("qwen3-32b", 32.76),
        ("qwen3-235b-a22b", 235.09),
        ("mixtral-8x7b", 46.70),
        ("mixtral-8x22b", 140.63),
        ("deepseek-v2", 235.74),
        ("deepseek-v3", 671.03),
        ("gemma3-27b", 27.01),
    ],
)
def test_a_known_model_has_the_parameters_that_its_authors_print(
    name: str, billions: float
) -> None:
    assert model_of(name).parameters / 1e9 == pytest.approx(billions, abs=0.006)


def test_all_known_models_have_a_source() -> None:
    assert len(model_names()) == 10


def test_a_gpt_has_twelve_squares_of_its_hidden_size_a_layer() -> None:
    """12h² + 13h of a layer (Narayanan et al. 2021, equation 1)."""
    shape = gpt("g", layers=4, hidden=64, heads=4, vocab=512)
    assert shape.layer_parameters(dense=True) == 12 * 64**2 + 13 * 64


def test_a_small_llama_counts_by_hand() -> None:
    # Attention 64·(64 + 2·32) + 64·64, MLP 3·64·128, two norms; table, head and final norm.
    layer = 64 * 128 + 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert shape_of(LLAMA, "small").parameters == 2 * layer + 2 * 100 * 64 + 64


def test_biases_of_a_llamas_mlp_count() -> None:
    plain, biased = shape_of(LLAMA, "l"), shape_of({**LLAMA, "mlp_bias": True}, "l")
    # Gate and up of 128, down of 64, in each of two layers.
    assert biased.parameters - plain.parameters == 2 * (2 * 128 + 64)


def decoder(kind: str, sizes: tuple[int, int, int, int, int], /, **more: Any) -> dict[str, Any]:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return {"model_type": kind, **dict(zip((*names, "vocab_size"), sizes, strict=True)), **more}


# Counted by transformers 5.24 on the meta device.
PUBLISHED = {
    1_235_814_400: decoder(
        "llama",
        (2048, 16, 32, 8192, 128256),
        **{"num_key_value_heads": 8, "tie_word_embeddings": True},
    ),
    14_315_784_192: decoder(
        "qwen2_moe",
        (2048, 24, 16, 5632, 151936),
        **{"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408},
        shared_expert_intermediate_size=5632,
    ),
    2_614_341_888: decoder(
        "gemma2", (2304, 26, 8, 9216, 256000), **{"num_key_value_heads": 4, "head_dim": 256}
    ),
    3_821_079_552: decoder("phi3", (3072, 32, 32, 8192, 32064), sliding_window=2047),
    2_779_683_840: decoder("phi", (2560, 32, 32, 10240, 51200)),
    20_554_567_680: decoder("gpt_neox", (6144, 44, 64, 24576, 50432)),
    6_921_720_704: decoder("falcon", (4544, 32, 71, 18176, 65024), multi_query=True, bias=False),
    41_303_293_952: decoder(
        "falcon",
        (8192, 60, 128, 32768, 65024),
        **{"num_kv_heads": 8, "new_decoder_architecture": True, "bias": False},
    ),
    7_298_617_344: decoder("olmo2", (4096, 32, 32, 11008, 100352)),
    6_919_161_856: decoder(
        "olmoe", (2048, 16, 16, 1024, 50304), **{"num_experts": 64, "num_experts_per_tok": 8}
    ),
    15_706_484_224: decoder(
        "deepseek_v2",
        (2048, 27, 16, 10944, 102400),
        **{"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "v_head_dim": 128},
        **{"qk_rope_head_dim": 64, "moe_intermediate_size": 1408, "n_routed_experts": 64},
        **{"n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
    ),
    20_914_757_184: decoder(
        "gpt_oss",
        (2880, 24, 64, 2880, 201088),
        **{"num_key_value_heads": 8, "head_dim": 64, "attention_bias": True},
        **{"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128},
    ),
    3_030_371_328: decoder("starcoder2", (3072, 30, 24, 12288, 49152), num_key_value_heads=2),
    8_170_848_256: decoder(
        "granite",
        (4096, 40, 32, 12800, 49155),
        **{"num_key_value_heads": 8, "tie_word_embeddings": True},
    ),
    1_334_628_352: decoder(
        "granitemoe",
        (1024, 24, 16, 512, 49155),
        **{"num_key_value_heads": 8, "tie_word_embeddings": True},
        **{"num_local_experts": 32, "num_experts_per_tok": 8},
    ),
    15_628_775_424: decoder("nemotron", (6144, 32, 48, 24576, 256000), num_key_value_heads=8),
    3_075_098_624: decoder("smollm3", (2048, 36, 16, 11008, 128256), num_key_value_heads=4),
    2_795_443_200: decoder("stablelm", (2560, 32, 32, 6912, 50304)),
    30_283_579_392: decoder(
        "cohere", (8192, 40, 64, 22528, 256000), **{"num_key_value_heads": 8, "use_qk_norm": True}
    ),
    1_176_764_416: decoder("olmo", (2048, 16, 16, 8192, 50304), tie_word_embeddings=True),
    106_852_245_504: decoder(
        "glm4_moe",
        (4096, 46, 96, 10944, 151552),
        **{"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
        **{"n_routed_experts": 128, "n_shared_experts": 1, "moe_intermediate_size": 1408},
        **{"num_experts_per_tok": 8, "first_k_dense_replace": 1},
    ),
    6_050_882_784: {
        "model_type": "gptj",
        **{"n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50400, "rotary_dim": 64},
    },
    6_649_286_656: {
        "model_type": "mpt",
        **{"d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432},
    },
    559_214_592: {
        "model_type": "bloom",
        **{"hidden_size": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880},
    },
}


@pytest.mark.parametrize("count", PUBLISHED)
def test_a_published_config_has_the_parameters_of_its_model(count: int) -> None:
    assert shape_of(PUBLISHED[count], "published").parameters == count


@pytest.mark.slow
@pytest.mark.parametrize("count", PUBLISHED)
def test_transformers_counts_the_same_parameters(count: int) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    kind, *values = PUBLISHED[count].items()
    config = transformers.CONFIG_MAPPING[kind[1]](**dict(values), pad_token_id=0)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(each.numel() for each in model.parameters()) == count


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("more", "local"),
    [
        ({}, 0.0),
        ({"use_sliding_window": True}, 0.0),
        ({"use_sliding_window": True, "max_window_layers": 0}, 1.0),
        ({"use_sliding_window": True, "max_window_layers": 1}, 0.5),
        ({"use_sliding_window": False, "max_window_layers": 0}, 0.0),
        ({"use_sliding_window": True, "layer_types": ["full_attention"] * 2}, 0.0),
        ({"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, 1.0),
    ],
)
def test_windows_of_qwen_are_of_the_layers_from_a_number_on(
    kind: str, more: dict[str, Any], local: float
) -> None:
    shape = shape_of({**LLAMA, "model_type": kind, "sliding_window": 16, **more}, "q")
    assert shape.window_layers == local


@pytest.mark.parametrize(
    ("kind", "head_dim"), [("gemma", 256), ("gemma2", 256), ("qwen3", 128), ("llama", 16)]
)
def test_heads_that_a_config_does_not_size_have_the_size_of_their_kind(
    kind: str, head_dim: int
) -> None:
    assert shape_of({**LLAMA, "model_type": kind}, "m").head_dim == head_dim


def test_a_config_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert model_of(str(folder)) == model_of(str(folder / "config.json"))
    assert model_of(str(folder)).name == "mine"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "has no model_type"),
        ({**LLAMA, "hidden_size": "64"}, "hidden_size is '64'; a count is needed"),
        ({**LLAMA, "hidden_size": 1e3}, "hidden_size is 1000.0; a count is needed"),
        ({**LLAMA, "hidden_size": -1}, "hidden_size is -1; a count is needed"),
        ({**LLAMA, "hidden_size": [0] * 99}, "hidden_size is .*…; a count is needed"),
        ({**LLAMA, "head_dim": True}, "head_dim is True; a count is needed"),
        ({**LLAMA, "hidden_size": 65}, "no multiple of num_attention_heads"),
        ({**LLAMA, "tie_word_embeddings": "no"}, "embeddings is 'no'; true or false is needed"),
        ({**LLAMA, "attention_bias": 1}, "attention_bias is 1; true or false is needed"),
        ({**LLAMA, "text_config": 5}, "text_config is 5; an object is needed"),
        ({**LLAMA, "model_type": "gemma3", "layer_types": "local"}, "is 'local'; a list is needed"),
        ({**LLAMA, "model_type": "mistral", "sliding_window": 1e400}, "is inf; a count is needed"),
        ({**LLAMA, "num_key_value_heads": 3}, "^the .*heads 4 is no multiple of .*heads 3$"),
        ({**LLAMA, "num_key_value_heads": 16}, "^the .*heads 4 is no multiple of .*heads 16$"),
        ({**LLAMA, "num_key_value_heads": 0}, "^the .*heads 4 is no multiple of .*heads 0$"),
        ({**LLAMA, "num_attention_heads": 0}, "no multiple of num_attention_heads 0"),
        ({**LLAMA, "num_hidden_layers": 0}, "is no model: layers: Input should be greater than 0"),
        ({**LLAMA, "model_type": "gemma3_text", "layer_types": [3]}, "has 1 layer_types for 2 lay"),
        (
            {**LLAMA, "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
            "is no model: 3 experts per token of 2",
        ),
        ({"model_type": "llama"}, "has no hidden_size"),
        ({**LLAMA, "model_type": "gpt_neox", "attention_bias": False}, "has no attention_bias, wh"),
        ({**LLAMA, "model_type": "stablelm", "qk_layernorm": True}, "has a qk_layernorm, which is"),
    ],
)
def test_a_wrong_config_is_refused_by_the_name_of_its_value(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(SynthError, match=message):
        shape_of(config, "this")


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("not json")
    with pytest.raises(SynthError, match="is no JSON"):
        model_of(str(path))
    path.write_text("[]")
    with pytest.raises(SynthError, match="holds no JSON object"):
        model_of(str(path))
