"""Times and memory of a rank by columns of pixels, for ops that are too thin to be drawn."""

import numpy as np
import numpy.typing as npt

from synth.costs.costs import IntArray
from synth.report.picture.picture import XY

Floats = npt.NDArray[np.float64]

# Heights that differ by less, in pixels, are drawn as one.
_SAME = 0.25

# The weights of neighbouring columns in the shares of one, by which rows of equal ops make no beats
# with the columns.
_BLUR = np.array([1, 2, 3, 4, 3, 2, 1]) / 16


def busy_shares(start_us: IntArray, end_us: IntArray, edges_us: Floats) -> Floats:
    """Return the share of each column's time that ops take, blurred over its neighbours.

    Args:
        start_us: the starts of ops in order, which do not overlap.
        edges_us: the edges of the columns; there is one more than columns.
    """
    shares = np.diff(_busy_until(start_us, end_us, edges_us)) / np.diff(edges_us)
    beside = len(_BLUR) // 2
    blurred: Floats = np.convolve(np.pad(shares, beside, "edge"), _BLUR, "valid")
    return blurred


def highest_levels(ends_us: IntArray, levels: IntArray, edges_us: Floats) -> npt.NDArray[np.int64]:
    """Return the highest level of each column.

    Args:
        ends_us: the ends of pieces of time that follow each other, from 0 on; none takes no time.
        edges_us: the edges of the columns, the last one not behind the last piece.
    """
    first = np.searchsorted(ends_us, edges_us[:-1], side="right")
    last = np.searchsorted(ends_us, edges_us[1:], side="left")
    bounds = np.stack([first, last + 1], axis=1).ravel()
    highest: npt.NDArray[np.int64] = np.maximum.reduceat(np.append(levels, 0), bounds)[::2]
    return highest


def outlines(heights: Floats, edges: Floats, bottom: float) -> list[list[XY]]:
    """Return the corners of areas on a common base, each with few steps.

    Args:
        heights: the height of each area in pixels, [area][column].
        edges: the edges of the columns in pixels.
    """
    runs = _runs(heights)
    across = edges[[*runs, len(edges) - 1]]
    return [
        [(float(across[0]), bottom), *_stairs(across, bottom - row), (float(across[-1]), bottom)]
        for row in heights[:, runs]
    ]


def _runs(heights: Floats) -> list[int]:
    """Return the first column of each run of nearly equal heights."""
    runs = [0]
    columns = heights.T
    for place in range(1, len(columns)):
        if np.abs(columns[place] - columns[runs[-1]]).max() > _SAME:
            runs.append(place)
    return runs


def _busy_until(start_us: IntArray, end_us: IntArray, at_us: Floats) -> Floats:
    """Return the time that ops, in order and without overlap, have taken until some moments."""
    begun = np.searchsorted(start_us, at_us, side="right")
    whole_us = np.concatenate([[0], (end_us - start_us).cumsum()])
    to_come_us = np.maximum(0, np.concatenate([[0], end_us])[begun] - at_us)
    busy_us: Floats = whole_us[begun] - np.where(begun > 0, to_come_us, 0)
    return busy_us


def _stairs(edges: Floats, heights: Floats) -> list[XY]:
    """Return the corners of a line that is level between two edges."""
    across, up = np.repeat(edges, 2)[1:-1].tolist(), np.repeat(heights, 2).tolist()
    return list(zip(across, up, strict=True))
