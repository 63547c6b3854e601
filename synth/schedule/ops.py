"""Compute ops, and the values that they read and make."""

import re
from enum import StrEnum
from typing import NamedTuple

from synth.kinds import OpKind


class Op(NamedTuple):
    """One compute op of a rank's program; STEP belongs to no micro-batch and carries 0."""

    kind: OpKind
    stage: int
    microbatch: int = 0
    replica: int = 0

    def __str__(self) -> str:
        """The token of the schedule file: `F1.3` is F of stage 1, micro-batch 3."""
        body = f"{self.kind}{self.stage}"
        if self.kind != OpKind.STEP:
            body += f".{self.microbatch}"
        return body + (f"@{self.replica}" if self.replica else "")

    @classmethod
    def parse(cls, token: str) -> "Op":
        """Read a token of the schedule file.

        Raises:
            ValueError: the token is none, with what one looks like.
        """
        match = _TOKEN.fullmatch(token)
        if match is None or (match[1] == "STEP") != (match[3] is None):
            raise ValueError(
                f"op {token!r} is not understood; ops look like F0.3, B0.3, W0.3, BW0.3, R0.3, "
                f"O0.3, L0.3, K0.3, G0.3 (kind, stage, micro-batch) or STEP0"
            )
        return cls(OpKind(match[1]), int(match[2]), int(match[3] or 0), int(match[4] or 0))


_TOKEN = re.compile(r"(F|BW|B|W|STEP|R|O|L|K|G)(\d{1,6})(?:\.(\d{1,9}))?(?:@(\d{1,3}))?")


class ValueKind(StrEnum):
    """What a value is; see `docs/design.md`, "one model of data"."""

    ACT = "act"
    GRAD = "grad"
    SAVED = "saved"
    SAVED_W = "saved_w"
    WGRAD = "wgrad"
    REPLAY = "replay"
    AGAIN = "again"
    OUT = "out"
    STORED = "stored"
    BACK = "back"


class Value(NamedTuple):
    """Something that lives on a rank from the op that makes it to the last op that reads it.

    act(s, j) is the output of stage s, grad(s, j) the gradient of that output, saved(s, j) what F
    keeps, saved_w(s, j) what is left of it for W, and wgrad(s, j) micro-batch j's contribution to
    the accumulated weight gradient (no bytes of its own: they are static).

    Where R follows, F keeps its input and replay(s, j), R makes saved(s, j) and, for a layer that
    holds on to its output, again(s, j). Where saved(s, j) moves, it leaves as out(s, j) and comes
    back as back(s, j); stored(s, j) is the copy elsewhere, which takes nothing of its rank.
    """

    kind: ValueKind
    stage: int
    microbatch: int
    replica: int = 0

    def __str__(self) -> str:
        """For people: `act(1, 3)`."""
        suffix = f"@{self.replica}" if self.replica else ""
        return f"{self.kind}({self.stage}, {self.microbatch}){suffix}"

    @classmethod
    def parse(cls, text: str) -> "Value":
        """Read what `str` writes.

        Raises:
            ValueError: it is no value's name.
        """
        match = _VALUE.fullmatch(text)
        if match is None:
            raise ValueError(f"value {text!r} is not understood; values look like act(1, 3)")
        return cls(ValueKind(match[1]), int(match[2]), int(match[3]), int(match[4] or 0))


_VALUE = re.compile(rf"({'|'.join(ValueKind)})\((\d{{1,6}}), (\d{{1,9}})\)(?:@(\d{{1,3}}))?")
