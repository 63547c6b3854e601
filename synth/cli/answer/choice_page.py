"""A page with schedules to choose from, of `synth compare` and `synth frontier`."""

from collections.abc import Sequence
from pathlib import Path

from synth.cli.answer.output import talk
from synth.records.safe_write import write_atomically
from synth.report.chart.chart import Chart
from synth.report.html.page import ScheduleMenu, page


def write_choice(path: Path, title: str, charts: Sequence[Chart], menu: ScheduleMenu) -> None:
    """Write a page with schedules to choose from."""
    write_atomically(path, page(title, charts, menu=menu))
    talk(f"written: {path}")
