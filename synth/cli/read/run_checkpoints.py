"""The options of `synth run` about checkpoints."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from synth.cli.read.run_options import LAST_PANEL
from synth.errors import SynthError
from synth.record import check_folder
from synth.units import shown

if TYPE_CHECKING:
    from synth.runtime.checkpoint.options import CheckpointOptions

CheckpointOption = Annotated[
    Path | None,
    typer.Option("--checkpoint", help="Folder for checkpoints.", rich_help_panel=LAST_PANEL),
]
CheckpointEveryOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Steps between checkpoints.", show_default="100", rich_help_panel=LAST_PANEL
    ),
]
KeepOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Number of checkpoints to keep; 0: all.",
        show_default="2",
        rich_help_panel=LAST_PANEL,
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Resume from the last checkpoint, if there is one; any plan of the same layers will "
        "do.",
        rich_help_panel=LAST_PANEL,
    ),
]
ResumeFromOption = Annotated[
    str | None,
    typer.Option(
        metavar="STEP|last-good",
        help="Resume from the checkpoint of this step, or from the last intact one; later ones are "
        "set aside.",
        rich_help_panel=LAST_PANEL,
    ),
]
IgnoreDataOption = Annotated[
    bool,
    typer.Option(
        "--ignore-data",
        help="Resume even if the checkpoint was trained on other data.",
        rich_help_panel=LAST_PANEL,
    ),
]
IgnoreOptimizerOption = Annotated[
    bool,
    typer.Option(
        "--ignore-optimizer",
        help="Resume even if the checkpoint has another optimizer; state that differs is "
        "initialized anew.",
        rich_help_panel=LAST_PANEL,
    ),
]


@dataclass(frozen=True)
class Resuming:
    """The options for resuming from a checkpoint."""

    resume: bool = False
    source: str | None = None
    ignore_data: bool = False
    ignore_optimizer: bool = False

    def options(self, restarts: int) -> dict[str, Any]:
        """Return the fields of `CheckpointOptions`.

        Raises:
            SynthError: a source that is neither a step nor `last-good`, or nothing to ignore in.
        """
        from synth.runtime.checkpoint.options import LAST_GOOD

        source = self.source
        if source is not None and source != LAST_GOOD and not re.fullmatch(r"\d{1,18}", source):
            raise SynthError(
                f"--resume-from {shown(source)} is not understood; give the step of a checkpoint, "
                f"or {LAST_GOOD}"
            )
        for given, option in (
            (self.ignore_data, "--ignore-data"),
            (self.ignore_optimizer, "--ignore-optimizer"),
        ):
            if given and not (self.resume or source or restarts):
                raise SynthError(f"{option} is for going on; give --resume, or leave it out")
        return {
            "resume": self.resume,
            "resume_from": int(source) if source is not None and source != LAST_GOOD else source,
            "ignore_data": self.ignore_data,
            "ignore_optimizer": self.ignore_optimizer,
        }


def checkpoints(
    folder: Path | None, every: int | None, keep: int | None, resuming: Resuming, restarts: int
) -> "CheckpointOptions | None":
    """Return the options for checkpoints; None without a folder.

    Raises:
        SynthError: there is no folder, and an option that needs one.
    """
    from synth.runtime.checkpoint.options import CheckpointOptions

    chosen = resuming.options(restarts)
    if folder is None:
        if resuming.resume or resuming.source:
            option = "--resume" if resuming.resume else "--resume-from"
            raise SynthError(f"{option} needs to know from where; give --checkpoint FOLDER")
        if restarts:
            raise SynthError("--restarts continues from checkpoints; give --checkpoint FOLDER")
        for option, value in (("every", every), ("keep", keep)):
            if value is not None:
                raise SynthError(
                    f"--checkpoint-{option} {value} needs checkpoints; give --checkpoint FOLDER, "
                    f"or leave it out"
                )
        return None
    check_folder("--checkpoint", folder)
    given = {"every": every, "keep": keep}
    chosen |= {name: value for name, value in given.items() if value is not None}
    return CheckpointOptions(folder=folder, **chosen)
