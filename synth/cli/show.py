"""`synth show`: a schedule as a Gantt chart and tables."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.read.show_request import ShowRequest


def command(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file.")],
    request: ShowRequest,
) -> None:
    """Draw a plan as a Gantt chart, with a table of its ranks.

    The plan is verified first. Times are simulated from its costs.
    """
    from synth.cli.work.show import work

    work(plan_path, request)
