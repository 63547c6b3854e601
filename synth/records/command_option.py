"""The declaration of a record's field as an option or an argument of a command.

It has all that the field's type does not say, and how the type's values are read and written.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from synth.errors import SynthError
from synth.records.record import Record, words_of

_Metadata = TypeVar("_Metadata")
_Made = TypeVar("_Made", bound=Record)

# Characters of a wrong value that a message shows.
_MOST_SHOWN = 60

_NOT_READ = "not_read"


@dataclass(frozen=True)
class Read:
    """Metadata of a type: how its values are read from a text or a plain value, and written.

    Attributes:
        read: returns the value; a ValueError: it is none.
        needed: what is needed instead, in words.
        written: returns the text of a value, which is read as the same.
        as_text: the command line gives a text; False: a value of the type.
    """

    read: Callable[[Any], Any]
    needed: str
    written: Callable[[Any], str] = str
    as_text: bool = True

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Read values before they are validated."""
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def _read(self, given: object) -> object:
        try:
            return self.read(given)
        except ValueError:
            raise PydanticCustomError(
                "not_understood", "{needed}", {"needed": self.needed}
            ) from None
        except SynthError as error:
            if error.fields:
                raise
            # The reader of a unit knows neither the option nor its argument.
            raise PydanticCustomError(_NOT_READ, "{why}", {"why": str(error)}) from None


@dataclass(frozen=True)
class CommandOption:
    """Metadata of a field's type, by which a command offers the field as an option.

    Default and limits are the field's own. `synth.cli.read.record_options` reads all of them.

    Attributes:
        names: the option's names; none: two dashes and the field's name.
        metavar: the placeholder of its value; None: that of the type.
        default: the default in words; None: the field's.
    """

    help: str
    names: tuple[str, ...] = ()
    metavar: str | None = None
    default: str | None = None


@dataclass(frozen=True)
class CommandArgument:
    """Metadata of a field's type, by which a command takes the field as a positional argument.

    Attributes:
        metavar: its name in `--help`.
    """

    help: str
    metavar: str


@dataclass(frozen=True)
class OptionPanel:
    """Metadata of a field: the heading of `--help` over its option, or over those of its record."""

    title: str


@dataclass(frozen=True)
class After:
    """Metadata of a field: `--help` lists it after this option, not after the field before it."""

    option: str


def metadata_of(field: FieldInfo, kind: type[_Metadata]) -> _Metadata | None:
    """Return what a field, or a member of its union, has of some kind of metadata."""
    return next((each for each in constraints(field) if isinstance(each, kind)), None)


def constraints(field: FieldInfo) -> Iterator[object]:
    """Yield the metadata of a field, and then of the members of its union."""
    yield from field.metadata
    for member in members(field.annotation):
        if get_origin(member) is Annotated:
            for each in get_args(member)[1:]:
                yield from each.metadata if isinstance(each, FieldInfo) else (each,)


def members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def group_of(field: FieldInfo) -> type[Record] | None:
    """Return the type of a field that holds a record, whose fields are options; None: a value."""
    if metadata_of(field, Read) is not None:
        return None
    kinds = members(field.annotation)
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Record)), None)


def grouped(
    record: type[Record], values: Mapping[str, Any], key: Callable[[str, FieldInfo], str]
) -> dict[str, Any]:
    """Return the values of a record's fields, those of its groups in them.

    Args:
        values: the values of all options; those that are missing keep their defaults.
        key: returns the name of a field's value.
    """
    found: dict[str, Any] = {}
    for name, field in record.model_fields.items():
        group = group_of(field)
        if group is None:
            if key(name, field) in values:
                found[name] = values[key(name, field)]
            continue
        inner = grouped(group, values, key)
        if field.default is None:
            inner = {
                name: value
                for name, value in inner.items()
                if value is not None and value is not False
            }
        if inner:
            found[name] = inner
    return found


def from_values(
    record: type[_Made],
    values: Mapping[str, Any],
    key: Callable[[str, FieldInfo], str] = lambda name, field: name,
) -> _Made:
    """Make a record of the values of its fields and of those of its groups.

    Args:
        values: the values; those that are missing keep their defaults.
        key: returns the name of a field's value.

    Raises:
        SynthError: a value is wrong.
    """
    try:
        return record.model_validate(grouped(record, values, key))
    except ValidationError as error:
        wrong = error.errors()[0]
        raise _refused(wrong, key(*_field_at(record, wrong["loc"])).rstrip("_")) from None


def _field_at(record: type[Record], loc: tuple[int | str, ...]) -> tuple[str, FieldInfo]:
    """Return the field of an option, and its name, from the place of an error in a record."""
    name = str(loc[0])
    field = record.model_fields[name]
    group = group_of(field)
    return (name, field) if group is None or len(loc) == 1 else _field_at(group, loc[1:])


def _refused(wrong: ErrorDetails, name: str) -> SynthError:
    if wrong["type"] == _NOT_READ:
        return SynthError(f"§{name}: {wrong['msg']}")
    limits = wrong.get("ctx", {})
    if "ge" in limits:
        return SynthError(f"§{name}={wrong['input']} is too small; give {limits['ge']} or more")
    plain = words_of(wrong).removeprefix("Input should be ").partition(", unable")[0]
    needed = f"at most {limits['le']}" if "le" in limits else limits.get("expected", plain)
    return not_understood(name, wrong["input"], needed)


def not_understood(name: str, given: object, needed: str) -> SynthError:
    """Return the error of an argument of a function, with the first line of its value."""
    line = repr(given).partition("\n")[0]
    value = line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}…"
    return SynthError(f"§{name}={value} is not understood; give {needed}")


def written(record: Record, name: str) -> str | None:
    """Return the text of a field's value, as the command line takes it; None: it is None."""
    read, value = metadata_of(type(record).model_fields[name], Read), getattr(record, name)
    if value is None:
        return None
    return str(value) if read is None else read.written(value)
