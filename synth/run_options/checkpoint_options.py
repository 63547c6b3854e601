"""Options of saving checkpoints and of resuming from them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from synth.errors import SynthError
from synth.records.command_option import CommandOption, Read
from synth.records.record import Record
from synth.units import shown

LAST_GOOD: Literal["last-good"] = "last-good"


def _read_source(given: object) -> object:
    """Read the written form of a step; `last-good` and other values are returned as they are."""
    if not isinstance(given, str) or given == LAST_GOOD:
        return given
    if not re.fullmatch(r"\d{1,18}", given):
        raise SynthError(
            f"§resume_from {shown(given)} is not understood; give the step of a checkpoint, or "
            f"{LAST_GOOD}"
        )
    return int(given)


class CheckpointOptions(Record):
    """`every` in optimizer steps (the last step is always saved); `keep` 0 keeps all."""

    folder: Annotated[Path, CommandOption("Folder for checkpoints.", names=("--checkpoint",))]
    every: Annotated[
        PositiveInt, CommandOption("Steps between checkpoints.", names=("--checkpoint-every",))
    ] = 100
    keep: Annotated[
        NonNegativeInt,
        CommandOption("Number of checkpoints to keep; 0: all.", names=("--checkpoint-keep",)),
    ] = 2
    resume: Annotated[
        bool,
        CommandOption(
            "Resume from the last checkpoint, if there is one; any plan of the same layers will do."
        ),
    ] = False
    resume_from: Annotated[
        NonNegativeInt | Literal["last-good"] | None,
        Read(_read_source, "the step of a checkpoint"),
        CommandOption(
            "Resume from the checkpoint of this step, or from the last intact one; later ones are "
            "set aside.",
            metavar=f"STEP|{LAST_GOOD}",
        ),
    ] = None
    ignore_data: Annotated[
        bool, CommandOption("Resume even if the checkpoint was trained on other data.")
    ] = False
    ignore_optimizer: Annotated[
        bool,
        CommandOption(
            "Resume even if the checkpoint has another optimizer; state that differs is "
            "initialized anew."
        ),
    ] = False

    @property
    def resumes(self) -> bool:
        """True if training resumes from a checkpoint in the folder."""
        return self.resume or self.resume_from is not None

    def check_ignores_something(self, restarts: int) -> None:
        """Refuse to ignore differences from a checkpoint if none is ever loaded.

        Raises:
            SynthError: training neither resumes nor restarts.
        """
        for ignored, option in (
            (self.ignore_data, "--ignore-data"),
            (self.ignore_optimizer, "--ignore-optimizer"),
        ):
            if ignored and not (self.resumes or restarts):
                raise SynthError(f"{option} is for going on; give --resume, or leave it out")

    @classmethod
    def refuse_without_folder(cls, given: Mapping[str, Any], restarts: int) -> None:
        """Refuse fields that say nothing without a folder.

        Args:
            given: those that are given, by name.
        """
        cls.model_validate({"folder": Path(), **given}).check_ignores_something(restarts)
        resuming = next((name for name in ("resume", "resume_from") if name in given), None)
        if resuming is not None:
            option = f"--{resuming.replace('_', '-')}"
            raise SynthError(f"{option} needs to know from where; give --checkpoint FOLDER")
        if restarts:
            raise SynthError("--restarts continues from checkpoints; give --checkpoint FOLDER")
        for name in ("every", "keep"):
            if name in given:
                raise SynthError(
                    f"--checkpoint-{name} {given[name]} needs checkpoints; give --checkpoint "
                    f"FOLDER, or leave it out"
                )
