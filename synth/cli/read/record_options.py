"""A command takes a record: the fields of the record are the command's options.

A field is declared once, in its record. Its type, limits and default are those of the option, and
its metadata is a `CommandOption` or a `CommandArgument`; without one it is no option.
A field that is a record itself, a group, gives the options of that record, with the defaults of the
group, or those of its type if the group has none. A group that is None by default stays None unless
one of its options is given.
"""

import inspect
import keyword
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

import typer
from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from synth.records.command_option import (
    After,
    CommandArgument,
    CommandOption,
    OptionPanel,
    Read,
    constraints,
    from_values,
    group_of,
    members,
    metadata_of,
)
from synth.records.record import Record

_Made = TypeVar("_Made", bound=Record)


class _Parameter(NamedTuple):
    """A field as a parameter of the command, and the name of the option that it follows."""

    parameter: inspect.Parameter
    after: str | None


def with_record(record: type[_Made], command: Callable[[_Made], object]) -> Callable[..., None]:
    """Return a function that takes the fields of a record, each as an option, for a command.

    Raises:
        SynthError: the record's validators refuse the options; as those of its fields.
    """

    def parsed(**values: Any) -> None:
        command(from_values(record, values, _key))

    return with_parameters(parsed, _in_order(_parameters(record, _own_defaults(record))))


def with_parameters(
    function: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Give a function the parameters that typer reads as its options."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters}
    return function


def _in_order(found: Iterator[_Parameter]) -> list[inspect.Parameter]:
    """Put parameters in the order of `--help`."""
    ordered: list[inspect.Parameter] = []
    for parameter, after in found:
        if after is None:
            ordered.append(parameter)
            continue
        names = [each.name for each in ordered]
        ordered.insert(names.index(_as_parameter(after)) + 1, parameter)
    return ordered


def _parameters(
    record: type[Record], defaults: Mapping[str, Any], panel: str | None = None
) -> Iterator[_Parameter]:
    """Yield the parameters for a record's fields.

    Args:
        defaults: the defaults of its fields by name; of an optional group there are none.
        panel: the heading over its options; None: that of each option.
    """
    for name, field in record.model_fields.items():
        heading = metadata_of(field, OptionPanel)
        title = panel if heading is None else heading.title
        group, default = group_of(field), defaults.get(name)
        if group is not None:
            yield from _parameters(group, _group_defaults(group, default), title)
        elif _is_option(field):
            after = metadata_of(field, After)
            parameter = _parameter(name, field, defaults, title)
            yield _Parameter(parameter, None if after is None else after.option)


def _group_defaults(group: type[Record], default: object) -> dict[str, Any]:
    """Return the defaults of a group's fields.

    Args:
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
    kind = _type_on_the_line(field)
    default = defaults.get(name, False if kind is bool else None)
    read = metadata_of(field, Read)
    if read is not None and read.as_text and default not in (None, inspect.Parameter.empty):
        default = read.written(default)
    argument, option = metadata_of(field, CommandArgument), metadata_of(field, CommandOption)
    if argument is not None:
        place = typer.Argument(metavar=argument.metavar, help=argument.help)
        return _keyword(name, Annotated[kind, place], default)
    assert option is not None
    shown: bool | str = option.default or True
    if name not in defaults and not field.is_required() and field.default:
        shown = str(field.default)
    least, most = _limits(field)
    metavar = option.metavar
    if float in members(kind) and (least, most) != (None, None):
        # Only the record checks it: typer says of nan that it is too large.
        metavar, least, most = metavar or _float_range(least, most), None, None
    info = typer.Option(
        *_names(name, option),
        help=option.help,
        metavar=metavar,
        show_default=shown,
        rich_help_panel=panel,
        min=least,
        max=most,
    )
    return _keyword(_key(name, field), Annotated[kind, info], default)


def _float_range(least: float | None, most: float | None) -> str:
    """Return the placeholder of a number, as typer writes it."""
    if most is None:
        return f"<float range> [x>={least}]"
    return f"<float range> [{'' if least is None else f'{least}<='}x<={most}]"


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _is_option(field: FieldInfo) -> bool:
    declared = CommandOption | CommandArgument
    return any(isinstance(each, declared) for each in field.metadata)


def _names(name: str, option: CommandOption) -> tuple[str, ...]:
    return option.names or (f"--{name.replace('_', '-')}",)


def _key(name: str, field: FieldInfo) -> str:
    """Return the name of the parameter of a field: that of its option."""
    option = metadata_of(field, CommandOption)
    return name if option is None else _as_parameter(_names(name, option)[0])


def _as_parameter(option: str) -> str:
    """Return the name of an option as that of a parameter; `for`, a keyword, becomes `for_`."""
    name = option.partition("/")[0].removeprefix("--").replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


def _type_on_the_line(field: FieldInfo) -> Any:
    """Return a field's type as of the command line, without metadata; a text if it is read."""
    kinds = [get_args(m)[0] if get_origin(m) is Annotated else m for m in members(field.annotation)]
    read = metadata_of(field, Read)
    if read is not None and read.as_text:
        kinds = [str, type(None)] if type(None) in kinds else [str]
    return kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]  # noqa: UP007 - made here


def _limits(field: FieldInfo) -> tuple[Any, Any]:
    """Return the least and the largest value of a number; None: there is none."""
    least: Any = None
    most: Any = None
    read = metadata_of(field, Read)
    if read is not None and read.as_text:
        return None, None
    for limit in constraints(field):
        if isinstance(limit, Ge):
            least = limit.ge
        elif isinstance(limit, Gt) and isinstance(limit.gt, int):
            least = limit.gt + 1
        elif isinstance(limit, Le):
            most = limit.le
    return least, most
