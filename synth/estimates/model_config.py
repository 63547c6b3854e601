"""Reading a model's `config.json`, as Hugging Face publishes it, without its library."""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from synth.errors import SynthError
from synth.estimates.config_kinds import KINDS
from synth.estimates.config_values import ConfigValues, MissingValue, other_parts
from synth.estimates.model_shape import ModelShape
from synth.estimates.module_shape import completed, module_shape
from synth.records.field_types import PlainText
from synth.records.record import Record, describe
from synth.records.safe_read import read_object
from synth.suggestions import did_you_mean

_DATA = "data"

# Values under their names of some kinds, of which every config has each.
_SAID = (
    ("hidden_size", "n_embd", "d_model"),
    ("num_hidden_layers", "n_layer", "n_layers"),
)


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
            f"model {name_or_path!r:.80} is neither a config.json nor known; known: "
            f"{', '.join(model_names())}{did_you_mean(name_or_path.lower(), model_names())}"
        )
    return shape_of(found.config, name_or_path.lower())


def model_names() -> tuple[str, ...]:
    """The names of the models whose configs ship with synth."""
    return tuple(_shipped())


def known_model(name: str) -> "KnownModel":
    """Return a model whose config ships with synth, by its name."""
    return _shipped()[name]


@cache
def _shipped() -> dict[str, "KnownModel"]:
    text = resources.files(__package__).joinpath(_DATA, "models.json").read_text(encoding="utf-8")
    listed: dict[str, Any] = json.loads(text)["models"]
    return {name: KnownModel.model_validate(given) for name, given in listed.items()}


class KnownModel(Record):
    """A model whose config ships with synth.

    Attributes:
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

    Raises:
        SynthError: a kind of model that is not known, or a value is missing or wrong.
    """
    try:
        return _text_shape(config, name).replace(left_out=other_parts(config))
    except ValidationError as error:
        reasons = [line.strip().removeprefix("(file): ") for line in describe(error).splitlines()]
        raise SynthError(f"the config of {name} is no model: {'; '.join(reasons)}") from None


def _text_shape(config: Mapping[str, Any], name: str) -> ModelShape:
    given = ConfigValues(config, f"the config of {name}")
    read = KINDS.get(given.kind)
    if read is None:
        return module_shape(name, config, given)
    try:
        return ModelShape(name=name, **read(given))
    except MissingValue:
        if not all(any(map(given.has, names)) for names in _SAID):
            raise
        whole = ConfigValues(completed(config, given), given.source)
        return ModelShape(name=name, **read(whole))
