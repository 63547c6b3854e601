"""`synth ui`: a page in the browser to play with schedules."""

from typing import Annotated

import typer

from synth.cli.read.ui_request import UiRequest


def command(
    request: UiRequest,
    shown: Annotated[
        str | None,
        typer.Argument(
            metavar="PROFILE|CONFIG|PLAN",
            help="Profile, config.json of a model, or plan to begin with: a file, or the name of a "
            "shipped or estimated profile.",
        ),
    ] = None,
) -> None:
    """Play with schedules in a browser: draw published ones, search, and order ops by hand.

    The page is for this machine alone; its address has a token. Ctrl-C ends it. Needs the extra ui.
    """
    from synth.cli.work.ui import work

    work(shown, request)
