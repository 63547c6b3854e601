"""An instance as arrays, for list scheduling by compiled code (`list_kernel`)."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from synth.op_kinds import OpKind
from synth.solver.evaluate.op_table import NONE
from synth.solver.evaluate.order_arrays import Ints
from synth.solver.instance.completion_reserve import CompletionReserve
from synth.solver.instance.instance import BW, B, F, Instance, W

Floats = npt.NDArray[np.float64]

# The kinds of op by their numbers.
KINDS: tuple[OpKind, ...] = (F, B, W, BW)

# Of stage copies: the rank, the stage, the copies before and after it (`NONE` at the ends), the
# ways down to the next and up to the one before, the part of B there that needs no gradient, and
# the micro-batches; then four columns by kind each for duration, lasting change and peak.
RANK, STAGE, ABOVE, BELOW, DOWN, UP, LEAD, COUNT = range(8)
DURATION, DELTA, PEAK = 8, 12, 16
COPY_COLUMNS = 20

# Of rules, one for each copy.
LIMIT, FORWARD_FIRST, BACKLOG, FUSED, EAGER = range(5)


class ListArrays(NamedTuple):
    """An instance: all stage copies, and for each rank its copies and its chains of copies.

    Parts of ranks and of chains begin where `first_…` says, and end where the next one begins.
    """

    copies: Ints
    headroom: Ints
    first_held: Ints
    held: Ints
    first_chain: Ints
    first_link: Ints
    links: Ints
    first_reserve: Ints
    reserves: Ints


def list_arrays(instance: Instance) -> ListArrays:
    """Return an instance as arrays."""
    table = np.zeros((len(instance), COPY_COLUMNS), np.int64)
    for row, copy in zip(table, instance.copies, strict=True):
        above, below = (NONE if other is None else other for other in (copy.above, copy.below))
        up_us = lead_us = 0
        if copy.above is not None:
            up_us, lead_us = instance[copy.above].up_us, instance[copy.above].lead_us
        row[: DURATION] = (
            copy.rank, copy.stage, above, below, copy.down_us, up_us, lead_us,
            copy.num_micro_batches,
        )  # fmt: skip
        of_kinds = (copy.duration_us, copy.delta_bytes, copy.peak_above_bytes)
        row[DURATION:] = [of_kind[kind] for of_kind in of_kinds for kind in KINDS]
    chains = [
        [CompletionReserve(instance, chain) for chain in instance.chains(rank)]
        for rank in range(instance.num_ranks)
    ]
    every = [chain for of_rank in chains for chain in of_rank]
    return ListArrays(
        table,
        np.array([NONE if room is None else room for room in instance.headroom_bytes], np.int64),
        *_joined(instance.held),
        _joined(chains)[0],
        *_joined([chain.copies for chain in every]),
        *_joined([chain.reserve_bytes for chain in every]),
    )


def _joined(parts: Sequence[Sequence[object]]) -> tuple[Ints, Ints]:
    """Return where each of some parts begins in all of them joined, and these if they are ints."""
    firsts = np.array(list(accumulate(map(len, parts), initial=0)), np.int64)
    joined = [number if isinstance(number, int) else 0 for part in parts for number in part]
    return firsts, np.array(joined, np.int64)
