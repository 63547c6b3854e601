"""The option of pictures, which all commands that draw share: the file's suffix is its format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from synth.records.command_option import CommandOption
from synth.records.overwrite_guard import PICTURE, check_replaceable
from synth.report.picture.formats import check_drawable

_NAMES = ("--picture", "--svg")
_FORMATS = "SVG, PNG or PDF by the file's suffix. Can be repeated."

PictureOption = Annotated[
    list[Path] | None,
    CommandOption(f"Write the picture here, as {_FORMATS}", names=_NAMES, metavar="FILE"),
]
CurvePictureOption = Annotated[
    list[Path] | None,
    CommandOption(
        f"Write the plot here, as {_FORMATS}",
        names=_NAMES,
        metavar="FILE",
        default="-o with the suffix .svg",
    ),
]


def check_pictures(paths: Sequence[Path], force: bool) -> None:
    """Refuse pictures that cannot be drawn, or would replace files of others."""
    for path in paths:
        check_drawable(path)
        check_replaceable(path, PICTURE, "--picture", force)
