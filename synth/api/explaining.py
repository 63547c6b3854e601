"""`synth.explain`: what holds a plan back, and what changes would give."""

import threading
from collections.abc import Sequence

from synth.api.front import AnyProfile, loaded_plan, named_as_arguments
from synth.options.arguments.groups import AtOnce, LinkTexts
from synth.options.plan_profile import costs_of
from synth.options.values import ProfileSource, TimeLimit
from synth.plan.explain.explanation import Explanation
from synth.plan.explain.explanation import explain as explain_checked
from synth.records.command_option import from_values
from synth.records.record import Record
from synth.records.safe_read import AnyPath
from synth.schedule.files.plan_file import Plan
from synth.solver.options import SolveOptions


class _ExplainArguments(Record):
    """The arguments of `explain` that have limits or are read."""

    profile: ProfileSource | None
    link: LinkTexts
    time_limit: TimeLimit
    workers: AtOnce | None


@named_as_arguments
def explain(
    plan: AnyPath | Plan,
    *,
    profile: AnyProfile | None = None,
    link: str | Sequence[str] | None = None,
    time_limit: str | float = 10,
    workers: int | None = None,
) -> Explanation:
    """Verify a plan, and explain what holds it back and what changes would give.

    Args:
        plan: a `Plan`, or the path of a plan file.
        profile: the profile of the plan, as of `synth.solve`, for moved and recomputed layers;
            None: the shipped one that the plan names, if there is one.
        link: links instead of the profile's, as of `synth.solve`; None: those that the plan was
            solved with.
        time_limit: the time limit of all changes together, in seconds.
        workers: number of solver threads; None: one per core.

    Returns:
        The explanation: `sentence`, `critical_path`, `idle` of each rank by cause, `what_ifs`;
        `to_data` gives all of it as JSON has it.

    Raises:
        SynthError: an argument is wrong, or the plan is not fit to run, or not what it claims.

    Example:
        >>> explained = synth.explain("plan.json", time_limit=5)
        >>> explained.sentence, explained.idle[0].memory_us
    """
    given = from_values(_ExplainArguments, locals())
    plan = loaded_plan(plan)
    options = SolveOptions(time_limit_s=given.time_limit, workers=given.workers)
    _, timeline = plan.check()
    measured, stop = costs_of(plan, given.profile, given.link, {}, {}), threading.Event()
    try:
        return explain_checked(plan, timeline, options, measured, stop)
    finally:
        stop.set()
