"""Reading plan files, with a warning if they were changed, and saving several of them."""

from collections.abc import Mapping
from pathlib import Path

from synth.cli.answer.output import is_first_process, talk
from synth.errors import SynthError
from synth.records.overwrite_guard import SCHEDULE, check_replaceable
from synth.records.safe_write import make_folder
from synth.schedule.files.fingerprint import misfit
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.schedule.simulate import Timeline
from synth.system.messages import warn
from synth.system.terminal_text import as_message


def load_checked(path: Path) -> tuple[Plan, Lowered, Timeline]:
    """Read a schedule file and verify it; return it with its lowered form and its simulation.

    If the fingerprint does not match, this warns; `synth check` refuses the file.

    Raises:
        SynthError: see `Plan.load` and `Plan.check`.
    """
    data = Plan.read_data(path)
    plan = Plan.model_validate_file(data, str(path))
    lowered, timeline = plan.check()
    try:
        reason = misfit(data)
    except SynthError as error:
        reason = str(error)
    if reason is not None and is_first_process():
        warn(as_message(f"warning: {path}: {reason}"))
    return plan, lowered, timeline


def save_plans(plans: Mapping[str, Plan], folder: Path, force: bool) -> None:
    """Write schedule files into a folder, by their names in it.

    Files that synth did not write are left alone; all others are written first.

    Args:
        folder: is created if needed.
        force: replace any file.

    Raises:
        SynthError: a file was left out.
    """
    make_folder(folder)
    refused = None
    num_written = 0
    for name, plan in plans.items():
        path = folder / name
        try:
            check_replaceable(path, SCHEDULE, "--save", force)
        except SynthError as error:
            refused = refused or error
            continue
        plan.save(path)
        num_written += 1
    talk(f"{num_written} schedule files written to {folder}")
    if refused is not None:
        raise refused


def estimate_on_trust(plan: Plan) -> dict[str, str]:
    """Return what answers from a plan of an estimated profile take on trust, as JSON has it."""
    if not plan.is_estimated:
        return {}
    return {"estimate": f"times and bytes of {plan.profile_name}: estimated, not measured"}


def plan_estimate_lines(plan: Plan) -> list[str]:
    """Return the line over answers from a plan of an estimated profile, and an empty one."""
    return [f"{plan.profile_name}: estimated, not measured", ""] if plan.is_estimated else []


def check_runnable(plan: Plan) -> None:
    """Refuse a plan without a model.

    Raises:
        SynthError: it is of an estimated profile, or of another one that names no model.
    """
    if not plan.workload.runnable:
        kind = "an estimated profile" if plan.is_estimated else "a profile"
        raise SynthError(
            f"plan {plan.name!r} is for {plan.profile_name!r}, {kind} without a model to run; "
            f"profile a model of yours with `synth profile` and solve that"
        )
