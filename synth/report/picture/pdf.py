"""A picture as a PDF of one page, with its font in the file."""

import io
from collections.abc import Sequence
from typing import Any

from synth.report.picture.picture import (
    XY,
    Caption,
    Disc,
    Picture,
    Polygon,
    Polyline,
    Rectangle,
    Shape,
)

# A pixel of CSS is 1/96 inch, a point of PDF 1/72.
POINTS_PER_PIXEL = 0.75

# By this comment in its second line a PDF is known as one made by synth.
MADE_BY_SYNTH = b"picture made by synth"

# ReportLab's own comment; it is overwritten in place, because a PDF refers to places in bytes.
_REPORTLABS_COMMENT = b"ReportLab Generated PDF document"

# Bitstream Vera, which comes with ReportLab: its files, and what they have no sign for.
_FONTS = {"normal": ("SynthVera", "Vera.ttf"), "bold": ("SynthVeraBold", "VeraBd.ttf")}
_INSTEAD = {"↑": "^"}

Style = dict[str, str]


def pdf_bytes(picture: Picture) -> bytes:
    """Return the file; the same picture gives the same bytes."""
    from reportlab.pdfgen.canvas import Canvas

    file = io.BytesIO()
    size = (picture.width * POINTS_PER_PIXEL, picture.height * POINTS_PER_PIXEL)
    canvas = Canvas(file, pagesize=size, invariant=1)
    canvas.setCreator("synth")
    canvas.scale(POINTS_PER_PIXEL, POINTS_PER_PIXEL)
    page = _Page(canvas, picture)
    for shape in picture.shapes:
        page.draw(shape)
    canvas.save()
    comment = MADE_BY_SYNTH.ljust(len(_REPORTLABS_COMMENT))
    return file.getvalue().replace(_REPORTLABS_COMMENT, comment, 1)


class _Page:
    """The page that is drawn on, with `y` downwards from its upper edge as in the picture."""

    def __init__(self, canvas: Any, picture: Picture) -> None:
        self._canvas, self._height = canvas, picture.height
        self._styles = {name: _declarations(text) for name, text in picture.styles.items()}
        self._fonts = _registered_fonts()

    def draw(self, shape: Shape) -> None:
        """Draw one shape in its style."""
        canvas, style = self._canvas, self._styles.get(shape.style, {})
        if isinstance(shape, Caption):
            self._write(shape, style)
            return
        paint = {"stroke": self._set_stroke(style), "fill": self._set_fill(style)}
        match shape:
            case Polyline(points):
                canvas.drawPath(self._path(points), stroke=paint["stroke"], fill=0)
            case Polygon(points):
                path = self._path(points)
                path.close()
                canvas.drawPath(path, **paint)
            case Rectangle((x, y), width, height):
                canvas.rect(x, self._height - y - height, width, height, **paint)
            case Disc((x, y), radius):
                canvas.circle(x, self._height - y, radius, **paint)

    def _path(self, points: Sequence[XY]) -> Any:
        path = self._canvas.beginPath()
        for place, (x, y) in enumerate(points):
            (path.lineTo if place else path.moveTo)(x, self._height - y)
        return path

    def _set_stroke(self, style: Style) -> int:
        """Set the pen; return 1 if the style has a line, else 0."""
        if style.get("stroke", "none") == "none":
            return 0
        self._canvas.setStrokeColor(_colour(style["stroke"]))
        self._canvas.setLineWidth(float(style.get("stroke-width", 1)))
        self._canvas.setDash([float(part) for part in style.get("stroke-dasharray", "").split()])
        self._canvas.setLineJoin(1 if style.get("stroke-linejoin") == "round" else 0)
        return 1

    def _set_fill(self, style: Style) -> int:
        """Set the colour of areas, black unless the style says otherwise; return 1 if any."""
        colour = style.get("fill", "#000000")
        if colour == "none":
            return 0
        self._canvas.setFillColor(_colour(colour))
        return 1

    def _write(self, caption: Caption, style: Style) -> None:
        canvas = self._canvas
        font = self._fonts[style.get("font-weight", "normal")]
        canvas.setFont(font.fontName, float(style.get("font-size", "16px").removesuffix("px")))
        self._set_fill(style)
        canvas.saveState()
        canvas.translate(caption.at[0], self._height - caption.at[1])
        canvas.rotate(-caption.turn)
        write = {"start": "drawString", "middle": "drawCentredString", "end": "drawRightString"}
        getattr(canvas, write[caption.anchor])(0, 0, _with_signs_of(font, caption.text))
        canvas.restoreState()


def _registered_fonts() -> dict[str, Any]:
    from reportlab.pdfbase.pdfmetrics import registerFont
    from reportlab.pdfbase.ttfonts import TTFont

    fonts = {weight: TTFont(*names) for weight, names in _FONTS.items()}
    for font in fonts.values():
        registerFont(font)
    return fonts


def _with_signs_of(font: Any, text: str) -> str:
    """Replace the signs that a font lacks."""
    known = font.face.charToGlyph
    return "".join(c if ord(c) in known else _INSTEAD.get(c, "?") for c in text)


def _colour(text: str) -> Any:
    from reportlab.lib.colors import HexColor

    return HexColor(text)


def _declarations(style: str) -> Style:
    """Read `stroke:#ddd;fill:none`."""
    pairs = (part.split(":", 1) for part in style.split(";") if part)
    return {name.strip(): value.strip() for name, value in pairs}
