"""A lower bound on the fullest of some bins, whichever items each bin holds."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

# Parts of an item that are tried as units, and a share below rounding.
_PARTS = np.array([1.0, 2.0, 3.0])
_TINY = 1e-6


def least_of_fullest(sizes: npt.ArrayLike, bins: int, counts: Iterable[int] | None = None) -> float:
    """Return a lower bound on the content of the fullest bin.

    It has no less than the mean, and holds whole items: a bin with content L holds items of sum
    floor(s / u) ≤ floor(L / u) for every unit u (a dual feasible function of bin packing, Lueker
    1983).

    Args:
        sizes: of the items; none is negative.
        bins: their number.
        counts: how many items there are of each size; None: one of each.
    """
    each = np.asarray(sizes, dtype=np.float64)
    number = np.ones(len(each)) if counts is None else np.array([*counts], dtype=np.float64)
    mean = float((each * number).sum()) / bins
    distinct = np.array([*{*each.round(3).tolist()} - {0.0}])
    units = (distinct[:, None] / _PARTS).reshape(-1, 1)
    whole = (np.floor(each / units + _TINY) * number).sum(axis=1)
    packed = float((units[:, 0] * np.ceil(whole / bins)).max(initial=0.0))
    return max(mean, packed) * (1 - 2 * _TINY)
