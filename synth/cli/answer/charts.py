"""Charts of a plan, its run and other schedules, and their files: pages and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from synth.cli.answer.explain import explanation_text
from synth.cli.answer.output import talk
from synth.cli.read.arguments import is_file_name
from synth.cli.read.plans import load_checked
from synth.errors import SynthError
from synth.families import (
    current_name,
    families,
    family_placement,
    generate,
    generate_for,
    vocabulary_barriers,
)
from synth.plan.explain.explanation import Explanation, explain_schedule
from synth.plan.reason import reason_of
from synth.profile.estimate import ESTIMATED
from synth.records.safe_write import write_atomically
from synth.report.chart.chart import Chart
from synth.report.chart.excerpt import Excerpt
from synth.report.explain.overlay import Overlay
from synth.report.html.page import ScheduleMenu, page
from synth.report.perfetto import perfetto_json
from synth.report.picture.formats import save_picture
from synth.report.picture.schedule import schedule_picture
from synth.schedule.files.plan_file import Plan
from synth.schedule.verify import verify
from synth.units import counted


@dataclass(frozen=True)
class ChartSet:
    """Charts to be drawn one above the other, or `by_rank`: the rows of a rank together."""

    title: str
    charts: tuple[Chart, ...]
    by_rank: bool

    @classmethod
    def of(
        cls,
        plan: Plan,
        overlaid: Overlay,
        others: Sequence[Chart] = (),
        explained: Explanation | None = None,
    ) -> Self:
        """Return other schedules, then the plan, then the run if the overlay has one.

        Args:
            overlaid: its simulation, and its run if there is one.
            explained: the plan's explanation; None: that without what-ifs.
        """
        has_run = overlaid.measured is not None
        name = "planned" if has_run else plan.name
        # The overlay's prediction may be for ranks that share processors.
        lowered, timeline = plan.check()
        reason = reason_of(plan, lowered, timeline)
        explanation = explanation_text(explained or explain_schedule(plan, timeline))
        charts = [*others, Chart.planned(name, plan, overlaid.timeline, reason, explanation)]
        if has_run:
            charts.append(Chart.measured("measured", plan, overlaid))
        ranks, number = counted(plan.num_ranks, "rank"), plan.num_micro_batches
        size = f"{ranks}, {counted(number, 'micro-batch')}"
        mark = ESTIMATED if plan.is_estimated else ""
        title = f"{plan.name}: {size} of {plan.profile_name}{mark}"
        return cls(title, tuple(charts), by_rank=has_run)

    def write_page(self, path: Path) -> None:
        write_atomically(path, page(self.title, self.charts, by_rank=self.by_rank))
        talk(f"written: {path}")

    def write_perfetto(self, path: Path) -> None:
        """Write a file for ui.perfetto.dev and chrome://tracing."""
        write_atomically(path, perfetto_json(self.charts))
        talk(f"written: {path}")

    def write_pictures(
        self, paths: Sequence[Path], excerpt: Excerpt | None = None, memory: bool = True
    ) -> None:
        """Write the picture in the format of each path; see `schedule_picture`.

        Raises:
            SynthError: the excerpt is not in the schedules.
        """
        if not paths:
            return
        picture = schedule_picture(
            self.title, self.charts, excerpt, by_rank=self.by_rank, memory=memory
        )
        for path in paths:
            save_picture(path, picture)
            talk(f"written: {path}")


def chart_against(text: str, plan: Plan) -> Chart:
    """Return the chart of another plan file, or of a published schedule on the plan's costs.

    Raises:
        SynthError: neither, or the published schedule has another number of stages.
    """
    if is_file_name(text):
        other, _, timeline = load_checked(Path(text))
        if other.profile_fingerprint != plan.profile_fingerprint:
            talk(f"note: {text} is of another profile or other links ({other.profile_name})")
        return Chart.planned(other.name, other, timeline)
    return _published(text, plan)


def _published(name: str, plan: Plan) -> Chart:
    if current_name(name).partition(":")[0] not in families():
        raise SynthError(
            f"--against {name} is neither a plan file nor a published schedule; {_known(plan)}"
        )
    num_stages = family_placement(name, plan.num_ranks).num_stages
    if num_stages != len(plan.partition):
        raise SynthError(
            f"--against {name} has {counted(num_stages, 'stage')}, the plan has the costs of "
            f"{len(plan.partition)}; give a plan file of it (`synth compare --save`); "
            f"{_known(plan)}"
        )
    if vocabulary_barriers(name) != (plan.vocabulary or 0):
        raise SynthError(
            f"--against {name} and the plan divide the vocabulary in different ways; give a plan "
            f"file of it (`synth compare --save`); {_known(plan)}"
        )
    schedule = generate(
        name,
        plan.num_ranks,
        plan.num_micro_batches,
        costs=plan.costs,
        caps_bytes=plan.caps_bytes,
        objective=plan.claim.judged_by,
    )
    _, timeline = verify(schedule, plan.costs)
    return Chart.planned(name, plan, timeline)


def _known(plan: Plan) -> str:
    """List the published schedules on the plan's placement."""
    if plan.vocabulary is not None:
        return "its stages are parts of embedding and head, which no other published schedule has"
    made = generate_for(plan.placed, plan.num_micro_batches, plan.costs, plan.caps_bytes)
    return f"on its placement there are: {', '.join(sorted(name for name, _ in made))}"


def write_choice(path: Path, title: str, charts: Sequence[Chart], menu: ScheduleMenu) -> None:
    """Write a page with schedules to choose from."""
    write_atomically(path, page(title, charts, menu=menu))
    talk(f"written: {path}")
