"""Validated, immutable records and their JSON files: unknown keys and missing fields are errors."""

import json
import reprlib
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic_core import ErrorDetails

from synth.errors import SynthError
from synth.records.safe_read import (
    MOST_BYTES,
    AnyPath,
    half_character,
    parse_json,
    read_text,
)
from synth.records.safe_write import write_atomically
from synth.units import shown

_Parsed = TypeVar("_Parsed", bound="FileRecord")

_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 60

# The most characters of a key that is shown unshortened.
_LONGEST_KEY = 60

# Of pydantic's messages those that name types of Python, in the words of a JSON file.
_WORDS = {
    "too_short": "Input should have {min_length} or more items",
    "too_long": "Input should have {max_length} or fewer items",
    **dict.fromkeys(("tuple_type", "list_type"), "Input should be a list"),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type"), "Input should be an object"
    ),
}


class Record(BaseModel):
    """A frozen record; values are checked when it is made and trusted afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, validated again."""
        return type(self).model_validate({**dict(self), **changes})


class BriefRecord(Record):
    """A record whose JSON leaves out the fields of `LEFT_OUT` where they have their defaults.

    Files of earlier versions have no such fields.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]]

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        for name in self.LEFT_OUT:
            default = type(self).model_fields[name].get_default(call_default_factory=True)
            if getattr(self, name) == default:
                fields.pop(name, None)
        return fields


class FileRecord(Record):
    """A record that is the whole of a JSON file, with a format name and a schema version.

    Files are written in `VERSION`; those from `OLDEST` on are read. The keys of `OF_FILE` describe
    the file and are not fields. `SINCE` has the version that added a key, by its path
    (`claim.certificate`); a file of an earlier version must not have it. Keys without an entry, and
    those inside lists, are not checked. Absent values are left out of the file, or null in it if
    `WRITES_NULL`. `MADE_BY` are the commands that write such files.
    """

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int]
    OLDEST: ClassVar[int] = 1
    MADE_BY: ClassVar[tuple[str, ...]]
    MOST_BYTES: ClassVar[int] = MOST_BYTES
    OF_FILE: ClassVar[tuple[str, ...]] = ("format", "schema_version")
    SINCE: ClassVar[Mapping[str, int]] = {}
    WRITES_NULL: ClassVar[bool] = False

    @classmethod
    def made_by(cls) -> str:
        """Return the commands that write such files, as an error names them."""
        return " or ".join(f"`{command}`" for command in cls.MADE_BY)

    def to_json(self) -> str:
        """Render the file's text; two equal records give the same text."""
        return json.dumps(self.to_data(), indent=1) + "\n"

    def to_data(self) -> dict[str, Any]:
        """Return the file as parsed JSON."""
        head = {"format": self.FORMAT, "schema_version": self.VERSION}
        return {**head, **self.model_dump(mode="json", exclude_none=not self.WRITES_NULL)}

    def save(self, path: AnyPath) -> None:
        """Write the file atomically: a reader sees the old one or the new one, never a part."""
        write_atomically(path, self.to_json())

    @classmethod
    def load(cls: type[_Parsed], path: AnyPath) -> _Parsed:
        """Read and validate a file.

        Raises:
            SynthError: the file is absent, too large, no JSON, of another format, newer, or a field
                is wrong.
        """
        return cls.model_validate_file(cls.read_data(path), str(path))

    @classmethod
    def read_data(cls, path: AnyPath) -> Any:
        """Read and parse a file, without validating its contents."""
        text = read_text(path, f"a {cls.FORMAT} file", cls.MOST_BYTES)
        return cls._parsed(text, str(path))

    @classmethod
    def from_json(cls: type[_Parsed], text: str, name: str = "the text") -> _Parsed:
        """Parse and validate a file's text; `name` is how errors call it."""
        return cls.model_validate_file(cls._parsed(text, name), name)

    @classmethod
    def _parsed(cls, text: str, name: str) -> Any:
        try:
            return parse_json(text)
        except ValueError as error:
            raise SynthError(
                f"{name} is not JSON: {error}; it was truncated or edited: make it again with "
                f"{cls.made_by()}"
            ) from None

    @classmethod
    def model_validate_file(cls: type[_Parsed], data: Any, name: str) -> _Parsed:
        """Check the format and version of parsed JSON, then its fields."""
        if not isinstance(data, dict):
            raise SynthError(
                f"{name} holds {_brief(data)}, needed an object of the format {cls.FORMAT!r} "
                f"(made by {cls.made_by()})"
            )
        if data.get("format") != cls.FORMAT:
            raise SynthError(
                f'{name}: "format" is {_brief(data.get("format", "none"))}, needed {cls.FORMAT!r} '
                f"(made by {cls.made_by()})"
            )
        version = data.get("schema_version")
        if type(version) is not int or not cls.OLDEST <= version <= cls.VERSION:
            way_out = (
                "upgrade synth"
                if isinstance(version, int) and version > cls.VERSION
                else f"make the file again with {cls.made_by()}"
            )
            known = " to ".join(map(str, sorted({cls.OLDEST, cls.VERSION})))
            raise SynthError(
                f"{name}: schema_version is {_brief(version)}, this synth reads {known}; {way_out}"
            )
        cls._check_keys(data, version, name)
        body = {k: v for k, v in data.items() if k not in cls.OF_FILE}
        try:
            checked = cls.model_validate(body)
        except ValidationError as error:
            raise SynthError(
                f"{name} is not a valid {cls.FORMAT} file:\n{describe(error)}"
            ) from None
        half = half_character(body)
        if half is not None:
            raise SynthError(f"{name} has {half} in it, half of a character; needed: plain text")
        return checked

    @classmethod
    def _check_keys(cls, data: Mapping[str, Any], version: int, name: str) -> None:
        """Refuse keys that the file's version did not have yet."""
        for path, since in cls.SINCE.items():
            if since > version and _has_key(data, path):
                raise SynthError(
                    f"{name}: {path} came with schema_version {since}, and schema_version is "
                    f"{version}; leave it out, or make the file again with {cls.made_by()}"
                )


