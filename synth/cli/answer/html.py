"""Charts of schedules as one HTML file, and the other schedule to stand above a plan's."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from synth.cli.answer.output import talk
from synth.cli.read.plans import load_checked
from synth.errors import SynthError
from synth.record import write_atomically

if TYPE_CHECKING:
    from synth.report.chart.chart import Chart
    from synth.report.explain.overlay import Overlay
    from synth.report.html.page import ScheduleMenu
    from synth.schedule.files.plan_file import Plan


def write_page(
    path: Path, plan: "Plan", overlaid: "Overlay", others: Sequence["Chart"] = ()
) -> None:
    """Write a page with other schedules, then the plan, then the run if the overlay has one."""
    from synth.report.chart.chart import Chart
    from synth.report.html.page import page

    has_run = overlaid.measured is not None
    charts = [
        *others,
        Chart.planned("planned" if has_run else plan.name, plan, overlaid.timeline),
    ]
    if has_run:
        charts.append(Chart.measured("measured", plan, overlaid))
    name = f"{plan.name}: {plan.num_ranks} ranks, {plan.num_micro_batches} micro-batches"
    write_atomically(path, page(f"{name} of {plan.profile_name}", charts, by_rank=has_run))
    talk(f"written: {path}")


def write_choice(path: Path, title: str, charts: Sequence["Chart"], menu: "ScheduleMenu") -> None:
    """Write a page with schedules to choose from."""
    from synth.report.html.page import page

    write_atomically(path, page(title, charts, menu=menu))
    talk(f"written: {path}")


def is_file_name(text: str) -> bool:
    """True if a text names a plan file, not a published schedule; existing files come first."""
    path = Path(text)
    return path.exists() or bool(path.suffix) or len(path.parts) > 1


def chart_against(text: str, plan: "Plan") -> "Chart":
    """Return the chart of another plan file, or of a published schedule on the plan's costs.

    Raises:
        SynthError: neither, or the published schedule has another number of stages.
    """
    from synth.report.chart.chart import Chart

    if is_file_name(text):
        other, _, timeline = load_checked(Path(text))
        if other.profile_fingerprint != plan.profile_fingerprint:
            talk(f"note: {text} is of another profile or other links ({other.profile_name})")
        return Chart.planned(other.name, other, timeline)
    return _published(text, plan)


def _published(name: str, plan: "Plan") -> "Chart":
    from synth.families import families, family_placement, generate
    from synth.report.chart.chart import Chart
    from synth.schedule.verify import verify

    if name.partition(":")[0] not in families():
        raise SynthError(
            f"--against {name} is neither a plan file nor a published schedule; {_known(plan)}"
        )
    num_stages = family_placement(name, plan.num_ranks).num_stages
    if num_stages != len(plan.partition):
        raise SynthError(
            f"--against {name} has {num_stages} stages, the plan has the costs of "
            f"{len(plan.partition)}; give a plan file of it (`synth compare --save`); "
            f"{_known(plan)}"
        )
    schedule = generate(
        name,
        plan.num_ranks,
        plan.num_micro_batches,
        costs=plan.costs,
        caps_bytes=plan.caps_bytes,
    )
    _, timeline = verify(schedule, plan.costs)
    return Chart.planned(name, plan, timeline)


def _known(plan: "Plan") -> str:
    """List the published schedules on the plan's placement."""
    from synth.families import generate_for
    from synth.schedule.model import Placement

    made = generate_for(
        Placement(plan.placement), plan.num_micro_batches, plan.costs, plan.caps_bytes
    )
    return f"on its placement there are: {', '.join(sorted(name for name, _ in made))}"
