"""The memory cap of a rank that holds one stage, as precedences between its ops.

The state of a rank before an op is how many F, B and W are done. By the FIFO lemma (micro-batches
are identical, so each kind can take them in order) the op fixes its own count; which values of the
two other counts keep the cap is one linear inequality. Its solutions are a union of quadrants, one
per Pareto-loosest corner, and a quadrant is two precedences: "at least i of kind P are done" is P
i−1 before the op, "at most i are done" is the op before P i. This is exact for either sign of B's
change on memory.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.solver.instance.instance import BW, SPLIT, B, F, OpIndex, W
from synth.solver.instance.stage_copy import StageCopy


class Before(NamedTuple):
    """`first` ends before `second` starts."""

    first: OpIndex
    second: OpIndex


Alternative = tuple[Before, ...]


class Requirement(NamedTuple):
    """An op fits in memory exactly if all precedences of one of the alternatives hold.

    No alternative: it never fits. Ops that always fit have no requirement.
    """

    op_index: OpIndex
    alternatives: tuple[Alternative, ...]


def requirements(
    copy: StageCopy, headroom_bytes: int | None, fused: OpKind | None = None
) -> Iterator[Requirement]:
    """Yield the requirements of the memory limit on a copy alone on its rank.

    Args:
        fused: BW for the requirements of a fused B only.
    """
    if headroom_bytes is None:
        return
    for kind in SPLIT if fused is None else (B,):
        for index in range(copy.num_micro_batches):
            asked = requirement(copy, headroom_bytes, OpIndex(kind, index), fused)
            if asked is not None:
                yield asked


def requirement(
    copy: StageCopy, headroom_bytes: int, op_index: OpIndex, fused: OpKind | None = None
) -> Requirement | None:
    """Return the requirement of the memory limit on one op; None if it always fits."""
    found = tuple(
        _alternatives(
            copy, headroom_bytes - copy.peak_above_bytes[fused or op_index.kind], op_index
        )
    )
    return None if () in found else Requirement(op_index, found)


def _alternatives(copy: StageCopy, slack: int, op_index: OpIndex) -> Iterator[Alternative]:
    """Walk the first count from loosest to strictest; keep those that loosen the second one."""
    (kind, index), m, delta = op_index, copy.num_micro_batches, copy.delta_bytes
    slack -= delta[kind] * index
    outer, inner = {F: (B, W), B: (F, W), W: (B, F)}[kind]
    low, high = _feasible(kind, index, slack, delta, m)
    wants_few = delta[outer] > 0
    counts = range(high, low - 1, -1) if wants_few else range(low, high + 1)
    loosest: int | None = None
    for count in counts:
        limit = _limit(inner, delta[inner], slack - delta[outer] * count, m)
        if limit is None or (loosest is not None and not _looser(inner, limit, loosest)):
            continue
        if loosest is not None and loosest == (m if inner == F else 0):
            break
        if outer == B and (limit < count if inner == F else limit > count):
            continue  # no such state: W's are done after their B's, B's after their F's
        loosest = limit
        pair = (
            _at_most(outer, count, op_index, m) if wants_few else _at_least(outer, count, op_index),
            _at_most(inner, limit, op_index, m)
            if inner == F
            else _at_least(inner, limit, op_index),
        )
        if None not in pair:
            yield tuple(before for part in pair if part is not None for before in part)


def _feasible(
    kind: OpKind, index: int, slack: int, delta: dict[OpKind, int], m: int
) -> tuple[int, int]:
    """The range of the first other count in which the second one can make the op fit.

    For F the first is B, and at most as many W's are done; for B it is F, and at most `index` W's
    are done; for W it is B, and at least as many F's are done.
    """
    if kind == F:
        low = max(0, -(-slack // delta[BW])) if delta[BW] < 0 else 0
        return low, index
    high = m
    if kind == B and delta[F] > 0:
        high = min(m, (slack - delta[W] * index) // delta[F])
    if kind == W and delta[F] + delta[B] > 0:
        high = min(m, slack // (delta[F] + delta[B]))
    return index + 1, high


def _limit(kind: OpKind, delta: int, slack: int, m: int) -> int | None:
    """The loosest count with change · count ≤ slack: the most for F, which adds, else the least.

    None: no count will do.
    """
    if delta == 0:
        return (m if kind == F else 0) if slack >= 0 else None
    return min(m, slack // delta) if kind == F else max(0, -(slack // -delta))


def _looser(inner: OpKind, limit: int, than: int) -> bool:
    return limit > than if inner == F else limit < than


def _at_least(kind: OpKind, count: int, op_index: OpIndex) -> Alternative | None:
    """At least `count` ops of a kind are done when the op starts; None: impossible."""
    return _known(Before(OpIndex(kind, count - 1), op_index)) if count > 0 else ()


def _at_most(kind: OpKind, count: int, op_index: OpIndex, m: int) -> Alternative | None:
    """At most `count` ops of a kind are done when the op starts; None: impossible."""
    if count < 0:
        return None
    return _known(Before(op_index, OpIndex(kind, count))) if count < m else ()


def _known(before: Before) -> Alternative | None:
    """Drop a precedence that F, B, W of a micro-batch and FIFO imply; None if they exclude it."""
    (a, i), (b, j) = before
    if a.rank_in_chain <= b.rank_in_chain and i <= j:
        return ()
    if a.rank_in_chain >= b.rank_in_chain and i >= j:
        return None
    return (before,)


def asked_by_all(alternatives: Sequence[Alternative]) -> Iterator[Before]:
    """Yield the loosest of each kind of precedence that every alternative contains."""
    sides: dict[tuple[OpKind, bool], list[Before]] = {}
    op_index = _common_op_index(alternatives)
    for alternative in alternatives:
        for before in alternative:
            is_after = before.second == op_index
            other = before.first if is_after else before.second
            sides.setdefault((other.kind, is_after), []).append(before)
    for (_, is_after), found in sides.items():
        if len(found) == len(alternatives):
            if is_after:
                yield min(found, key=lambda before: before.first.microbatch)
            else:
                yield max(found, key=lambda before: before.second.microbatch)


def _common_op_index(alternatives: Sequence[Alternative]) -> OpIndex:
    """Return the op that all the precedences contain."""
    common = set.intersection(*({*before} for found in alternatives for before in found))
    return next(iter(common))
