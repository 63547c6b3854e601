"""A picture as an SVG document."""

from collections.abc import Sequence
from html import escape

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


def svg_text(picture: Picture) -> str:
    """Return the document; styles become classes, tooltips titles of their shapes."""
    width, height = picture.width, picture.height
    rules = "\n".join(f".{name}{{{style}}}" for name, style in picture.styles.items())
    body = "\n".join(map(_element, picture.shapes))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(picture.title)}">\n'
        f"<style>text{{font-family:sans-serif}}\n{rules}</style>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _element(shape: Shape) -> str:
    match shape:
        case Polyline(points, style):
            return f'<polyline class="{style}" points="{_listed(points)}"/>'
        case Polygon(points, style, tip, name):
            return _titled(f'polygon class="{style}" points="{_listed(points)}"{_named(name)}', tip)
        case Rectangle((x, y), width, height, style, tip):
            size = f'width="{_number(width)}" height="{_number(height)}"'
            return _titled(f'rect class="{style}" x="{_number(x)}" y="{_number(y)}" {size}', tip)
        case Disc((x, y), radius, style, tip, name):
            place = f'cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"'
            return _titled(f'circle class="{style}" {place}{_named(name)}', tip)
        case Caption():
            return _text(shape)


def _named(name: str) -> str:
    return f' data-name="{escape(name)}"' if name else ""


def _titled(element: str, tip: str) -> str:
    if not tip:
        return f"<{element}/>"
    return f"<{element}><title>{escape(tip)}</title></{element.partition(' ')[0]}>"


def _text(caption: Caption) -> str:
    x, y = map(_number, caption.at)
    turned = f' transform="rotate({caption.turn} {x} {y})"' if caption.turn else ""
    return (
        f'<text class="{caption.style}" x="{x}" y="{y}" text-anchor="{caption.anchor}"{turned}>'
        f"{escape(caption.text)}</text>"
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _listed(points: Sequence[XY]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
