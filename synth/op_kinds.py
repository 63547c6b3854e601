"""The kinds of op, by the field's letters."""

from enum import StrEnum


class OpKind(StrEnum):
    """The kind of an op.

    F, B, W are the zero-bubble paper's letters (arXiv 2401.10241): forward, backward for the input
    gradient, backward for the weight gradient. BW is B and W fused, an ordinary backward. R runs F
    again, to rebuild the activations that F did not save.

    The others take no time. Four mark where moves of `saved` begin. OFFLOAD sends it away from its
    rank. RELOAD allocates a buffer and lets it return. It goes to the host's memory, unless another
    rank has a HOST_FOR, which allocates a buffer for it there, and a RETURN, which sends it back.

    Two mark the visit of a stage's weights on a rank that does not keep them, by the names of
    PyTorch's FSDP. UNSHARD allocates their buffer and lets them come, RESHARD frees it.
    REDUCE_GRAD gives the gradient that was accumulated on a rank to those who keep the stage.
    """

    F = "F"
    B = "B"
    W = "W"
    BW = "BW"
    STEP = "STEP"
    R = "R"
    OFFLOAD = "O"
    RELOAD = "L"
    HOST_FOR = "K"
    RETURN = "G"
    UNSHARD = "U"
    RESHARD = "D"
    REDUCE_GRAD = "A"

    @property
    def rank_in_chain(self) -> int:
        """The place in one micro-batch's life (F, then B or BW, then W), to compare moments."""
        return _CHAIN[self]


# The kinds that a profile measures; schedules without R and moves need no others.
MEASURED = (OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP)
MOVES = (OpKind.OFFLOAD, OpKind.RELOAD, OpKind.HOST_FOR, OpKind.RETURN)
# Those of weights and gradients; their number is that of the visit, not of a micro-batch.
VISITS = (OpKind.UNSHARD, OpKind.RESHARD, OpKind.REDUCE_GRAD)
# Those that read the weights of their stage, and those that add to its gradient.
READING = (OpKind.F, OpKind.R, OpKind.B, OpKind.BW)
ADDING = (OpKind.W, OpKind.BW)
# Those that stand where the backwards of their stage run, and the moves of what they read.
BACKWARD = (OpKind.R, OpKind.B, OpKind.BW, OpKind.W, OpKind.OFFLOAD, OpKind.RELOAD)
TIMELESS = (*MOVES, *VISITS)

_CHAIN = {OpKind.F: 0, OpKind.R: 0, OpKind.B: 1, OpKind.BW: 1, OpKind.W: 2, OpKind.STEP: 3}
_CHAIN |= dict.fromkeys(TIMELESS, 0)
