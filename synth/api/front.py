"""Functions of the library as a front: their arguments are options, and errors name them so."""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any, ParamSpec, TypeVar

from synth.option_names import IN_PYTHON
from synth.options.arguments.groups import AtOnce, LinkTexts
from synth.options.plan_profile import costs_of
from synth.options.values import Flag, ProfileSource, TimeLimit
from synth.profile import Profile
from synth.records.command_option import from_values, not_understood
from synth.records.record import Record
from synth.records.safe_read import AnyPath
from synth.schedule.files.plan_file import Plan
from synth.schedule.simulate import Timeline
from synth.solver.options import SolveOptions

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


class _PlanArguments(Record):
    """The arguments of `explain` and `prove` that have limits or are read."""

    profile: ProfileSource | None
    link: LinkTexts
    time_limit: TimeLimit
    workers: AtOnce | None
    all_provers: Flag = False


def checked_plan(
    plan: AnyPath | Plan, values: Mapping[str, Any]
) -> tuple[Plan, Timeline, SolveOptions, Profile | None]:
    """Verify a plan, and return it with what `explain` and `prove` work on.

    Raises:
        SynthError: an argument is wrong, or the plan is not fit to run, or not what it claims.
    """
    given, plan = from_values(_PlanArguments, values), loaded_plan(plan)
    options = SolveOptions(time_limit_s=given.time_limit, workers=given.workers)
    _, timeline = plan.check()
    return plan, timeline, options, costs_of(plan, given.profile, given.link, {}, {})


@contextmanager
def stopped_behind() -> Iterator[threading.Event]:
    """Yield an event that is set behind the block, so that nothing works on after Ctrl-C."""
    stop = threading.Event()
    try:
        yield stop
    finally:
        stop.set()


def check_callable(given: object, name: str) -> None:
    """Check an argument that is to be called, unless it is None.

    Raises:
        SynthError: it cannot be called.
    """
    if given is not None and not callable(given):
        raise not_understood(name, given, "a function")
