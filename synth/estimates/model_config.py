"""Reading a model's `config.json`, as Hugging Face publishes it, without its library."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from synth.errors import SynthError
from synth.estimates.given_file import read_object
from synth.estimates.model_shape import Experts, LatentAttention, ModelShape
from synth.records.field_types import PlainText
from synth.records.record import Record, describe
from synth.units import shown

_DATA = "data"


class _Config:
    """A config's values, with an error that names what is missing or wrong."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        # Models of several modalities keep their language model in a part of the config.
        text = values.get("text_config")
        if not isinstance(text, Mapping | None):
            raise SynthError(f"{source}: text_config is {shown(text)}; an object is needed")
        self._values = {**values, **(text or {})}
        self._source = source

    @property
    def kind(self) -> str:
        """The model type."""
        kind = self._values.get("model_type")
        if not isinstance(kind, str):
            raise SynthError(
                f"{self._source} has no model_type, so it is no config of a model; give a "
                f"config.json as Hugging Face's library writes it, or one of {_listed()}"
            )
        return kind

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of these values that is there and not null."""
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
                raise SynthError(f"{self._source}: {name} is {shown(value)}; a count is needed")
            return value
        if default is None:
            raise SynthError(f"{self._source} has no {names[0]}, which a {self.kind} model needs")
        return default

    def share(self, total: int, of: str, count: int, by: str) -> int:
        """A total divided by a count, without a rest."""
        if not count or total % count:
            raise SynthError(f"{self._source}: {of} {total} is no multiple of {by} {count}")
        return total // count

    def refuse(self, what: str) -> SynthError:
        """An error about the config."""
        return SynthError(f"{self._source} has {what}, which is not estimated")

    def flag(self, name: str, default: bool = False) -> bool:
        """A value that is true or false."""
        value = self._values.get(name)
        if not isinstance(value, bool | None):
            raise SynthError(f"{self._source}: {name} is {shown(value)}; true or false is needed")
        return default if value is None else value

    def has(self, name: str) -> bool:
        """True if the value is there and not null."""
        return self._values.get(name) is not None

    def values(self, name: str) -> list[Any]:
        """A list; empty if it is not there."""
        found = self._values.get(name)
        if not isinstance(found, list | None):
            raise SynthError(f"{self._source}: {name} is {shown(found)}; a list is needed")
        return found or []


def model_of(name_or_path: str) -> ModelShape:
    """Return the shape of a shipped model, or of a `config.json` or the folder that holds one.

    Raises:
        SynthError: neither, or a model that is not known.
    """
    path = Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        values = read_object(path, "a model's config.json")
        return shape_of(values, path.parent.resolve().name if path.stem == "config" else path.stem)
    found = _shipped().get(name_or_path.lower())
    if found is None:
        raise SynthError(
            f"model {name_or_path!r:.80} is neither a config.json nor known; known: {_listed()}"
        )
    return shape_of(found.config, name_or_path.lower())


def model_names() -> tuple[str, ...]:
    """The names of the models whose configs ship with synth."""
    return tuple(_shipped())


def known_model(name: str) -> "KnownModel":
    """Return a model whose config ships with synth, by its name."""
    return _shipped()[name]


def _listed() -> str:
    return ", ".join(model_names())


@cache
def _shipped() -> dict[str, "KnownModel"]:
    text = resources.files(__package__).joinpath(_DATA, "models.json").read_text(encoding="utf-8")
    listed: dict[str, Any] = json.loads(text)["models"]
    return {name: KnownModel.model_validate(given) for name, given in listed.items()}


class KnownModel(Record):
    """A model whose config ships with synth.

    Attributes:
        source: where its config is from.
        sequence_length: tokens of a sequence in its training, most of the time.
        tensor_parallel: usual numbers of ranks of tensor parallelism.
        expert_parallel: usual numbers of ranks that share the experts.
        config: the part of its `config.json` that an estimate reads.
    """

    source: PlainText
    sequence_length: int
    tensor_parallel: tuple[int, ...]
    expert_parallel: tuple[int, ...]
    config: dict[str, Any]


def shape_of(config: Mapping[str, Any], name: str) -> ModelShape:
    """Return the shape that a config describes.

    Args:
        config: the values of a `config.json`.
        name: the name of the model.

    Raises:
        SynthError: a kind of model that is not known, or a value is missing or wrong.
    """
    given = _Config(config, f"the config of {name}")
    read = _KINDS.get(given.kind)
    if read is None:
        raise SynthError(
            f"the config of {name} is of a {shown(given.kind)} model, whose layers are not known; "
            f"known: {', '.join(sorted(_KINDS))}"
        )
    try:
        return ModelShape(name=name, **read(given))
    except ValidationError as error:
        raise SynthError(f"the config of {name} is no model:\n{describe(error)}") from None


def _decoder(given: _Config) -> dict[str, Any]:
    """The sizes that all decoders with rotary embeddings and gated MLPs name alike."""
    hidden, heads = given.number("hidden_size"), given.number("num_attention_heads")
    if given.has("head_dim"):
        width = given.number("head_dim")
    else:
        width = given.share(hidden, "hidden_size", heads, "num_attention_heads")
    kv_heads = given.number("num_key_value_heads", default=heads)
    given.share(heads, "num_attention_heads", kv_heads, "num_key_value_heads")
    return {
        "layers": given.number("num_hidden_layers"),
        "hidden": hidden,
        "ffn": given.number("intermediate_size"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": width,
        "vocab": given.number("vocab_size"),
        "tied": given.flag("tie_word_embeddings"),
        "attention_biases": given.flag("attention_bias"),
    }


def _llama(given: _Config) -> dict[str, Any]:
    return _decoder(given) | {"mlp_biases": given.flag("mlp_bias")}


def _qwen(given: _Config) -> dict[str, Any]:
    """If windows are used, the layers from `max_window_layers` on are local."""
    sizes = _decoder(given)
    if not given.flag("use_sliding_window"):
        return sizes
    window = given.number("sliding_window", default=0)
    layers, first = sizes["layers"], given.number("max_window_layers", default=28)
    local = max(0, layers - first) / max(1, layers)
    if kinds := given.values("layer_types"):
        local = kinds.count("sliding_attention") / len(kinds)
    return sizes | {"window": window, "window_layers": local if window else 0.0}


def _qwen2(given: _Config) -> dict[str, Any]:
    return _qwen(given) | {"attention_biases": True}


def _qwen3(given: _Config) -> dict[str, Any]:
    return _qwen(given) | {"head_norms": True}


def _gemma(given: _Config) -> dict[str, Any]:
    return _decoder(given) | {"tied": given.flag("tie_word_embeddings", True)}


def _gemma3(given: _Config) -> dict[str, Any]:
    """Four norms a layer, and local layers: every `sliding_window_pattern`-th is global."""
    third = given.kind != "gemma2"
    kinds = given.values("layer_types")
    pattern = given.number("sliding_window_pattern", default=6 if third else 2)
    local = kinds.count("sliding_attention") / len(kinds) if kinds else 1 - 1 / max(1, pattern)
    window = given.number("sliding_window", default=0)
    more = {"norms": 4, "head_norms": third, "window": window, "window_layers": local}
    return _gemma(given) | more


def _mistral(given: _Config) -> dict[str, Any]:
    """All layers are local if there is a window."""
    window = given.number("sliding_window", default=0)
    return _decoder(given) | {"window": window, "window_layers": 1.0 if window else 0.0}


def _mixtral(given: _Config) -> dict[str, Any]:
    ffn = given.number("intermediate_size")
    count, per_token = given.number("num_local_experts"), given.number("num_experts_per_tok")
    return _mistral(given) | {"experts": Experts(count=count, per_token=per_token, ffn=ffn)}


def _qwen3_moe(given: _Config) -> dict[str, Any]:
    dense = given.values("mlp_only_layers")
    if dense != list(range(len(dense))):
        raise given.refuse("mlp_only_layers that are not the first ones")
    if given.number("decoder_sparse_step", default=1) != 1:
        raise given.refuse("a decoder_sparse_step above 1")
    return _qwen3(given) | {
        "experts": Experts(
            count=given.number("num_experts", "num_local_experts"),
            per_token=given.number("num_experts_per_tok"),
            ffn=given.number("moe_intermediate_size"),
            first_layer=len(dense),
        )
    }


def _deepseek(given: _Config) -> dict[str, Any]:
    """Latent attention, dense layers first, then experts with shared ones (V2 and V3)."""
    latent = LatentAttention(
        query_rank=given.number("q_lora_rank", default=0),
        key_value_rank=given.number("kv_lora_rank"),
        nope=given.number("qk_nope_head_dim"),
        rope=given.number("qk_rope_head_dim"),
        value=given.number("v_head_dim"),
    )
    width = given.number("moe_intermediate_size")
    experts = Experts(
        count=given.number("n_routed_experts"),
        per_token=given.number("num_experts_per_tok"),
        ffn=width,
        shared_ffn=width * given.number("n_shared_experts", default=0),
        first_layer=given.number("first_k_dense_replace", default=0),
    )
    mtp = given.number("num_nextn_predict_layers", default=0)
    return _decoder(given) | {"latent": latent, "experts": experts, "mtp_layers": mtp}


def _gpt2(given: _Config) -> dict[str, Any]:
    """GPT-2's names of sizes, and those of BLOOM's configs."""
    hidden = given.number("n_embd", "hidden_size", "n_embed")
    heads = given.number("n_head", "num_attention_heads")
    return {
        "layers": given.number("n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "ffn": given.number("n_inner", default=4 * hidden),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": given.share(hidden, "n_embd", heads, "n_head"),
        "vocab": given.number("vocab_size"),
        "positions": given.number("n_positions", "max_position_embeddings", default=0),
        "gated": False,
        "tied": given.flag("tie_word_embeddings", True),
        "biases": True,
        "dropout": True,
    }


def _bert(given: _Config) -> dict[str, Any]:
    """An encoder with the head of masked tokens, without that head's own layer and norm."""
    hidden, heads = given.number("hidden_size"), given.number("num_attention_heads")
    return {
        "layers": given.number("num_hidden_layers"),
        "hidden": hidden,
        "ffn": given.number("intermediate_size"),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": given.share(hidden, "hidden_size", heads, "num_attention_heads"),
        "vocab": given.number("vocab_size"),
        "positions": given.number("max_position_embeddings", default=0),
        "gated": False,
        "tied": given.flag("tie_word_embeddings", True),
        "biases": True,
        "dropout": True,
        "causal": False,
    }


def _bloom(given: _Config) -> dict[str, Any]:
    return _gpt2(given) | {"positions": 0, "dropout": False}


_KINDS: dict[str, Callable[[_Config], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma3,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "bert": _bert,
    "gpt2": _gpt2,
    "bloom": _bloom,
}
