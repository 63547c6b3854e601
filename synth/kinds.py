"""The kinds of compute op, by the field's letters."""

from enum import StrEnum


class OpKind(StrEnum):
    """What a rank computes.

    F, B, W are the zero-bubble paper's letters (arXiv 2401.10241): forward, backward for the
    input gradient, backward for the weight gradient. BW is B and W fused, an ordinary backward.
    """

    F = "F"
    B = "B"
    W = "W"
    BW = "BW"
    STEP = "STEP"

    @property
    def rank_in_chain(self) -> int:
        """The place in one micro-batch's life (F, then B or BW, then W), to compare moments."""
        return _CHAIN[self]


_CHAIN = {OpKind.F: 0, OpKind.B: 1, OpKind.BW: 1, OpKind.W: 2, OpKind.STEP: 3}
