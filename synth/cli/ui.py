"""`synth ui`: a page in the browser to play with schedules."""

from typing import Annotated

from pydantic import Field

from synth.cli.read.request import CommandRequest
from synth.errors import SynthError
from synth.options.values import Count, TimeLimit
from synth.records.command_option import CommandArgument, CommandOption, OptionPanel
from synth.records.record import Record

_PUBLIC = OptionPanel("For visitors, such as those of a course")


class PublicOptions(Record):
    """The limits of a server that visitors use."""

    public: Annotated[
        bool,
        CommandOption(
            "Serve anyone: no token, no file of this machine, one solver thread, and the limits "
            "below."
        ),
    ] = False
    listen: Annotated[
        str | None,
        CommandOption(
            "Address to listen on, such as 0.0.0.0.", metavar="ADDRESS", default="127.0.0.1"
        ),
    ] = None
    host: Annotated[
        list[str] | None,
        CommandOption(
            "Name by which visitors call this server; others are refused. Can be repeated.",
            metavar="NAME",
            default="127.0.0.1 and localhost",
        ),
    ] = None
    search_limit: Annotated[
        TimeLimit | None, CommandOption("The longest search.", default="20s")
    ] = None
    work_limit: Annotated[
        TimeLimit | None, CommandOption("Work that a visitor gets in ten minutes.", default="120s")
    ] = None
    most_ops: Annotated[
        Annotated[Count, Field(ge=1)] | None,
        CommandOption("Ops of the largest schedule.", default="20000"),
    ] = None

    def check(self) -> None:
        """Refuse limits without visitors."""
        names = ("host", "search_limit", "work_limit", "most_ops")
        given = [name for name in names if getattr(self, name) is not None]
        if given and not self.public:
            raise SynthError(f"§{given[0]} is for visitors; add §public, or leave it out")


class UiRequest(CommandRequest):
    """Play with schedules in a browser: draw published ones, search, and order ops by hand.

    The page is for this machine alone; its address has a token. Ctrl-C ends it. Needs the extra ui.
    """

    port: Annotated[
        Count | None,
        Field(ge=1, le=65535),
        CommandOption("Port to listen on.", default="a free one"),
    ] = None
    browser: Annotated[
        bool, CommandOption("Open the page in the browser.", names=("--browser/--no-browser",))
    ] = True
    visitors: Annotated[PublicOptions, _PUBLIC] = PublicOptions()
    shown: Annotated[
        str | None,
        CommandArgument(
            "Profile, config.json of a model, or plan to begin with: a file, or the name of a "
            "shipped or estimated profile.",
            metavar="PROFILE|CONFIG|PLAN",
        ),
    ] = None
