"""`synth import`: make a plan file of another runtime's schedule."""

from pathlib import Path
from typing import Annotated

import typer

from synth.cli.read.import_request import ImportRequest


def command(
    schedule_path: Annotated[
        Path, typer.Argument(metavar="CSV", help="Schedule of torch.distributed.pipelining.")
    ],
    request: ImportRequest,
) -> None:
    """Read a schedule in PyTorch's CSV format, verify it, and write it with what it costs.

    The order and the placement are the file's; times and bytes are the profile's.
    """
    from synth.cli.work.import_ import work

    work(schedule_path, request)
