"""Which values go from where to where, before their order on the links is known."""

from typing import NamedTuple

import numpy as np

from synth.costs import IntArray


class Ways(NamedTuple):
    """Ways of values: `made` and `read` are nodes, by `made` those of a link stand in order.

    `seen` orders the links, by the smallest of each.
    """

    value: IntArray
    source: IntArray
    target: IntArray
    made: IntArray
    read: IntArray
    seen: IntArray

    def joined(self, other: "Ways") -> "Ways":
        """These, then the others, whose links are seen later."""
        later = other._replace(seen=other.seen + int(self.seen.max(initial=-1)) + 1)
        return Ways(*(np.concatenate(fields) for fields in zip(self, later, strict=True)))
