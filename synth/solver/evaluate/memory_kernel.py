"""Exact memory of programs, compiled by Numba: that of `synth.schedule.rank_memory`."""

from synth.solver.evaluate.compiled import compiled
from synth.solver.evaluate.move_kernel import add_moved_bytes
from synth.solver.evaluate.op_table import NONE
from synth.solver.evaluate.order_arrays import (
    DELTA,
    FIRST_LINK,
    FIRST_READER,
    FIRST_VALUE,
    HEADROOM,
    IS_REPOSTED,
    IS_SENT,
    LENGTH,
    MAKER,
    NUM_BYTES,
    PLACE,
    POST,
    RECEIVED,
    RISE,
    SENT,
    SOURCE,
    TARGET,
    OrderArrays,
)
from synth.solver.evaluate.time_kernel import filled


@compiled
def peak_bytes(a: OrderArrays, rank: int) -> int:
    """Return the peak of a rank above its static bytes."""
    programs, ops, ranks, values, readers = a.programs, a.ops, a.ranks, a.values, a.readers
    count, ahead, gap = a.num_micro_batches, a.ahead, a.behind + 1
    num_ops = ranks[rank, LENGTH]
    received, waited, ended = (
        filled(num_ops + 1, 0),
        filled(num_ops + 1, 0),
        filled(num_ops + 1, 0),
    )
    for place in range(num_ops):
        op = programs[rank, place]
        sender = ops[op, SOURCE]
        if sender != NONE:
            post = ops[sender, POST]
            if post == NONE:
                post = max(0, place - ahead)
            received[post] += ops[op, RECEIVED]
    for value in range(ranks[rank, FIRST_VALUE], ranks[rank + 1, FIRST_VALUE]):
        used = ops[values[value, MAKER], PLACE]
        if used == NONE:
            continue
        wait = min(num_ops, used + gap)
        for at in range(values[value, FIRST_READER], values[value + 1, FIRST_READER]):
            op = readers[at]
            # A W that BW does is read at its B.
            read = ops[op, PLACE] if ops[op, PLACE] != NONE else ops[op - count, PLACE]
            used = max(used, read)
        if values[value, IS_SENT] and wait > used:
            waited[wait] += values[value, NUM_BYTES]
        else:
            ended[used] += values[value, NUM_BYTES]
    add_moved_bytes(a.moves, rank, a.behind, received, waited)
    usage = peak = 0
    for place in range(num_ops):
        op = programs[rank, place]
        usage += received[place]
        peak = max(peak, usage)
        if place >= gap:
            usage -= ops[programs[rank, place - gap], SENT]
        usage -= waited[place]
        peak = max(peak, usage + ops[op, RISE])
        usage += ops[op, DELTA] - ended[place]
    return int(max(peak, usage + received[num_ops]))


@compiled
def fits(a: OrderArrays, rank: int) -> bool:
    """Return True if a rank, and those whose receives its last change moved, keep their caps."""
    ranks, links, links_of = a.ranks, a.links, a.links_of
    if ranks[rank, HEADROOM] >= 0 and peak_bytes(a, rank) > ranks[rank, HEADROOM]:
        return False
    for which in range(ranks[rank, FIRST_LINK], ranks[rank + 1, FIRST_LINK]):
        link = links_of[which]
        other = links[link, TARGET] if links[link, IS_REPOSTED] else rank
        headroom = ranks[other, HEADROOM]
        if other != rank and headroom >= 0 and peak_bytes(a, other) > headroom:
            return False
    return True


def all_fit(a: OrderArrays) -> bool:
    """Return True if all ranks keep their caps."""
    rooms = a.ranks[: a.num_ranks, HEADROOM].tolist()
    return all(room < 0 or peak_bytes(a, rank) <= room for rank, room in enumerate(rooms))
