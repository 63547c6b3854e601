"""Sizes of models whose layers are read from transformers' modules."""

import json
import re
from typing import Any

import pytest

from synth.errors import SynthError
from synth.estimates import module_shape
from synth.estimates.config_values import ConfigValues
from synth.estimates.device import device_of
from synth.estimates.estimated_profile import Estimator
from synth.estimates.layer_ops import LayerOps
from synth.estimates.layout import Layout
from synth.estimates.model_config import shape_of
from synth.estimates.model_shape import ModelShape
from synth.estimates.ops import Attention, Role
from synth.system.extras import MissingExtra

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 256,
}
NUMBERS = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 256, "n_positions": 128}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

CONFIGS: dict[str, dict[str, Any]] = {
    "cohere": SIZES,
    "cohere2": SIZES | {"sliding_window": 16},
    "olmo": SIZES,
    "olmo3": SIZES,
    "exaone4": SIZES | {"sliding_window": 16},
    "ernie4_5": SIZES,
    "glm4": SIZES | {"head_dim": 16, "pad_token_id": 0},
    "gptj": NUMBERS | {"rotary_dim": 8},
    "gpt_bigcode": NUMBERS,
    "mpt": {"d_model": 64, "n_layers": 4, "n_heads": 4, "vocab_size": 256, "expansion_ratio": 2},
    "opt": SIZES
    | {
        "num_key_value_heads": 4,
        "ffn_dim": 128,
        "word_embed_proj_dim": 64,
        "max_position_embeddings": 64,
    },
    "glm4_moe": SIZES | EXPERTS | {"n_routed_experts": 8, "first_k_dense_replace": 1},
    "ernie4_5_moe": SIZES | {"moe_num_experts": 8, "moe_k": 2, "moe_layer_start_index": 1},
    "hunyuan_v1_moe": SIZES | {"num_experts": 8, "moe_topk": [2] * 4, "head_dim": 16},
    "minimax_m2": SIZES | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "phimoe": SIZES | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "llama4_text": SIZES
    | {"num_local_experts": 8, "interleave_moe_layer_step": 2, "head_dim": 16}
    | {"intermediate_size_mlp": 80, "attention_chunk_size": 32},
}


def config(kind: str, **more: Any) -> dict[str, Any]:
    return {"model_type": kind, **CONFIGS[kind], **more}


def module(values: dict[str, Any]) -> Any:
    """The model without memory for its weights."""
    made = transformers.CONFIG_MAPPING[values["model_type"]].from_dict(values)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(made)


def size(module: Any) -> int:
    return sum(tensor.numel() for tensor in module.parameters())


def layers_of(model: Any) -> list[int]:
    """The parameters of each of its four layers."""
    lists = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)]
    return [size(layer) for layer in next(each for each in lists if len(each) == 4)]


@pytest.mark.parametrize("kind", CONFIGS)
def test_each_layer_has_the_parameters_of_the_module(kind: str) -> None:
    values, model = config(kind), module(config(kind))
    read = module_shape.module_shape(kind, values, ConfigValues(values, kind))
    for shape in (read, shape_of(values, kind)):  # some are read without the module
        found = [shape.layer_parameters(dense=shape.is_dense(number)) for number in range(4)]
        assert found == layers_of(model)
        assert shape.parameters == size(model)


def test_every_second_layer_can_have_experts() -> None:
    shape = shape_of(config("llama4_text"), "scout")
    assert shape.experts is not None
    assert (shape.experts.dense, shape.dense_layers) == ((0, 2), 2)
    assert (shape.ffn, shape.experts.ffn, shape.experts.shared_ffn) == (80, 96, 96)
    profile = Estimator(shape, device_of("h100"), Layout(seq_len=64)).profile()
    kinds = [layer.profile for layer in profile.layers]
    assert kinds == ["embedding", "block", "moe_block", "block", "moe_block", "head"]


def test_a_chunk_has_half_of_its_keys_in_the_mean() -> None:
    """Three of four layers see chunks of 32 tokens, and the fourth all 128."""
    shape = shape_of(config("llama4_text"), "scout")
    assert (shape.window, shape.window_layers, shape.chunked) == (32, 0.75, True)
    device = device_of("h100")
    ops = LayerOps(
        shape, Layout(seq_len=128), Estimator(shape, device, Layout(seq_len=128)).software, 8
    )
    calls = [each for each in ops.attention().by_role[Role.F] if isinstance(each, Attention)]
    assert calls[0].keys == 0.75 * 16 + 0.25 * 64


