"""The memory cap of a rank that holds one stage, as precedences between its ops.

The state of a rank before an op is how many F, B and W are done. By the FIFO lemma (micro-batches
are identical, so each kind can take them in order) the op fixes its own count; which values of the
two other counts keep the cap is one linear inequality. Its solutions are a union of quadrants, one
per Pareto-loosest corner, and a quadrant is two precedences: "at least i of kind P are done" is P
i−1 before the op, "at most i are done" is the op before P i. This is exact for either sign of B's
effect on memory.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from synth.kinds import OpKind
from synth.solve.instance.instance import BW, SPLIT, B, Chunk, F, Slot, W


class Before(NamedTuple):
    """`first` ends before `second` starts."""

    first: Slot
    second: Slot


Alternative = tuple[Before, ...]


class Requirement(NamedTuple):
    """An op fits in memory exactly if all precedences of one of the alternatives hold.

    No alternative: it never fits. Ops that always fit have no requirement.
    """

    slot: Slot
    alternatives: tuple[Alternative, ...]


def requirements(
    chunk: Chunk, room_bytes: int | None, fused: OpKind | None = None
) -> Iterator[Requirement]:
    """All that the cap asks of the order of a chunk's ops, alone on its rank.

    Args:
        room_bytes: of the rank.
        fused: BW for what it asks of a B that is fused, and of nothing else.
    """
    if room_bytes is None:
        return
    for kind in SPLIT if fused is None else (B,):
        for index in range(chunk.num_micro_batches):
            asked = requirement(chunk, room_bytes, Slot(kind, index), fused)
            if asked is not None:
                yield asked


def requirement(
    chunk: Chunk, room_bytes: int, slot: Slot, fused: OpKind | None = None
) -> Requirement | None:
    """What the cap asks of one op; None if it always fits."""
    found = tuple(_alternatives(chunk, room_bytes - chunk.need_bytes[fused or slot.kind], slot))
    return None if () in found else Requirement(slot, found)


def _alternatives(chunk: Chunk, slack: int, slot: Slot) -> Iterator[Alternative]:
    """Walk the first other count from loosest to strictest, keep what loosens the second one."""
    (kind, index), m, effect = slot, chunk.num_micro_batches, chunk.effect_bytes
    slack -= effect[kind] * index
    outer, inner = {F: (B, W), B: (F, W), W: (B, F)}[kind]
    low, high = _feasible(kind, index, slack, effect, m)
    wants_few = effect[outer] > 0
    counts = range(high, low - 1, -1) if wants_few else range(low, high + 1)
    loosest: int | None = None
    for count in counts:
        limit = _limit(inner, effect[inner], slack - effect[outer] * count, m)
        if limit is None or (loosest is not None and not _looser(inner, limit, loosest)):
            continue
        if loosest is not None and loosest == (m if inner == F else 0):
            break
        if outer == B and (limit < count if inner == F else limit > count):
            continue  # no such state: W's are done after their B's, B's after their F's
        loosest = limit
        pair = (
            _at_most(outer, count, slot, m) if wants_few else _at_least(outer, count, slot),
            _at_most(inner, limit, slot, m) if inner == F else _at_least(inner, limit, slot),
        )
        if None not in pair:
            yield tuple(before for part in pair if part is not None for before in part)


def _feasible(
    kind: OpKind, index: int, slack: int, effect: dict[OpKind, int], m: int
) -> tuple[int, int]:
    """The range of the first other count in which the second one can make the op fit.

    For F the first is B, and at most as many W's are done; for B it is F, and at most `index` W's
    are done; for W it is B, and at least as many F's are done.
    """
    if kind == F:
        low = max(0, -(-slack // effect[BW])) if effect[BW] < 0 else 0
        return low, index
    high = m
    if kind == B and effect[F] > 0:
        high = min(m, (slack - effect[W] * index) // effect[F])
    if kind == W and effect[F] + effect[B] > 0:
        high = min(m, slack // (effect[F] + effect[B]))
    return index + 1, high


def _limit(kind: OpKind, effect: int, slack: int, m: int) -> int | None:
    """The loosest count with effect · count ≤ slack: the most for F, which adds, else the least.

    None: no count will do.
    """
    if effect == 0:
        return (m if kind == F else 0) if slack >= 0 else None
    return min(m, slack // effect) if kind == F else max(0, -(slack // -effect))


def _looser(inner: OpKind, limit: int, than: int) -> bool:
    return limit > than if inner == F else limit < than


def _at_least(kind: OpKind, count: int, slot: Slot) -> Alternative | None:
    """At least `count` ops of a kind are done when the slot starts; None: impossible."""
    return _known(Before(Slot(kind, count - 1), slot)) if count > 0 else ()


def _at_most(kind: OpKind, count: int, slot: Slot, m: int) -> Alternative | None:
    """At most `count` ops of a kind are done when the slot starts; None: impossible."""
    if count < 0:
        return None
    return _known(Before(slot, Slot(kind, count))) if count < m else ()


def _known(before: Before) -> Alternative | None:
    """Drop a precedence that F, B, W of a micro-batch and FIFO imply; None if they exclude it."""
    (a, i), (b, j) = before
    if a.rank_in_chain <= b.rank_in_chain and i <= j:
        return ()
    if a.rank_in_chain >= b.rank_in_chain and i >= j:
        return None
    return (before,)


def asked_by_all(alternatives: Sequence[Alternative]) -> Iterator[Before]:
    """The loosest of each kind of precedence that every alternative has."""
    sides: dict[tuple[OpKind, bool], list[Before]] = {}
    slot = _common_slot(alternatives)
    for alternative in alternatives:
        for before in alternative:
            is_after = before.second == slot
            other = before.first if is_after else before.second
            sides.setdefault((other.kind, is_after), []).append(before)
    for (_, is_after), found in sides.items():
        if len(found) == len(alternatives):
            if is_after:
                yield min(found, key=lambda before: before.first.microbatch)
            else:
                yield max(found, key=lambda before: before.second.microbatch)


def _common_slot(alternatives: Sequence[Alternative]) -> Slot:
    """The op that all the precedences are about."""
    common = set.intersection(*({*before} for found in alternatives for before in found))
    return next(iter(common))
