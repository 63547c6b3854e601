"""Names of options in messages: `--mem-limit` on the command line, `mem_limit` in Python.

A message marks the name of an option's field, as in `§mem_limit must be more than 0 bytes`, so that
each front can call it as its users do.
"""

from contextvars import ContextVar
from string import Template

# True while a function of the library runs that a program calls.
IN_PYTHON: ContextVar[bool] = ContextVar("IN_PYTHON", default=False)


class _Marked(Template):
    delimiter = "§"
    idpattern = "[a-z][a-z0-9]*(?:_[a-z0-9]+)*"


class _Flags(dict[str, str]):
    """The option of each field on the command line."""

    def __missing__(self, field: str) -> str:
        return f"--{field.replace('_', '-')}"


# `for` is a keyword of Python.
_FLAGS = _Flags(runtime="--for")


def named_fields(message: str) -> tuple[str, ...]:
    """Return the fields that a message marks, in their order."""
    return tuple(_Marked(message).get_identifiers())


def named(message: str) -> str:
    """Return a message with the marked options as the running front calls them."""
    fields = named_fields(message)
    return _Marked(message).safe_substitute(
        {f: f if IN_PYTHON.get() else _FLAGS[f] for f in fields}
    )
