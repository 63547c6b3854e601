"""List scheduling compiled by Numba: `list_scheduling` on arrays, some thirty times as fast.

It makes the very orders that `list_scheduling.Builder` makes, whose functions have the same names
and explain what is done. Kinds of op are numbered F, B, W, BW.
"""

from typing import NamedTuple

import numpy as np

from synth.solver.evaluate.compiled import compiled
from synth.solver.evaluate.list_arrays import (
    ABOVE,
    BACKLOG,
    BELOW,
    COUNT,
    DELTA,
    DOWN,
    DURATION,
    EAGER,
    FORWARD_FIRST,
    FUSED,
    LEAD,
    LIMIT,
    PEAK,
    RANK,
    STAGE,
    UP,
    Floats,
    ListArrays,
)
from synth.solver.evaluate.op_table import NONE
from synth.solver.evaluate.order_arrays import Ints

# Of the counts of a copy: F's, B's and W's that started, and activations and gradients that are
# known to arrive.
NUM_F, NUM_B, NUM_W, NUM_ACTS, NUM_GRADS = range(5)

F, B, W, BW = range(4)
NEVER = 1 << 60


class _State(NamedTuple):
    """A schedule that is being made."""

    counts: Ints
    acts: Ints
    grads: Ints
    usage: Ints
    free: Ints
    starts: Ints
    link_free: Ints
    heap: Ints
    size: Ints
    ranks: Ints
    orders: Ints


@compiled
def _push(s: _State, time: int, rank: int) -> None:
    """Add an event to the heap."""
    heap = s.heap
    place = s.size[0]
    s.size[0] += 1
    while place > 0:
        parent = (place - 1) >> 1
        if heap[parent, 0] < time or (heap[parent, 0] == time and heap[parent, 1] <= rank):
            break
        heap[place, 0], heap[place, 1] = heap[parent, 0], heap[parent, 1]
        place = parent
    heap[place, 0], heap[place, 1] = time, rank


@compiled
def _pop(s: _State) -> tuple[int, int]:
    """Remove the first event from the heap and return its time and its rank."""
    heap = s.heap
    time, rank = heap[0, 0], heap[0, 1]
    s.size[0] -= 1
    size = s.size[0]
    last_time, last_rank = heap[size, 0], heap[size, 1]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            heap[other, 0] < heap[child, 0]
            or (heap[other, 0] == heap[child, 0] and heap[other, 1] < heap[child, 1])
        ):
            child = other
        if last_time < heap[child, 0] or (
            last_time == heap[child, 0] and last_rank <= heap[child, 1]
        ):
            break
        heap[place, 0], heap[place, 1] = heap[child, 0], heap[child, 1]
        place = child
    heap[place, 0], heap[place, 1] = last_time, last_rank
    return time, rank


@compiled
def _allows(a: ListArrays, s: _State, copy: int, kind: int, above: int) -> bool:
    rank = a.copies[copy, RANK]
    room = a.headroom[rank]
    return bool(room == NONE or s.usage[rank] + above + a.copies[copy, PEAK + kind] <= room)


@compiled
def _fits(a: ListArrays, s: _State, copy: int, kind: int) -> bool:
    copies, counts = a.copies, s.counts
    rank = copies[copy, RANK]
    room = a.headroom[rank]
    if room == NONE:
        return True
    if not _allows(a, s, copy, kind, 0):
        return False
    usage = s.usage[rank] + copies[copy, DELTA + kind]
    for place in range(a.first_held[rank], a.first_held[rank + 1]):
        other = a.held[place]
        waiting = counts[other, NUM_B] - counts[other, NUM_W]
        if waiting > 0:
            if usage + copies[other, PEAK + W] > room:
                return False
            usage += waiting * copies[other, DELTA + W]
    if kind == B:
        usage += copies[copy, DELTA + W]
    _count(s, copy, kind, 1)
    most = -NEVER
    for chain in range(a.first_chain[rank], a.first_chain[rank + 1]):
        begin, end = a.first_link[chain], a.first_link[chain + 1]
        oldest = counts[a.links[begin], NUM_B]
        done = 0
        for place in range(begin, end):
            done += int(counts[a.links[place], NUM_F] > oldest)
            done += int(counts[a.links[place], NUM_B] > oldest)
        reserve = 0
        if done > 0:
            reserve = a.reserves[a.first_reserve[chain] + done]
        most = max(most, reserve)
    _count(s, copy, kind, -1)
    return bool(usage + most <= room)


