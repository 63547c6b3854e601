"""The formats of pictures, SVG, PNG and PDF: which one a file's name asks for, and writing it."""

import io
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from synth.errors import SynthError
from synth.records.safe_write import write_atomically
from synth.report.picture.pdf import POINTS_PER_PIXEL, pdf_bytes
from synth.report.picture.picture import Picture
from synth.report.picture.svg import svg_text
from synth.system.extras import require

# Pixels of the file for each pixel of CSS: sharp in print, and on screens with small pixels.
PIXELS = 2

# By this text at its beginning a PNG is known as one made by synth.
SOFTWARE = "synth"


def png_bytes(picture: Picture) -> bytes:
    """Return the file, `PIXELS` times as wide and high as the picture."""
    import pypdfium2
    from PIL.PngImagePlugin import PngInfo

    document = pypdfium2.PdfDocument(pdf_bytes(picture))
    try:
        image = document[0].render(scale=PIXELS / POINTS_PER_PIXEL).to_pil()
    finally:
        document.close()
    about = PngInfo()
    about.add_text("Software", SOFTWARE)
    file = io.BytesIO()
    image.save(file, "PNG", pnginfo=about, dpi=(96 * PIXELS, 96 * PIXELS), optimize=True)
    return file.getvalue()


# The modules that PNG and PDF need.
_NEEDED = ("reportlab", "pypdfium2")


class PictureFormat(StrEnum):
    """A format, by the suffix of its files."""

    SVG = ".svg"
    PNG = ".png"
    PDF = ".pdf"


_RENDERED: dict[PictureFormat, Callable[[Picture], str | bytes]] = {
    PictureFormat.SVG: svg_text,
    PictureFormat.PNG: png_bytes,
    PictureFormat.PDF: pdf_bytes,
}


def format_of(path: Path) -> PictureFormat:
    """Return the format that a file's suffix names; without a suffix it is SVG.

    Raises:
        SynthError: the suffix is another one.
    """
    suffix = path.suffix.lower()
    if suffix and suffix not in list(PictureFormat):
        raise SynthError(
            f"no picture is written as {path.suffix}: {path}; give a name that ends in "
            f"{', '.join(PictureFormat)}"
        )
    return PictureFormat(suffix or PictureFormat.SVG)


def check_drawable(path: Path) -> None:
    """Refuse a picture that cannot be written here, before work is spent on its contents."""
    needed = () if format_of(path) == PictureFormat.SVG else _NEEDED
    way_out = ", or give a name that ends in .svg"
    require("picture", needed, f"{path}: PNG and PDF need", way_out)


def save_picture(path: Path, picture: Picture) -> None:
    """Write a picture in the format of the file's suffix.

    Raises:
        SynthError: the suffix is unknown, or the file cannot be written.
    """
    write_atomically(path, _RENDERED[format_of(path)](picture))
