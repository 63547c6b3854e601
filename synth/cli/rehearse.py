"""`synth rehearse`: the ranks of a plan one after the other, on the one device at hand."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.read.rehearse_request import RehearseRequest


def command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file of `synth solve`.")],
    request: RehearseRequest,
) -> None:
    """Try PLAN, for any number of devices, on one: each rank alone for a few steps.

    Memory is measured as in a run, and the plan simulated again with the measured times.
    """
    from synth.cli.work.rehearse import work

    work(plan, request)
