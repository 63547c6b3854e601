"""The values of a model's `config.json`, with an error that names what is missing or wrong."""

from collections.abc import Mapping
from typing import Any

from synth.errors import SynthError
from synth.units import shown

# Where models of several modalities keep the config of their language model.
_LANGUAGE = ("text_config", "llm_config", "language_config")

# Those of other parts, which have a `model_type` in most files.
_OTHER_PARTS = ("vision_config", "audio_config")


def language_part(values: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return the part of a config that is of the language model alone; empty: there is none.

    Raises:
        SynthError: it is no object.
    """
    name = next((name for name in _LANGUAGE if values.get(name) is not None), None)
    if name is None:
        return {}
    part = values[name]
    if not isinstance(part, Mapping):
        raise SynthError(f"{source}: {name} is {shown(part)}; an object is needed")
    return part


def other_parts(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the configs of a model's parts beside its language model, such as those for images."""
    return tuple(
        name
        for name, part in values.items()
        if name.endswith("_config")
        and name not in _LANGUAGE
        and isinstance(part, Mapping)
        and ("model_type" in part or name in _OTHER_PARTS)
        and part
    )


class MissingValue(SynthError):
    """A config leaves out a value that its model needs."""


class ConfigValues:
    """A config's values.

    Attributes:
        source: what they are, for errors.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = {**values, **language_part(values, source)}
        self.source = source

    @property
    def kind(self) -> str:
        """The model type."""
        kind = self._values.get("model_type")
        if not isinstance(kind, str):
            raise SynthError(
                f"{self.source} has no model_type, so it is no config of a model; give a "
                f"config.json as Hugging Face's library writes it, or the name of a known model"
            )
        return kind

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of these values that is there and not null."""
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
                raise SynthError(f"{self.source}: {name} is {shown(value)}; a count is needed")
            return value
        if default is None:
            raise MissingValue(f"{self.source} has no {names[0]}, which a {self.kind} model needs")
        return default

    def share(self, total: int, of: str, count: int, by: str) -> int:
        """A total divided by a count, without a rest."""
        if not count or total % count:
            raise SynthError(f"{self.source}: {of} {total} is no multiple of {by} {count}")
        return total // count

    def refuse(self, what: str) -> SynthError:
        """An error about the config."""
        return SynthError(f"{self.source} has {what}, which is not estimated")

    def flag(self, name: str, default: bool = False) -> bool:
        """A value that is true or false."""
        value = self._values.get(name)
        if not isinstance(value, bool | None):
            raise SynthError(f"{self.source}: {name} is {shown(value)}; true or false is needed")
        return default if value is None else value

    def has(self, name: str) -> bool:
        """True if the value is there and not null."""
        return self._values.get(name) is not None

    def values(self, name: str) -> list[Any]:
        """A list; empty if it is not there."""
        found = self._values.get(name)
        if not isinstance(found, list | None):
            raise SynthError(f"{self.source}: {name} is {shown(found)}; a list is needed")
        return found or []

    def is_above_zero(self, *names: str) -> bool:
        """True if one of these shares, as of dropout, is there and above zero."""
        found = [self._values.get(name) for name in names]
        return any(isinstance(value, int | float) and value > 0 for value in found)
