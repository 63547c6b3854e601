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
        ({"model_type": "mamba"}, "whose layers are not known; known: bert, bloom, deepseek_v2"),
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
        ({**LLAMA, "num_hidden_layers": 0}, "is no model"),
        ({"model_type": "llama"}, "has no hidden_size"),
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
