"""Commands that take records: the fields of a record are the command's options.

A field is declared once, in its record. Its type, limits and default are those of the option, and
its metadata is a `CommandOption`, a `CommandArgument`, or typer's own; without one it is no option.
A field that is a record itself, a group, gives the options of that record, with the defaults of the
group, or those of its type if the group has none. A group that is None by default stays None unless
one of its options is given.
"""

import copy
import functools
import inspect
import keyword
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

import typer
from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo
from typer.models import OptionInfo

from synth.records.command_option import After, CommandArgument, CommandOption, OptionPanel
from synth.records.record import Record

_Metadata = TypeVar("_Metadata")


class _Parameter(NamedTuple):
    """A field as a parameter of the command, and the name of the option that it follows."""

    parameter: inspect.Parameter
    after: str | None


def with_records(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the fields of its records, each as an option.

    Raises:
        SynthError: the record's validators refuse the options; as those of its fields.
    """
    parameters: list[inspect.Parameter] = []
    records: dict[str, type[Record]] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, Record):
            records[parameter.name] = kind
            parameters += _in_order(_parameters(kind, _own_defaults(kind)))
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def parsed(**values: Any) -> None:
        made = {name: kind.model_validate(_taken(kind, values)) for name, kind in records.items()}
        command(**values, **made)

    # Typer reads the options from these two.
    parsed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    parsed.__annotations__ = {each.name: each.annotation for each in parameters}
    return parsed


def _in_order(found: Iterator[_Parameter]) -> list[inspect.Parameter]:
    """Put parameters in the order of `--help`."""
    ordered: list[inspect.Parameter] = []
    for parameter, after in found:
        if after is None:
            ordered.append(parameter)
            continue
        names = [each.name for each in ordered]
        ordered.insert(names.index(_key(after)) + 1, parameter)
    return ordered


def _parameters(
    record: type[Record], defaults: Mapping[str, Any], panel: str | None = None
) -> Iterator[_Parameter]:
    """Yield the parameters for a record's fields.

    Args:
        record: its type.
        defaults: the defaults of its fields by name; of an optional group there are none.
        panel: the heading over its options; None: that of each option.
    """
    for name, field in record.model_fields.items():
        heading = _metadata(field, OptionPanel)
        title = panel if heading is None else heading.title
        group, default = _group(field), defaults.get(name)
        if group is not None:
            yield from _parameters(group, _group_defaults(group, default), title)
        elif _is_option(field):
            after = _metadata(field, After)
            parameter = _parameter(name, field, defaults, title)
            yield _Parameter(parameter, None if after is None else after.option)


def _group_defaults(group: type[Record], default: object) -> dict[str, Any]:
    """Return the defaults of a group's fields.

    Args:
        group: its type.
        default: the group by default, or None; anything else: it has no default.
    """
    if default is None:
        return {}
    return dict(default) if isinstance(default, Record) else _own_defaults(group)


def _own_defaults(record: type[Record]) -> dict[str, Any]:
    return {
        name: inspect.Parameter.empty if field.is_required() else field.default
        for name, field in record.model_fields.items()
    }


def _parameter(
    name: str, field: FieldInfo, defaults: Mapping[str, Any], panel: str | None
) -> inspect.Parameter:
    kind = _plain_type(field.annotation)
    default = defaults.get(name, False if kind is bool else None)
    argument, option = _metadata(field, CommandArgument), _metadata(field, CommandOption)
    if argument is not None:
        place = typer.Argument(metavar=argument.metavar, help=argument.help)
        return _keyword(name, Annotated[kind, place], default)
    if option is None:
        place = copy.copy(_metadata(field, OptionInfo))
        if place is not None and panel is not None:
            place.rich_help_panel = panel
        return _keyword(name, Annotated[kind, place], default)
    names = _names(name, option)
    shown: bool | str = option.default or True
    if name not in defaults and not field.is_required() and field.default:
        shown = str(field.default)
    least, most = _limits(field) if option.written_as is None else (None, None)
    info = typer.Option(
        *names,
        help=option.help,
        metavar=option.metavar,
        show_default=shown,
        rich_help_panel=panel,
        min=least,
        max=most,
    )
    kind = kind if option.written_as is None else option.written_as | None
    return _keyword(_key(names[0]), Annotated[kind, info], default)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _taken(record: type[Record], values: dict[str, Any]) -> dict[str, Any]:
    """Take the values of a record's fields out of those of a command's parameters."""
    taken: dict[str, Any] = {}
    for name, field in record.model_fields.items():
        group, option = _group(field), _metadata(field, CommandOption)
        if group is not None:
            inner = _taken(group, values)
            if field.default is None:
                inner = {key: value for key, value in inner.items() if _is_given(value)}
            if inner:
                taken[name] = inner
        elif _is_option(field):
            taken[name] = values.pop(name if option is None else _key(_names(name, option)[0]))
    return taken


def _is_given(value: object) -> bool:
    """True if an option without a default is given; 0 is."""
    return value is not None and value is not False


def _is_option(field: FieldInfo) -> bool:
    declared = CommandOption | CommandArgument | OptionInfo
    return any(isinstance(each, declared) for each in field.metadata)


def _group(field: FieldInfo) -> type[Record] | None:
    """Return the type of a field that holds a record; None: it holds none.

    A record that is parsed from text is a value like others.
    """
    option = _metadata(field, CommandOption)
    if option is not None:
        return None
    for kind in _members(field.annotation):
        if isinstance(kind, type) and issubclass(kind, Record):
            return kind
    return None


def _names(name: str, option: CommandOption) -> tuple[str, ...]:
    return option.names or (f"--{name.replace('_', '-')}",)


def _key(option: str) -> str:
    """Return the name of an option as that of a parameter; `for`, a keyword, becomes `for_`."""
    name = option.removeprefix("--").replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


def _metadata(field: FieldInfo, kind: type[_Metadata]) -> _Metadata | None:
    return next((each for each in field.metadata if isinstance(each, kind)), None)


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type alone."""
    return (
        get_args(annotation)
        if get_origin(annotation) in (Union, types.UnionType)
        else (annotation,)
    )


def _plain_type(annotation: Any) -> Any:
    """Return a type without the metadata of itself and of the members of a union."""
    members = [get_args(m)[0] if get_origin(m) is Annotated else m for m in _members(annotation)]
    return members[0] if len(members) == 1 else Union[tuple(members)]  # noqa: UP007 - made here


def _limits(field: FieldInfo) -> tuple[Any, Any]:
    """Return the least and the largest value of a number; None: there is none."""
    least: Any = None
    most: Any = None
    for limit in _constraints(field):
        if isinstance(limit, Ge):
            least = limit.ge
        elif isinstance(limit, Gt) and isinstance(limit.gt, int):
            least = limit.gt + 1
        elif isinstance(limit, Le):
            most = limit.le
    return least, most


def _constraints(field: FieldInfo) -> Iterator[object]:
    yield from field.metadata
    for member in _members(field.annotation):
        if get_origin(member) is not Annotated:
            continue
        for each in get_args(member)[1:]:
            yield from each.metadata if isinstance(each, FieldInfo) else (each,)