@compiled
def _count(s: _State, copy: int, kind: int, more: int) -> None:
    """Count an op of a copy, or take it back."""
    if kind == BW:
        s.counts[copy, NUM_B] += more
        s.counts[copy, NUM_W] += more
    else:
        s.counts[copy, kind] += more


@compiled
def _backward(a: ListArrays, s: _State, copy: int, is_fused: int) -> int:
    can_fuse = _fits(a, s, copy, BW)
    if is_fused and can_fuse:
        return BW
    if _allows(a, s, copy, W, a.copies[copy, DELTA + B]) and _fits(a, s, copy, B):
        return B
    return BW if can_fuse else NONE


@compiled
def _choose(
    a: ListArrays, s: _State, rules: Ints, patience: Floats, rank: int, now: int
) -> tuple[int, int, int]:
    """Return the copy and the kind of the op to start now, or `NONE` and when to look again."""
    counts = s.counts
    begin, end = a.first_held[rank], a.first_held[rank + 1]
    filler, most = NONE, 0
    for place in range(begin, end):
        copy = a.held[place]
        waiting = counts[copy, NUM_B] - counts[copy, NUM_W]
        if waiting > most and _allows(a, s, copy, W, 0):
            filler, most = copy, waiting
    if filler != NONE and most > rules[filler, BACKLOG]:
        return filler, W, now
    best, best_kind = NONE, NONE
    key = (0, 0, 0)
    wake_us, blocked = NEVER, False
    for place in range(begin, end):
        copy = a.held[place]
        depth, f, b = a.copies[copy, STAGE], counts[copy, NUM_F], counts[copy, NUM_B]
        first, eager = rules[copy, FORWARD_FIRST], rules[copy, EAGER]
        for is_back in range(2):
            if is_back:
                if b >= min(f, counts[copy, NUM_GRADS]):
                    continue
                at, wanted = s.grads[copy, b], True
                this = (first, depth if eager else b, depth)
            else:
                if f >= counts[copy, NUM_ACTS]:
                    continue
                at, wanted = s.acts[copy, f], f - b < rules[copy, LIMIT]
                this = (1 - first, -depth if eager else f, -depth)
            if at > now:
                wake_us = min(wake_us, at)
                continue
            if best != NONE and (this > key or (this == key and copy >= best)):
                continue
            kind = NONE
            if is_back:
                kind = _backward(a, s, copy, rules[copy, FUSED])
            elif wanted and _fits(a, s, copy, F):
                kind = F
            if kind == NONE:
                blocked = blocked or wanted
            else:
                best, best_kind, key = copy, kind, this
    if best != NONE:
        return best, best_kind, now
    if filler == NONE:
        return NONE, NONE, wake_us
    patience_us = patience[filler]
    if blocked or _next_us(a, s, rules, rank, now) - now >= patience_us:
        return filler, W, now
    return NONE, NONE, wake_us


@compiled
def _next_us(a: ListArrays, s: _State, rules: Ints, rank: int, now: int) -> int:
    """Return when the next F or B that fits now arrives."""
    counts, next_us = s.counts, NEVER
    for place in range(a.first_held[rank], a.first_held[rank + 1]):
        copy = a.held[place]
        f, b = counts[copy, NUM_F], counts[copy, NUM_B]
        at = s.grads[copy, b] if b < min(f, counts[copy, NUM_GRADS]) else now
        if now < at < next_us and _backward(a, s, copy, rules[copy, FUSED]) != NONE:
            next_us = at
        at = s.acts[copy, f] if f < counts[copy, NUM_ACTS] else now
        if now < at < next_us and f - b < rules[copy, LIMIT] and _fits(a, s, copy, F):
            next_us = at
    return next_us