def _has_key(data: Any, path: str) -> bool:
    """True if there is a value at a path of keys, such as `claim.certificate`.

    A list on the way stands for all its elements, and the key `*` for all values of an object.
    """
    found = [data]
    for key in path.split("."):
        found = [one for each in found for one in (each if isinstance(each, list) else [each])]
        tables = [each for each in found if isinstance(each, dict)]
        if key == "*":
            found = [value for table in tables for value in table.values()]
        else:
            found = [table.get(key) for table in tables]
    return any(each is not None for each in found)


def describe(error: ValidationError, most: int = 5) -> str:
    """Render pydantic's findings as one line per field: where, what was wrong, what was given."""
    lines = []
    for found in error.errors()[:most]:
        where = ".".join(_named(part) for part in found["loc"]) or "(file)"
        message = words_of(found)
        is_told = found["type"] in ("missing", "value_error")
        given = "" if is_told else f", given {_brief(found['input'])}"
        lines.append(f"  {where}: {message}{given[:80]}")
    if error.error_count() > most:
        lines.append(f"  … and {error.error_count() - most} more")
    return "\n".join(lines)


def words_of(found: ErrorDetails) -> str:
    """Return what was wrong with a value."""
    if (words := _WORDS.get(found["type"])) is not None:
        return words.format(**found.get("ctx", {}))
    return without_prefix(found["msg"])


def without_prefix(message: str) -> str:
    """Return a message of pydantic's without the prefix for errors of validators."""
    return message.removeprefix("Value error, ")


def _named(part: int | str) -> str:
    """A key or a place of a file; unusual keys are in quotes."""
    text = str(part)
    return text if len(text) <= _LONGEST_KEY and text.isprintable() else shown(text)


def _brief(given: object) -> str:
    """Show a value of a file, shortened to its beginning if it is long or deep."""
    if given is None or isinstance(given, bool):
        return json.dumps(given)
    return _BRIEF.repr(given)
