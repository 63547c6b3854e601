"""`synth explain`: what holds a plan back, and what changes would give."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.read.explain_request import ExplainRequest


def command(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file.")],
    request: ExplainRequest,
) -> None:
    """Explain a plan: its critical path, idle time by cause, and what changes would give.

    The plan is verified first. Every figure is simulated or searched for, none is estimated.
    """
    from synth.cli.work.explain import work

    work(plan_path, request)
