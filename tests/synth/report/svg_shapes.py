"""The shapes of a picture, read from its SVG."""

import xml.etree.ElementTree as ET

from synth.report.picture.picture import XY


def shapes(picture: str, style: str) -> list[ET.Element]:
    """The shapes of a style, in the order in which they are drawn."""
    return [e for e in ET.fromstring(picture).iter() if e.get("class") == style]


def points_of(element: ET.Element) -> list[XY]:
    """The corners of a line or an area."""
    pairs = (element.get("points") or "").split()
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in pairs)]


def middle(element: ET.Element) -> XY:
    """The middle of a dot of any shape."""
    if element.get("cx"):
        return float(element.get("cx") or 0), float(element.get("cy") or 0)
    corners = points_of(element)
    x, y = (sum(axis) / len(corners) for axis in zip(*corners, strict=True))
    return x, y
