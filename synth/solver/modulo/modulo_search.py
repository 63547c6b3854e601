"""Modulo scheduling of several micro-batches per interval, for several sizes.

Under caps below the need of 1F1B, the best schedules repeat bursts and not single micro-batches.
Models of a fixed interval (`modulo_model`) are decided quickly, so the shortest interval is found
by trying (`interval_search`).
"""

import math
from collections.abc import Callable, Iterator
from itertools import islice

from synth.solver.instance.instance import Instance
from synth.solver.modulo.cyclic_ops import CyclicSchedule
from synth.solver.modulo.interval_search import IntervalSearch
from synth.solver.modulo.modulo_model import num_ops
from synth.solver.options import Part, SolveOptions
from synth.solver.tuning import SEVERAL_MICRO_BATCHES


def applies(instance: Instance) -> bool:
    """Return True if every rank holds one stage copy, of one replica."""
    return all(len(held) == 1 for held in instance.held) and len(instance) == instance.num_ranks


def follows(instance: Instance, options: SolveOptions) -> bool:
    """Return True if a search comes to these schedules: they apply, and are not left out."""
    return Part.MODULO not in options.without and applies(instance)


def search(
    instance: Instance,
    least_us: float,
    most_us: float,
    seconds: float,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[CyclicSchedule]:
    """Yield schedules of ever shorter intervals per micro-batch.

    Args:
        least_us: per micro-batch; nothing shorter is tried. It may be an estimate.
        most_us: per micro-batch; longer ones are of no use.
        seconds: effort for all of them together, in terms of `decide`.
    """
    sizes, is_found = list(_sizes(instance)), False
    refuted_rates_us: dict[int, float] = {}
    apart_us = (max(c.work_us, c.down_apart_us, c.up_apart_us) for c in instance.copies)
    least_us = max(1, least_us, *apart_us)
    for place, size in enumerate(sizes):
        # The first sizes find most; effort that they do not use is left for the others.
        share = max(SEVERAL_MICRO_BATCHES.least_share, 1 / (len(sizes) - place))
        search_of_size = IntervalSearch(
            instance, size, share * seconds, seed + place, should_stop, is_challenger=is_found
        )
        if not search_of_size.is_worth_a_try:
            continue
        # A rate that is refuted for a multiple of the size is refuted for the size too: its rounds,
        # repeated, would be rounds of the multiple.
        rates_us = (us for multiple, us in refuted_rates_us.items() if multiple % size == 0)
        shortest_us = max([least_us, *rates_us])
        for found in search_of_size.run(math.ceil(size * shortest_us), int(size * most_us)):
            most_us, is_found = min(most_us, found.rate), True
            yield found
        refuted_rates_us[size] = search_of_size.refuted_us / size
        seconds -= search_of_size.spent_s


def _sizes(instance: Instance) -> Iterator[int]:
    """Yield the burst that fills memory, or its largest part that fits the model, then others."""
    burst = instance.most_forwards(0)
    sizes = [*SEVERAL_MICRO_BATCHES.sizes]
    if burst < instance.copies[0].num_micro_batches:
        parts = (size for size in range(burst, 1, -1) if burst % size == 0)
        sizes = [*islice((size for size in parts if _is_worth(instance, size)), 1), *sizes]
    for size in dict.fromkeys(sizes):
        if _is_worth(instance, size):
            yield size


def _is_worth(instance: Instance, size: int) -> bool:
    num_micro_batches = min(copy.num_micro_batches for copy in instance.copies)
    return (
        num_ops(instance, size) <= SEVERAL_MICRO_BATCHES.most_ops and 2 * size <= num_micro_batches
    )
