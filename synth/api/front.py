"""Functions of the library as a front: their arguments are options, and errors name them so."""

import functools
from collections.abc import Callable
from os import PathLike
from typing import ParamSpec, TypeVar

from synth.option_names import IN_PYTHON
from synth.profile import Profile
from synth.records.command_option import not_understood
from synth.records.safe_read import AnyPath
from synth.schedule.files.plan_file import Plan

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")

AnyProfile = Profile | AnyPath


def named_as_arguments(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """Wrap a function so that its errors and messages say `mem_limit`, not `--mem-limit`."""

    @functools.wraps(function)
    def wrapped(*args: _Given.args, **kwargs: _Given.kwargs) -> _Returned:
        token = IN_PYTHON.set(True)
        try:
            return function(*args, **kwargs)
        finally:
            IN_PYTHON.reset(token)

    return wrapped


def loaded_plan(given: AnyPath | Plan) -> Plan:
    """Return a plan that is given, or read from its file.

    Raises:
        SynthError: it is neither a plan nor the path of a plan file.
    """
    if isinstance(given, Plan):
        return given
    if not isinstance(given, str | PathLike):
        raise not_understood("plan", given, "a Plan, or the path of a plan file")
    return Plan.load(given)


def check_callable(given: object, name: str) -> None:
    """Check an argument that is to be called, unless it is None.

    Raises:
        SynthError: it cannot be called.
    """
    if given is not None and not callable(given):
        raise not_understood(name, given, "a function")
