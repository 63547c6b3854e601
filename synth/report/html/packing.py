"""Arrays of integers in a page: the narrowest type each, deflated together, in base64."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# Typed arrays of browsers, narrowest first, with numpy's names; little-endian as browsers are.
_TYPES = {"Uint8Array": "<u1", "Uint16Array": "<u2", "Int32Array": "<i4", "Float64Array": "<f8"}

# Typed arrays begin at multiples of their width.
_ALIGNED_BYTES = 8

Numbers = npt.NDArray[np.int64]


class PackedArrays(NamedTuple):
    """Arrays as text: `layout` has [type, first byte, length, is delta] by name; `data` the bytes.

    `data` is base64 of a zlib stream. Of a delta array the file has the first value and the
    differences, which deflate better.
    """

    layout: dict[str, list[Any]]
    data: str


def pack(arrays: Mapping[str, Numbers], delta: frozenset[str] = frozenset()) -> PackedArrays:
    """Pack arrays of whole numbers below 2⁵³ in magnitude; those in `delta` as differences."""
    layout: dict[str, list[Any]] = {}
    parts: list[bytes] = []
    begin = 0
    for name, values in arrays.items():
        kept = np.diff(values, prepend=0) if name in delta else values
        type_name = _narrowest(values, kept)
        raw = kept.astype(_TYPES[type_name]).tobytes()
        layout[name] = [type_name, begin, len(values), name in delta]
        parts += [raw, bytes(-len(raw) % _ALIGNED_BYTES)]
        begin += len(raw) + len(parts[-1])
    deflated = zlib.compress(b"".join(parts), 6)
    return PackedArrays(layout, base64.b64encode(deflated).decode("ascii"))


def _narrowest(*arrays: Numbers) -> str:
    """Return the narrowest type that holds all values of some arrays."""
    low = min((int(a.min(initial=0)) for a in arrays), default=0)
    high = max((int(a.max(initial=0)) for a in arrays), default=0)
    if low >= 0 and high < 2**16:
        return "Uint8Array" if high < 2**8 else "Uint16Array"
    return "Int32Array" if max(-low, high) < 2**31 else "Float64Array"