def test_positions_that_no_token_uses_are_no_longer_sequence() -> None:
    """OPT has two rows more than positions."""
    shape = shape_of(config("opt"), "opt")
    assert shape.positions == 64
    # The two rows, and the final norm's bias and scale.
    assert shape.further_ends == 2 * 64 + 2 * 64


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("mamba", r"layers without attention \(mixer.A_log, mixer.conv1d, .*\), which is not est"),
        ("jamba", r"layers without attention \(mamba.A_log, "),
        ("qwen3_next", "has layers of the type linear_attention, which is not estimated"),
        ("bart", r"than those of queries, keys, values and their output \(self_attn.k_proj, .*, …"),
        ("gemma4_text", "has layers with different head_dim, which is not estimated"),
        ("roberta", r"has the matrices .*, lm_head.dense beside its layers, embedding and head"),
        ("t5", "is of a 't5' model, of which transformers has no causal language model"),
        ("vit", "is of a 'vit' model, of which transformers has no causal language model"),
        ("own", "is of a 'own' model, which neither synth nor the installed transformers knows"),
    ],
)
def test_other_layers_are_refused_by_what_they_have(kind: str, message: str) -> None:
    with pytest.raises(SynthError, match=message):
        shape_of({"model_type": kind}, "this")


def test_without_transformers_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(extra: str, packages: tuple[str, ...], purpose: str) -> None:
        raise MissingExtra(f"{purpose} {packages[-1]}; {extra}")

    monkeypatch.setattr(module_shape, "require", missing)
    with pytest.raises(
        MissingExtra,
        match="is of a cohere2 model, and to read its layers synth needs transformers; hf",
    ):
        shape_of(config("cohere2"), "this")


def test_values_that_a_config_leaves_out_are_those_of_its_kind() -> None:
    """As published config.json files of Gemma 3 do."""
    text = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2}
    shape = shape_of({"model_type": "gemma3", "text_config": text}, "gemma")
    made = transformers.Gemma3TextConfig(hidden_size=64, num_hidden_layers=2)
    assert (shape.vocab, shape.heads) == (made.vocab_size, made.num_attention_heads)
    assert shape.parameters == size(module(json.loads(made.to_json_string())))


@pytest.mark.slow
def test_every_causal_language_model_is_counted_exactly_or_refused() -> None:
    kinds = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    exact, wrong = set(), {}
    for kind in kinds:
        values = {"model_type": kind}
        try:
            made = transformers.CONFIG_MAPPING[kind]()
            model = module(values)
        except Exception:  # no config, or no model, by its defaults alone
            continue
        if made.get_text_config(decoder=True) is not made:
            continue  # what is counted is its language model
        try:
            shape = shape_of(json.loads(json.dumps(made.to_dict(), default=str)), kind)
        except SynthError as error:
            assert re.fullmatch(r"the config of [^\n]+", str(error))
            continue
        exact.add(kind)
        if shape.parameters != size(model):
            wrong[kind] = shape.parameters - size(model)
    assert not wrong.keys() - {"bert"}  # whose own layer of the head is left out
    assert len(exact) > 70
    assert exact >= {"cohere", "gptj", "mpt", "solar_open", "olmo", "llama4_text", "phimoe", "opt"}


def test_a_shape_of_experts_alone_needs_no_dense_width() -> None:
    shape: ModelShape = shape_of(config("minimax_m2"), "m2")
    Layout(seq_len=64, tensor=2).check(shape)
    assert shape.ffn == 96


def test_values_under_other_names_say_that_a_config_is_one() -> None:
    given = {name: value for name, value in NUMBERS.items() if name != "vocab_size"}
    assert shape_of({"model_type": "gpt2", **given}, "small").vocab == 50257
    with pytest.raises(SynthError, match="the config of empty has no n_embd"):
        shape_of({"model_type": "gpt2"}, "empty")


@pytest.mark.parametrize(
    "kind", ["qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"]
)
@pytest.mark.parametrize("part", ["text_config", "llm_config", None])
def test_language_models_of_several_modalities_count_alone(kind: str, part: str | None) -> None:
    experts = EXPERTS | {"num_experts": 4} if "moe" in kind else {}
    made = transformers.CONFIG_MAPPING[kind](**SIZES, **experts)
    text = json.loads(made.to_json_string()) | {"tie_word_embeddings": False}
    wrapper = kind.removesuffix("_text")
    given = {"model_type": wrapper, part: text} if part else {**text, "model_type": wrapper}
    with torch.device("meta"):
        without_head = transformers.AutoModel.from_config(made)
    head = made.vocab_size * made.hidden_size
    others = {"vision_config": {"depth": 2}, "projector_config": {"model_type": "x"}}
    shape = shape_of({**given, **others, "quantization_config": {"bits": 4}}, "this")
    assert shape.parameters == size(without_head) + head
    assert shape.left_out == ("vision_config", "projector_config")


@pytest.mark.parametrize("kind", ["t5", "bart", "whisper"])
def test_encoder_decoders_are_refused(kind: str) -> None:
    made = json.loads(transformers.CONFIG_MAPPING[kind]().to_json_string())
    with pytest.raises(SynthError, match="this has an encoder and a decoder, which"):
        shape_of(made | {"is_encoder_decoder": True}, "this")
