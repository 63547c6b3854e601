"""Simulated annealing of building blocks (`block_arrays`), compiled by Numba.

The ops of a block are placed one after the other, each at the first time at which its input is
there, it has waited as long as it is told to, and its rank is free on a circle as long as the
interval: the modulo reservation table (Rau 1994, Iterative modulo scheduling). Moves change the
waits, and the order of the W's. Where they end, the block repeats within the memory of each rank.
"""

import math

import numpy as np
import numpy.typing as npt

from synth.solver.evaluate.block_arrays import BlockArrays, PlacedBlock
from synth.solver.evaluate.compiled import compiled
from synth.solver.evaluate.op_table import NONE
from synth.solver.evaluate.order_arrays import Ints

Floats = npt.NDArray[np.float64]

# Kinds of moves: exchange two W's; wait not at all, any time within an interval, a little more or
# less than now, or so that the next op of the micro-batch starts when it did.
_EXCHANGE, _AT_ONCE, _ANY, _A_LITTLE, _ALONE, _NUM_KINDS = 0, 1, 2, 3, 4, 5


@compiled
def _blocked_us(at: int, duration: int, begin: int, length: int, interval: int) -> int:
    """Return how much later an op must start because of one that is placed; 0: not at all."""
    gap = (begin - at) % interval
    if gap < duration and length > 0:
        return gap + length
    behind = (at - begin) % interval
    return length - behind if behind < length and duration > 0 else 0


@compiled
def _place(
    a: BlockArrays, now: PlacedBlock, interval: int, num_placed: Ints, placed: Ints
) -> float:
    """Place all ops; return the time of those for which there is no room, in intervals.

    Args:
        now: its `starts` are set.
        interval: in µs.
        num_placed: scratch, by rank.
        placed: scratch, by op: the placed ops of the ranks, as in `held`.
    """
    num_placed[:] = 0
    left_out = 0.0
    for op in now.order:
        rank, duration, source = a.rank[op], a.duration[op], a.source[op]
        at = now.waits[op]
        if source != NONE:
            at += now.starts[source] + a.duration[source] + a.lag[op]
        first, tries = a.first_held[rank], 2 * num_placed[rank] + 2
        is_free = False
        while tries > 0 and not is_free:
            tries -= 1
            is_free = True
            for other in placed[first : first + num_placed[rank]]:
                later = _blocked_us(at, duration, now.starts[other], a.duration[other], interval)
                if later > 0:
                    at += later
                    is_free = False
                    break
        now.starts[op] = at
        if is_free:
            placed[first + num_placed[rank]] = op
            num_placed[rank] += 1
        else:
            left_out += duration / interval
    return left_out


@compiled
def _excess(a: BlockArrays, starts: Ints, interval: int) -> float:
    """Return the bytes beyond the headrooms of the ranks, as shares of these, summed up.

    When an op runs, another one of its rank has run as often more as intervals have begun between
    their starts. Sums over whole micro-batches are 0, so it does not matter how many there are.
    """
    total = 0.0
    for rank in range(len(a.headroom)):
        if a.headroom[rank] == NONE:
            continue
        held, most = a.held[a.first_held[rank] : a.first_held[rank + 1]], 0
        for op in held:
            usage = a.peak[op]
            for other in held:
                if other != op:
                    usage += a.delta[other] * -((starts[other] - starts[op]) // interval)
            most = max(most, usage)
        if most > a.headroom[rank]:
            total += (most - a.headroom[rank]) / max(1, a.headroom[rank])
    return total


@compiled
def _cost(
    a: BlockArrays, now: PlacedBlock, interval: int, num_placed: Ints, placed: Ints, compacts: bool
) -> float:
    """Return 0 for a block that fits, or its length in intervals if it is to be compacted."""
    misfit = 10.0 * _place(a, now, interval, num_placed, placed)
    misfit += _excess(a, now.starts, interval)
    if not compacts:
        return misfit
    return np.inf if misfit > 0 else now.starts.max() / interval


@compiled
def _copy(source: PlacedBlock, target: PlacedBlock) -> None:
    """Copy a block."""
    target.order[:] = source.order
    target.waits[:] = source.waits
    target.starts[:] = source.starts


@compiled
def anneal(
    a: BlockArrays,
    now: PlacedBlock,
    best: PlacedBlock,
    costs: tuple[float, float],
    interval: int,
    temperature: float,
    compacts: bool,
    numbers: Floats,
) -> tuple[float, float]:
    """Try moves at one temperature; return the costs of the block reached and of the best one.

    Args:
        now: the block to begin from, which is changed.
        best: the best block known, which is replaced by better ones.
        costs: of both; infinite where they are not known.
        interval: in µs.
        temperature: in the unit of the costs.
        compacts: make a block that fits shorter, and do not leave those that fit.
        numbers: random ones between 0 and 1, a row for each move.
    """
    num_ops = len(a.rank)
    num_placed, placed = np.zeros(len(a.headroom), np.int64), np.zeros(num_ops, np.int64)
    cost, least = costs
    if cost == np.inf:
        cost = _cost(a, now, interval, num_placed, placed, compacts)
    if cost < least:
        least = cost
        _copy(now, best)
    first_weight = num_ops - a.num_weights
    for move in range(len(numbers)):
        if least == 0:
            break
        kind, amount, where = int(numbers[move, 0] * _NUM_KINDS), numbers[move, 1], numbers[move, 2]
        one = first_weight + int(where * a.num_weights)
        other = first_weight + int(amount * a.num_weights)
        op = int(where * num_ops)
        following = (op + 1) % num_ops
        before, following_before = now.waits[op], now.waits[following]
        if kind == _EXCHANGE:
            now.order[one], now.order[other] = now.order[other], now.order[one]
        elif kind == _AT_ONCE:
            now.waits[op] = 0
        elif kind == _ANY:
            now.waits[op] = int(amount * interval)
        else:
            now.waits[op] = max(0, before + int((2 * amount - 1) * interval / 8))
            if kind == _ALONE and a.source[following] == op:
                shift = now.waits[op] - before
                now.waits[following] = max(0, following_before - shift)
        tried = _cost(a, now, interval, num_placed, placed, compacts)
        if tried <= cost or numbers[move, 3] < math.exp((cost - tried) / temperature):
            cost = tried
            if cost < least:
                least = cost
                _copy(now, best)
        elif kind == _EXCHANGE:
            now.order[one], now.order[other] = now.order[other], now.order[one]
        else:
            now.waits[op], now.waits[following] = before, following_before
    return cost, least
