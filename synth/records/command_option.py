"""The declaration of a record's field as an option or an argument of a command.

It has all that the field's type does not say.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class CommandOption:
    """Metadata of a field's type, by which a command offers the field as an option.

    Default and limits are the field's own. `synth.cli.read.record_options` reads all of them.

    Attributes:
        help: the text of `--help`.
        names: the option's names; none: two dashes and the field's name.
        metavar: the placeholder of its value; None: that of the type.
        default: the default in words; None: the field's.
        written_as: the type on the command line, which the field's validator parses; None: the
            field's.
    """

    help: str
    names: tuple[str, ...] = ()
    metavar: str | None = None
    default: str | None = None
    written_as: type | None = None


@dataclass(frozen=True)
class CommandArgument:
    """Metadata of a field's type, by which a command takes the field as a positional argument.

    Attributes:
        help: the text of `--help`.
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
