"""The transfers that a schedule requires, before their order on the links is known."""

from typing import NamedTuple

import numpy as np

from synth.costs.costs import IntArray


class RequiredTransfers(NamedTuple):
    """Transfers as arrays: `made` and `read` are nodes; transfers of a link are ordered by `made`.

    Links are ordered by the smallest `seen` of their transfers.
    """

    value: IntArray
    source: IntArray
    target: IntArray
    made: IntArray
    read: IntArray
    seen: IntArray

    def joined(self, other: "RequiredTransfers") -> "RequiredTransfers":
        """Append other transfers, whose links come later."""
        later = other._replace(seen=other.seen + int(self.seen.max(initial=-1)) + 1)
        return RequiredTransfers(
            *(np.concatenate(fields) for fields in zip(self, later, strict=True))
        )
