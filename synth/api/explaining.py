"""`synth.explain`: what holds a plan back, and what changes would give."""

from collections.abc import Sequence

from synth.api.front import AnyProfile, checked_plan, named_as_arguments, stopped_behind
from synth.plan.explain.explanation import Explanation
from synth.plan.explain.explanation import explain as explain_checked
from synth.records.safe_read import AnyPath
from synth.schedule.files.plan_file import Plan


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
    asked = checked_plan(plan, locals())
    with stopped_behind() as stop:
        return explain_checked(*asked, stop)