@compiled
def _deliver(
    a: ListArrays, s: _State, source: int, target: int, end: int, lag: int, lead: int, is_back: bool
) -> None:
    sender, receiver = a.copies[source, RANK], a.copies[target, RANK]
    if sender != receiver:
        end = max(end, s.link_free[sender, receiver]) + lag
        s.link_free[sender, receiver] = end + lead
    if is_back:
        s.grads[target, s.counts[target, NUM_GRADS]] = end
        s.counts[target, NUM_GRADS] += 1
    else:
        s.acts[target, s.counts[target, NUM_ACTS]] = end
        s.counts[target, NUM_ACTS] += 1
    _push(s, end, receiver)


@compiled
def _start(a: ListArrays, s: _State, copy: int, kind: int, now: int) -> None:
    row = a.copies[copy]
    rank, end = row[RANK], now + row[DURATION + kind]
    s.orders[rank, s.ranks[rank], 0], s.orders[rank, s.ranks[rank], 1] = copy, kind
    s.ranks[rank] += 1
    s.starts[rank] = min(s.starts[rank], now)
    s.free[rank] = end
    s.usage[rank] += row[DELTA + kind]
    _count(s, copy, kind, 1)
    _push(s, end, rank)
    if kind == F:
        if row[BELOW] == NONE:
            s.grads[copy, s.counts[copy, NUM_GRADS]] = end
            s.counts[copy, NUM_GRADS] += 1
        else:
            _deliver(a, s, copy, row[BELOW], end, row[DOWN], 0, False)
    elif kind != W and row[ABOVE] != NONE:
        _deliver(a, s, copy, row[ABOVE], end, row[UP], row[LEAD], True)


@compiled
def build(
    a: ListArrays, rules: Ints, patience: Floats, most_ops: int, releases: Ints
) -> tuple[Ints, Ints, Ints, Ints, bool]:
    """Schedule all ops by rules.

    Args:
        rules: a row for each copy.
        patience: of each copy, in µs.
        most_ops: of a rank, F, B and W.
        releases: by micro-batch of a replica, the earliest start of its first F, in µs.

    Returns:
        The (copy, kind) of the ops by rank, the number of ops of each rank, where each rank starts
        and ends, and False at a dead end.
    """
    num_copies, num_ranks = len(a.copies), len(a.headroom)
    most = a.copies[:, COUNT].max()
    num_events = num_copies + 1 + 2 * num_ranks * most_ops
    s = _State(
        np.zeros((num_copies, 5), np.int64),
        np.zeros((num_copies, most), np.int64),
        np.zeros((num_copies, most), np.int64),
        np.zeros(num_ranks, np.int64),
        np.zeros(num_ranks, np.int64),
        np.full(num_ranks, NEVER, np.int64),
        np.zeros((num_ranks, num_ranks), np.int64),
        np.zeros((num_events, 2), np.int64),
        np.zeros(1, np.int64),
        np.zeros(num_ranks, np.int64),
        np.zeros((num_ranks, most_ops, 2), np.int64),
    )
    for copy in range(num_copies):
        if a.copies[copy, ABOVE] == NONE:
            s.counts[copy, NUM_ACTS] = a.copies[copy, COUNT]
            for number in range(a.copies[copy, COUNT]):
                s.acts[copy, number] = releases[number]
            _push(s, 0, a.copies[copy, RANK])
    while s.size[0] > 0:
        now, rank = _pop(s)
        if s.free[rank] > now:
            continue
        copy, kind, wake_us = _choose(a, s, rules, patience, rank, now)
        if copy != NONE:
            _start(a, s, copy, kind, now)
        elif wake_us < NEVER:
            _push(s, wake_us, rank)
    is_whole = bool((s.counts[:, NUM_W] >= a.copies[:, COUNT]).all())
    return s.orders, s.ranks, s.starts, s.free, is_whole
