"""Modulo scheduling (Rau 1994) of one micro-batch per period, from the shortest period upwards."""

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import ClassVar, NamedTuple

from synth.solver.improve.improver import SearchContext
from synth.solver.improve.modulo import several_micro_batches
from synth.solver.improve.modulo.one_micro_batch_model import OneMicroBatchModel, Pattern
from synth.solver.improve.modulo.unrolling import Unrolling
from synth.solver.instance.instance import SPLIT, Instance
from synth.solver.options import Part
from synth.solver.tuning import MODULO, ONE_MICRO_BATCH


class OneMicroBatch:
    """Offers modulo schedules of one micro-batch per period."""

    part: ClassVar[Part] = Part.ONE_PER_PERIOD

    def __init__(self, context: SearchContext) -> None:
        self.state, self.options = context.state, context.state.options

    def run(self, share: float, *, is_brief: bool) -> None:
        """Search with a counted effort, which is less where several per period follow."""
        unrolling = Unrolling(self.state)
        has_rounds = several_micro_batches.follows(unrolling.instance, self.options)
        effort = MODULO.one_share_with_several if has_rounds else MODULO.one_share
        for found in search(
            unrolling.instance,
            effort * self.options.time_limit_s,
            self.options.seed,
            self.options.num_workers,
            self.state.should_stop,
        ):
            unrolling.offer_best([found.orders(unrolling.instance)], "pattern")


def search(
    instance: Instance,
    seconds: float,
    seed: int,
    workers: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Pattern]:
    """Yield patterns of the shortest period that can be found, and of the next one.

    Args:
        seconds: CP-SAT's deterministic seconds for all of them together.
        should_stop: polled while solving.
    """
    found = 0
    for share in ONE_MICRO_BATCH.period_shares:
        if found == ONE_MICRO_BATCH.enough_patterns or should_stop():
            return
        each_s = seconds / len(ONE_MICRO_BATCH.period_shares)
        pattern = find(instance, share, each_s, seed=seed, workers=workers, should_stop=should_stop)
        if pattern is not None:
            found += 1
            yield pattern


def find(
    instance: Instance,
    period_share: float,
    seconds: float,
    *,
    ticks: int = ONE_MICRO_BATCH.ticks,
    seed: int = 0,
    workers: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> Pattern | None:
    """Find a pattern that keeps the caps, with the shortest way through the pipeline.

    Args:
        period_share: the period, as a multiple of the largest work of a rank: 1 has no bubble.
        seconds: CP-SAT's deterministic seconds.
        ticks: the ticks of the largest work of a rank for one micro-batch.
    """
    model = OneMicroBatchModel(instance, period_share, ticks)
    return model.solve(seconds, seed, workers, should_stop)


class LeastMemory(NamedTuple):
    """A limit for all ranks under which a pattern without bubble was found, and its bound.

    No pattern of one micro-batch in these ticks needs less than `not_below_bytes`. `is_exact` is
    True if the ticks are exact times, not rounded ones.
    """

    cap_bytes: int
    not_below_bytes: int
    is_exact: bool
    ticks: int


def least_memory(
    instance: Instance,
    static_bytes: Sequence[int],
    seconds: float,
    seed: int = 0,
    workers: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> LeastMemory | None:
    """Minimise the limit with which some pattern keeps the busiest rank always busy.

    Args:
        instance: without caps.
        static_bytes: by rank.
        seconds: CP-SAT's deterministic seconds.
        should_stop: polled while solving; then the least limit so far is returned.
    """
    ticks, is_exact = _exact_ticks(instance)
    model = OneMicroBatchModel(instance, 1.0, ticks, static_bytes)
    found = model.least(seconds, seed, workers, should_stop)
    if found is None:
        return None
    proven = -int(-found.bound // 1)
    return LeastMemory(found.value(model.cap), proven, is_exact, ticks)


def _exact_ticks(instance: Instance) -> tuple[int, bool]:
    """Return the ticks of the largest work, and True if all times are whole multiples of a tick."""
    times = [copy.duration_us[kind] for copy in instance.copies for kind in SPLIT]
    times += [lag for copy in instance.copies for lag in (copy.down_us, copy.up_us)]
    unit = gcd(*times)
    work_us = max(sum(instance[c].work_us for c in held) for held in instance.held)
    if unit and work_us // unit <= ONE_MICRO_BATCH.most_exact_ticks:
        return work_us // unit, True
    return ONE_MICRO_BATCH.ticks, False


IMPROVER = OneMicroBatch
