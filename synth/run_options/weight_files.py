"""The options of `synth run` for weights that come from files, or go to files."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import model_validator

from synth.errors import SynthError
from synth.records.command_option import CommandOption
from synth.records.record import Record
from synth.records.safe_write import check_folder


class WeightFormat(StrEnum):
    """A format of a folder of weights: Hugging Face's, or torch's distributed checkpoint."""

    HF = "hf"
    DCP = "dcp"


class WeightFiles(Record):
    """Where weights come from before training, and go to after it; by default nowhere."""

    weights_from: Annotated[
        Path | None,
        CommandOption(
            "Folder with the weights to begin from: of Hugging Face (safetensors), or a "
            "distributed checkpoint of torch. A checkpoint that is resumed replaces them.",
            metavar="FOLDER",
        ),
    ] = None
    export_weights: Annotated[
        Path | None,
        CommandOption(
            "New folder for the trained weights, under the names of the whole model.",
            metavar="FOLDER",
        ),
    ] = None
    export_format: Annotated[
        WeightFormat | None,
        CommandOption(
            "With --export-weights: a folder for from_pretrained, or a distributed checkpoint of "
            "torch (DCP).",
            default="hf",
        ),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.export_format is not None and self.export_weights is None:
            raise SynthError(
                f"--export-format {self.export_format} is of weights that are exported; give "
                f"--export-weights FOLDER, or leave it out"
            )
        return self

    def check_folders(self) -> None:
        """Refuse folders that are not there, or that are not new, before work is spent."""
        if self.weights_from is not None and not self.weights_from.is_dir():
            raise SynthError(
                f"--weights-from {self.weights_from} is no folder; give one with weights"
            )
        if self.export_weights is not None:
            check_folder("--export-weights", self.export_weights)
            check_folder("--export-weights", self.export_weights.resolve().parent)
            check_new(self.export_weights)

    def resolved(self) -> Self:
        """The same for a process in another folder."""
        return self.replace(
            weights_from=self.weights_from and self.weights_from.resolve(),
            export_weights=self.export_weights and self.export_weights.resolve(),
        )


def check_new(folder: Path) -> None:
    """Refuse a folder of weights that has contents, or that no other can replace."""
    if os.path.ismount(folder):  # Path.is_mount takes "." for one
        raise SynthError(f"{folder} is a mount point; give a new folder in it")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise SynthError(f"{folder} has contents already; give a folder that does not exist yet")
