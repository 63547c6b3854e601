"""Caps on micro-batches in flight, as precedences of ops.

A rank holds stages a_1 < … < a_n of a replica. Right before F k of a_j starts, F's 0 … k of the
stages before a_j are done, and F's 0 … k − 1 of a_j. Write b_h for the number of B's of a_h that
are done. B of a micro-batch goes up, so b_1 ≤ b_2 ≤ … ≤ b_n, and b_j ≤ k, because B k of a_j comes
after F k. By the FIFO lemma (see `cpsat.constraints.add_order`) counts are all that matters.

A value that F of a_i makes and B or W of a_h frees is held by at least k + 1 − b_h micro-batches
if i < j, and by one less if i = j. Let B k − N of a_h not be done. Then k + 1 − b is at least N + 1
for a_h and all stages above it, and at least 1 for those from there to a_j. If these bytes and the
peak of F exceed the headroom, F k of a_j waits for B k − N of a_h. Qi et al. 2024, "Pipeline
Parallelism with Controllable Memory", count activations over the stages of a rank in the same way.
With one stage per rank this is the usual limit on activations in flight, `Instance.most_forwards`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from synth.solver.instance.instance import F, Instance


class InFlightCap(NamedTuple):
    """F k of a stage copy starts after B k − `most` of another copy on its rank ends.

    Attributes:
        freed: the copy of the B, of the same replica: the same one, or one above.
        most: micro-batches that may have begun on `copy` and not be done on `freed`; at least 1.
    """

    copy: int
    freed: int
    most: int


def in_flight_caps(instance: Instance) -> list[InFlightCap]:
    """Return the caps that exclude something, of all ranks.

    Args:
        instance: with lifetimes.
    """
    return [cap for rank in range(instance.num_ranks) for cap in _caps_of(instance, rank)]


def _caps_of(instance: Instance, rank: int) -> Iterator[InFlightCap]:
    headroom, (first, *others) = instance.headroom_bytes[rank], instance.held[rank]
    if headroom is None:
        return
    if not others:
        most = instance.most_forwards(first)
        if most < instance[first].num_micro_batches:
            yield InFlightCap(first, first, most)
        return
    for chain in instance.chains(rank):
        held = _held_bytes(instance, chain)
        for j, copy in enumerate(chain):
            known = instance[copy].num_micro_batches
            # B of a stage above comes later, so its cap implies the same one on stages below it.
            for h in range(j + 1):
                most = _most(instance, held, headroom, copy, j, h)
                if most < known:
                    known = most
                    yield InFlightCap(copy, chain[h], most)


def _held_bytes(instance: Instance, chain: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """Return the bytes that F of a place in the chain makes and B or W of another one frees."""
    place = {copy: at for at, copy in enumerate(chain)}
    held: dict[tuple[int, int], int] = {}
    for num_bytes, (made, made_by), (freed, freed_by) in instance.lifetimes:
        if made_by == F and freed_by != F and made in place and freed in place:
            key = place[made], place[freed]
            held[key] = held.get(key, 0) + num_bytes
    return held


def _most(
    instance: Instance, held: dict[tuple[int, int], int], headroom: int, copy: int, j: int, h: int
) -> int:
    """Return the most micro-batches that have begun on place j and are not done on place h."""
    each = certain = 0
    for (made, freed), num_bytes in held.items():
        if made > j:
            continue
        if freed <= h:
            each += num_bytes
        elif freed <= j:
            certain += num_bytes
        else:
            continue
        # F of the micro-batch that begins has not made its own yet.
        certain -= num_bytes if made == j else 0
    if each <= 0:
        return instance[copy].num_micro_batches
    free = headroom - certain - instance[copy].peak_above_bytes[F]
    return max(1, free // each)
