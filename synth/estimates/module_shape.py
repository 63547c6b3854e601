"""The sizes of a language model from its module in transformers, made without memory for weights.

For kinds of models whose configs have names of their own. All matrices of a layer must be those of
attention and of an MLP or experts, by their numbers of elements; vectors count as norms and biases.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from synth.errors import SynthError
from synth.estimates.config_kinds import KINDS
from synth.estimates.config_values import ConfigValues, language_part
from synth.estimates.model_shape import Experts, LatentAttention, ModelShape
from synth.system.extras import require
from synth.units import shown

# A config with more layers is no model, and its module would take long to make.
_MOST_LAYERS = 2048

# Rows of a table of learned positions beside those of its positions.
_ROWS_MORE = 4

# Of parameters in an error.
_MOST_NAMES = 6

_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "num_selected_experts",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "top_k_experts",
)

_CHUNKED = "chunked_attention"
_LOCAL = ("sliding_attention", _CHUNKED)


def module_shape(name: str, values: Mapping[str, Any], given: ConfigValues) -> ModelShape:
    """Return the shape of a model of transformers.

    Args:
        values: of its config.json.
        given: the same, for its errors.

    Raises:
        SynthError: transformers is missing or has no such model, or a layer has other parts.
    """
    if given.flag("is_encoder_decoder"):
        raise given.refuse("an encoder and a decoder")
    config = _config(values, given)
    model = _made(config, given)
    layers = _layers(config, model, given)
    return _ModuleReader(name, config, given).shape(model, layers)


def completed(values: Mapping[str, Any], given: ConfigValues) -> dict[str, Any]:
    """Return a config's values with those that it leaves out, which transformers knows.

    Raises:
        SynthError: transformers is missing, or does not take the config.
    """
    found: dict[str, Any] = _config(values, given).to_dict()
    return found


def _config(values: Mapping[str, Any], given: ConfigValues) -> Any:
    """Return the config of the language model as transformers reads it."""
    purpose = f"{given.source} is of a {given.kind} model, and to read its layers synth needs"
    require("hf", ("torch", "transformers"), purpose)
    from transformers import CONFIG_MAPPING

    parts = (values, language_part(values, given.source))
    known = next((each for each in parts if each.get("model_type") in CONFIG_MAPPING), None)
    if known is None:
        raise SynthError(
            f"{given.source} is of a {shown(given.kind)} model, which neither synth nor the "
            f"installed transformers knows; known to synth: {', '.join(sorted(KINDS))}"
        )
    kind = known["model_type"]
    try:
        return CONFIG_MAPPING[kind].from_dict(dict(known)).get_text_config(decoder=True)
    except Exception as error:  # transformers checks fields by errors of many classes
        raise SynthError(f"{given.source}: transformers refuses it: {_line(error)}") from error


def _made(config: Any, given: ConfigValues) -> Any:
    """Return the module of the language model."""
    import torch
    from transformers import AutoModelForCausalLM

    models: Any = AutoModelForCausalLM  # whose methods have no types
    layers = getattr(config, "num_hidden_layers", 0)
    if not isinstance(layers, int) or not 0 < layers <= _MOST_LAYERS:
        raise given.refuse(f"{layers} layers")
    if different := getattr(config, "per_layer_attributes", None):
        raise given.refuse(f"layers with different {', '.join(sorted(different))}")
    if type(config) not in models._model_mapping:
        raise SynthError(
            f"{given.source} is of a {shown(config.model_type)} model, of which transformers has "
            f"no causal language model; only these are estimated"
        )
    try:
        with torch.device("meta"):
            return models.from_config(config, trust_remote_code=False)
    except Exception as error:  # of fields that do not fit, of any class
        raise SynthError(f"{given.source}: transformers cannot make it: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _layers(config: Any, model: Any, given: ConfigValues) -> list[Any]:
    """Return the decoder layers: of the lists as long as the model is deep the largest."""
    from torch import nn

    lists = [
        each
        for each in model.modules()
        if isinstance(each, nn.ModuleList) and len(each) == config.num_hidden_layers
    ]
    if not lists:
        raise given.refuse(f"no list of its {config.num_hidden_layers} layers in transformers")
    return list(max(lists, key=_size))


def _size(module: Any) -> int:
    return sum(tensor.numel() for tensor in module.parameters())


@dataclass(frozen=True)
class _Matrix:
    """A parameter with so many equal matrices, one for each expert."""

    name: str
    elements: int
    copies: int
    tensor: Any = field(compare=False, repr=False)


def _matrices(module: Any) -> list[_Matrix]:
    """Return those of a module; vectors and biases are none."""
    found = dict[str, _Matrix]()
    for name, tensor in module.named_parameters():
        sizes = [size for size in tensor.shape if size > 1]
        if len(sizes) < 2 or name.endswith("bias"):
            continue
        copies = sizes.pop(0) if len(sizes) == 3 else 1
        name = re.sub(r"experts\.\d+\.", "experts.", name)
        if name in found:
            copies += found[name].copies
        found[name] = _Matrix(name, prod(sizes), copies, tensor)
    return list(found.values())


def _listed(matrices: Sequence[_Matrix]) -> str:
    short = [each.name.removesuffix(".weight") for each in matrices[:_MOST_NAMES]]
    return ", ".join(short) + (", …" if len(matrices) > _MOST_NAMES else "")


@dataclass(frozen=True)
class _Mlp:
    """The width of an MLP, and whether it has a gate."""

    ffn: int
    gated: bool


@dataclass(frozen=True)
class _ModuleReader:
    """Reads the sizes of a module.

    Attributes:
        config: that of transformers, with all its defaults.
        given: the config's values, for errors.
    """

    name: str
    config: Any
    given: ConfigValues

    def shape(self, model: Any, layers: Sequence[Any]) -> ModelShape:
        """Return the shape; its parameters are exactly those of the module."""
        read = [self._layer(layer) for layer in layers]
        for is_dense in (True, False):
            alike = [at for at, (shape, _) in enumerate(read) if (not shape.experts) is is_dense]
            for at in alike:
                if read[at] != read[alike[0]]:
                    raise self.given.refuse(f"layers of different sizes ({alike[0]} and {at})")
        dense = [at for at, (shape, _) in enumerate(read) if shape.experts is None]
        routed = [at for at, (shape, _) in enumerate(read) if shape.experts is not None]
        shape, further = read[(routed or dense)[0]]
        if (experts := shape.experts) is not None:
            more = 0
            if dense:
                other, of_dense = read[dense[0]]
                if other.gated is not shape.gated or of_dense > further:
                    raise self.given.refuse("MLPs of different kinds")
                shape, more, further = shape.replace(ffn=other.ffn), further - of_dense, of_dense
            shape = shape.replace(experts=experts.replace(dense=tuple(dense), further=more))
        return self._with_ends(shape.replace(further=further), model, layers)

    def _layer(self, layer: Any) -> tuple[ModelShape, int]:
        """Return the shape of a model of such layers, and the other parameters of one."""
        attention, mlp = list[_Matrix](), list[_Matrix]()
        for matrix in _matrices(layer):
            first = matrix.name.partition(".")[0]
            (attention if re.search("att", first) else mlp).append(matrix)
        if not attention:
            raise self.given.refuse(f"layers without attention ({_listed(mlp)})")
        routed = [each for each in mlp if each.copies > 1 and "shared" not in each.name]
        experts, width = None, self._mlp(routed or mlp)
        if routed:
            experts = self._experts(width, routed[0].copies, [e for e in mlp if e not in routed])
        norms = sum("Norm" in type(child).__name__ for child in layer.children())
        shape = ModelShape(
            name=self.name,
            layers=self.config.num_hidden_layers,
            norms=max(1, norms),
            ffn=width.ffn if experts is None else experts.ffn,
            gated=width.gated,
            experts=experts,
            mtp_layers=getattr(self.config, "num_nextn_predict_layers", None) or 0,
            **self._attention(attention),
            **self._windows(),
        )
        found = sum(each.elements * each.copies for each in attention)
        if shape.attention_elements != found or shape.kv_heads > shape.heads:
            raise self._unknown("queries, keys, values and their output", attention)
        return shape, _size(layer) - shape.layer_parameters(dense=experts is None)

    def _attention(self, matrices: Sequence[_Matrix]) -> dict[str, Any]:
        """Return the fields of attention, which the caller compares with its matrices."""
        config, latent = self.config, None
        heads, hidden = config.num_attention_heads, config.hidden_size
        if not isinstance(heads, int) or not heads:
            raise self.given.refuse(f"{heads} heads of attention")
        width = getattr(config, "head_dim", None) or hidden // heads
        if getattr(config, "kv_lora_rank", None):
            latent = LatentAttention(
                query_rank=config.q_lora_rank or 0,
                key_value_rank=config.kv_lora_rank,
                nope=config.qk_nope_head_dim,
                rope=config.qk_rope_head_dim,
                value=config.v_head_dim,
            )
        # Of configs without their number, as many as the matrices have.
        own = sum(each.elements for each in matrices) // hidden - 2 * heads * width
        kv_heads = getattr(config, "num_key_value_heads", None) or max(1, own // (2 * width))
        return {
            "hidden": hidden,
            "vocab": config.vocab_size,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": width,
            "latent": latent,
            "norm_vectors": 0,
        }

    def _mlp(self, matrices: Sequence[_Matrix]) -> _Mlp:
        """Return the sizes of an MLP from the numbers of elements of its matrices."""
        found = sorted(each.elements for each in matrices)
        least, hidden = (found or [0])[0], self.config.hidden_size
        shares = tuple(each / least for each in found) if least else ()
        gates = {(1.0, 1.0): False, (1.0, 2.0): True, (1.0, 1.0, 1.0): True}
        copies = {each.copies for each in matrices}
        if shares not in gates or least % hidden or len(copies) > 1:
            raise self._unknown("an MLP or experts beside attention", matrices)
        return _Mlp(copies.pop() * least // hidden, gates[shares])

    def _unknown(self, expected: str, matrices: Sequence[_Matrix]) -> SynthError:
        names = _listed(matrices) or "none"
        return self.given.refuse(f"layers with other matrices than those of {expected} ({names})")

    def _experts(self, width: _Mlp, count: int, others: list[_Matrix]) -> Experts:
        """Return the experts of a layer.

        Args:
            width: of all of them together.
            count: of experts.
            others: the router, and the MLP that every token goes through.
        """
        rows = count * self.config.hidden_size
        router = next((e for e in others if e.elements == rows and "proj" not in e.name), None)
        if router is None:
            raise self._unknown("a router and a shared expert", others)
        others.remove(router)
        shared = self._mlp(others) if others else _Mlp(0, width.gated)
        if shared.gated is not width.gated:
            raise self.given.refuse("experts with a gate beside others without")
        found = [getattr(self.config, name, None) for name in _PER_TOKEN]
        numbers = [each[0] if isinstance(each, list) else each for each in found if each]
        if not numbers:
            raise self.given.refuse("no number of experts of a token")
        return Experts(
            count=count, per_token=numbers[0], ffn=width.ffn // count, shared_ffn=shared.ffn
        )

    def _windows(self) -> dict[str, Any]:
        """Return the fields of layers that attend to a part of the sequence."""
        config = self.config
        kinds = getattr(config, "layer_types", None) or []
        for kind in kinds:
            if kind not in ("full_attention", *_LOCAL):
                raise self.given.refuse(f"layers of the type {kind}")
        is_chunked = _CHUNKED in kinds
        window = getattr(config, "attention_chunk_size" if is_chunked else "sliding_window", None)
        local = sum(kind in _LOCAL for kind in kinds) / len(kinds) if kinds else 1.0
        if not window or not local or getattr(config, "use_sliding_window", None) is False:
            return {}
        return {"window": window, "window_layers": local, "chunked": is_chunked}

    def _with_ends(self, shape: ModelShape, model: Any, layers: Sequence[Any]) -> ModelShape:
        """Add the embedding, positions, and the head."""
        from torch import nn

        inside = {id(tensor) for layer in layers for tensor in layer.parameters()}
        table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        tables = [
            e for e in model.modules() if isinstance(e, nn.Embedding) and e.weight is not table
        ]
        # Some have a few rows more, which no token uses.
        most = getattr(self.config, "max_position_embeddings", None) or 0
        learned = [each for each in tables if 0 <= each.num_embeddings - most < _ROWS_MORE][:1]
        known = {id(tensor) for tensor in (table, head, *(each.weight for each in learned))}
        others = [each for each in _matrices(model) if id(each.tensor) not in inside | known]
        if others or head.shape != table.shape or table.shape[1] != shape.hidden:
            raise self.given.refuse(
                f"the matrices {_listed(others)} beside its layers, embedding and head"
                if others
                else "an embedding and a head of different sizes"
            )
        positions = most if learned else 0
        shape = shape.replace(vocab=table.shape[0], tied=head is table, positions=positions)
        return shape.replace(further_ends=_size(model) - shape.parameters)
