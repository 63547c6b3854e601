"""Compute ops, and the values that they read and produce."""

import re
from enum import StrEnum
from typing import NamedTuple

from synth.op_kinds import OpKind


class Op(NamedTuple):
    """One op of a rank's program.

    STEP belongs to no micro-batch and carries the number of the update, 0 for the first. UNSHARD,
    RESHARD and REDUCE_GRAD carry the number of the visit, counted by stage copy from 0.
    """

    kind: OpKind
    stage: int
    microbatch: int = 0
    replica: int = 0

    def __str__(self) -> str:
        """The token of the schedule file: `F1.3` is F of stage 1, micro-batch 3."""
        kind, stage, microbatch, replica = self
        body = f"{kind!s}{stage}"
        if microbatch or kind is not OpKind.STEP:
            body += f".{microbatch}"
        return f"{body}@{replica}" if replica else body

    @classmethod
    def parse(cls, token: str) -> "Op":
        """Read a token of the schedule file.

        Raises:
            ValueError: the token is malformed; the message shows what tokens look like.
        """
        match = _TOKEN.fullmatch(token)
        if match is None or (match[1] != "STEP" and match[3] is None):
            raise ValueError(
                f"op {token!r} is not understood; ops look like F0.3, B0.3, W0.3, BW0.3, R0.3, "
                f"O0.3, L0.3, K0.3, G0.3 (kind, stage, micro-batch), U0.1, D0.1, A0.1 (kind, "
                f"stage, visit), STEP0 or STEP0.1 (stage, update)"
            )
        return cls(OpKind(match[1]), int(match[2]), int(match[3] or 0), int(match[4] or 0))


_TOKEN = re.compile(r"(F|BW|B|W|STEP|R|O|L|K|G|U|D|A)(\d{1,6})(?:\.(\d{1,9}))?(?:@(\d{1,3}))?")


class ValueKind(StrEnum):
    """The kind of a value; see `docs/design.md`, "one model of data"."""

    ACT = "act"
    GRAD = "grad"
    SAVED = "saved"
    SAVED_W = "saved_w"
    WGRAD = "wgrad"
    REPLAY_INPUT = "replay"
    ACT_AGAIN = "again"
    MOVED_OUT = "out"
    PARKED = "stored"
    MOVED_BACK = "back"
    WEIGHTS = "weights"
    GRAD_SUM = "sum"
    GRAD_ACC = "acc"


class Value(NamedTuple):
    """Data that lives on a rank from the op that makes it to the last op that reads it.

    act(s, j) is the output of stage s and grad(s, j) the gradient of that output. saved(s, j) are
    the saved activations of F, saved_w(s, j) the part of them that W needs. wgrad(s, j) is
    micro-batch j's contribution to the accumulated weight gradient; its bytes are static.

    If R follows, F keeps its input and replay(s, j); R makes saved(s, j) and, for a layer that
    holds its output, again(s, j). If saved(s, j) moves, it leaves as out(s, j) and returns as
    back(s, j); stored(s, j) is the copy elsewhere, which takes no memory of its rank.

    weights(s, v) are a stage's weights on a rank that does not keep them, during visit v; or, where
    weights have versions, version v after STEP(s, v) has replaced it. sum(s, j)
    is the gradient accumulated over micro-batches 0 to j, which goes from rank to rank; acc(s, v)
    the gradient accumulated on a rank until the v-th REDUCE_GRAD.
    """

    kind: ValueKind
    stage: int
    microbatch: int
    replica: int = 0

    def __str__(self) -> str:
        """The readable form: `act(1, 3)`."""
        suffix = f"@{self.replica}" if self.replica else ""
        return f"{self.kind}({self.stage}, {self.microbatch}){suffix}"

    @classmethod
    def parse(cls, text: str) -> "Value":
        """Parse the form that `str` gives.

        Raises:
            ValueError: the text does not name a value.
        """
        match = _VALUE.fullmatch(text)
        if match is None:
            raise ValueError(f"value {text!r} is not understood; values look like act(1, 3)")
        return cls(ValueKind(match[1]), int(match[2]), int(match[3]), int(match[4] or 0))


_VALUE = re.compile(rf"({'|'.join(ValueKind)})\((\d{{1,6}}), (\d{{1,9}})\)(?:@(\d{{1,3}}))?")
