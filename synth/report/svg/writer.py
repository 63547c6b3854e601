"""A small writer of SVG pictures: lines, areas, circles and texts, by name of a style."""

from collections.abc import Mapping, Sequence
from html import escape

XY = tuple[float, float]


class Svg:
    """A picture of a size in pixels; later shapes cover earlier ones.

    Every shape names a CSS class of `styles`, for example `{"grid": "stroke:#ddd"}`.
    """

    def __init__(self, width: int, height: int, styles: Mapping[str, str]) -> None:
        self._width, self._height, self._styles = width, height, styles
        self._shapes: list[str] = []

    def line(self, points: Sequence[XY], style: str) -> None:
        """Add a line through points."""
        self._shapes.append(f'<polyline class="{style}" points="{_listed(points)}"/>')

    def area(self, points: Sequence[XY], style: str) -> None:
        """Add a filled polygon."""
        self._shapes.append(f'<polygon class="{style}" points="{_listed(points)}"/>')

    def circle(self, centre: XY, radius: float, style: str, tip: str = "", name: str = "") -> None:
        """Add a dot; `tip` is its tooltip, `name` the schedule that a page shows on a click."""
        x, y = map(_number, centre)
        title = f"<title>{escape(tip)}</title>" if tip else ""
        named = f' data-name="{escape(name)}"' if name else ""
        place = f'cx="{x}" cy="{y}" r="{_number(radius)}"'
        self._shapes.append(f'<circle class="{style}" {place}{named}>{title}</circle>')

    def text(self, at: XY, text: str, style: str, anchor: str = "start", turn: int = 0) -> None:
        """Add a line of text; `anchor` (start, middle, end) is the part placed at the point."""
        x, y = map(_number, at)
        turned = f' transform="rotate({turn} {x} {y})"' if turn else ""
        self._shapes.append(
            f'<text class="{style}" x="{x}" y="{y}" text-anchor="{anchor}"{turned}>'
            f"{escape(text)}</text>"
        )

    def __str__(self) -> str:
        """Return the SVG document."""
        width, height = self._width, self._height
        rules = "\n".join(f".{name}{{{style}}}" for name, style in self._styles.items())
        body = "\n".join(self._shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}">\n'
            f"<style>text{{font-family:sans-serif}}\n{rules}</style>\n"
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
        )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _listed(points: Sequence[XY]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
