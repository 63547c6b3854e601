"""`synth emulate`: a plan replayed by real processes, on emulated devices."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.read.emulate_request import EmulateRequest


def command(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="Plan file, also of a shipped profile.")
    ],
    request: EmulateRequest,
) -> None:
    """Replay PLAN on emulated devices: one process per rank on this machine, no model needed.

    Order, overlap, memory and synchronization are those of the real executor.
    """
    from synth.cli.work.emulate import work

    work(plan, request)
