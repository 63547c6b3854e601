"""Drawings of objects in notebooks.

The package that defines a class need not know how it is drawn: `synth.api` registers a drawing for
it.
"""

from collections.abc import Callable
from typing import Any

# Rows of a table that fit a screen as text.
MOST_ROWS = 15

_DRAWINGS: dict[type, Callable[[Any], str]] = {}


def draw_with(kind: type, drawing: Callable[[Any], str]) -> None:
    """Register a function that returns the HTML of an object of a class."""
    _DRAWINGS[kind] = drawing


class Displayed:
    """An object that a notebook shows as it is drawn, or else as its `repr`."""

    def _repr_html_(self) -> str | None:
        """Return HTML for a notebook; None if no drawing is registered."""
        drawing = _DRAWINGS.get(type(self))
        return None if drawing is None else drawing(self)
