"""`synth check`: verify a plan file independently of its source."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.read.check_request import CheckRequest


def command(
    plan_path: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file.")],
    request: CheckRequest,
) -> None:
    """Verify a plan: complete, free of deadlock, within its memory limits, and as claimed.

    Lists what was verified and what is taken on trust. Exit code 5: the plan is wrong; 4: --prove
    did not prove the bound in time.
    """
    from synth.cli.work.check import work

    work(plan_path, request)
