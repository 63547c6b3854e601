"""`synth run`: train under a plan on real devices, and compare measurement and plan."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.read.run_request import RunRequest


def command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file of `synth solve`.")],
    request: RunRequest,
) -> None:
    """Train under PLAN: launch one process per rank, or run as a worker under torchrun."""
    from synth.cli.work.run import work

    work(plan, request)
