"""`synth.prove`: the lower bound of a plan, proven again."""

from collections.abc import Sequence

from synth.api.front import AnyProfile, checked_plan, named_as_arguments, stopped_behind
from synth.plan.reprove.reproof import Reproof
from synth.plan.reprove.reprove import reprove
from synth.records.safe_read import AnyPath
from synth.schedule.files.plan_file import Plan


@named_as_arguments
def prove(
    plan: AnyPath | Plan,
    *,
    profile: AnyProfile | None = None,
    link: str | Sequence[str] | None = None,
    time_limit: str | float = 60,
    workers: int | None = None,
    all_provers: bool = False,
) -> Reproof:
    """Verify the schedule of a plan, and prove its lower bound again without trusting the search.

    The fingerprint of the file is not compared; `synth check` does that.

    Args:
        plan: a `Plan`, or the path of a plan file.
        profile: the profile of the plan, as of `synth.solve`, from which its costs are derived
            again; None: the shipped one that the plan names, if there is one. Without it a bound
            is proven for the partition of the plan alone.
        link: links instead of the profile's, as of `synth.solve`; None: those that the plan was
            solved with.
        time_limit: the time limit, in seconds.
        workers: number of solver threads; None: one per core.
        all_provers: run all provers, not only that of the plan's certificate.

    Returns:
        The verdict; `reached_us`, the bound proven here, in µs; `holds_for`, the schedules that it
        holds for; `on_trust`, the part of the claim that is not verified (None: nothing).
        `is_proven` is True if the claim is proven as far as `holds_for` goes; `witness_us` is the
        value, in µs, of a schedule that disproves it.

    Raises:
        SynthError: an argument is wrong, or the plan is not fit to run, or not what it claims.

    Example:
        >>> proof = synth.prove("plan.json", time_limit=20)
        >>> proof.is_proven, proof.holds_for, proof.on_trust
    """
    asked = checked_plan(plan, locals())
    with stopped_behind() as stop:
        return reprove(*asked, stop, all_provers=bool(all_provers))
