"""List schedules whose micro-batches have release dates: moments before which none may begin.

Under a tight memory limit, micro-batches that begin as soon as there is room come in bursts: all
reach the same stages at the same time, fill the memory there, and wait for each other. At a uniform
interval each one passes through the ranks in another phase than its neighbours, so that their
lifetimes fit together. That is how building blocks are repeated (Qi et al. 2024, arXiv 2405.15362,
section 3); here every op still waits for its inputs, its rank and memory, so stages may be unequal
and links slow.

At a uniform interval the pipeline fills slowly, and memory stands empty meanwhile. So the first
micro-batches also begin in one burst, about as many as ranks, which keeps all ranks busy; the
others follow at an interval. Local search then moves single release dates, and changes rules.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Generic, NamedTuple

from synth.solver.evaluate.evaluate import never
from synth.solver.improve.list_scheduling import Built, ListBuilder
from synth.solver.improve.priority_rules import PriorityRule, change
from synth.solver.instance.instance import Instance
from synth.solver.tuning import RELEASE_DATES

Rules = Sequence[PriorityRule]


class _Start(NamedTuple):
    """Rules of all stage copies, and the release dates of the micro-batches of each replica."""

    rules: Rules
    releases_us: tuple[int, ...]


class _Dated(NamedTuple, Generic[Built]):
    """A list schedule, and what it was made from."""

    built: Built
    start: _Start


def at_release_dates(
    builder: ListBuilder[Built],
    seed: int = 0,
    should_stop: Callable[[], bool] = never,
    share: float = 1.0,
    most_orders: int | None = None,
) -> list[Built]:
    """Build orders at uniform intervals, then after a burst, then at changed release dates.

    Without a memory limit there are none, as nothing is gained by waiting, and of instances with
    more ops than the builder places for all orders.

    Args:
        builder: of the instance.
        seed: of the changes.
        should_stop: polled before each order.
        share: of the ops that the builder places at most.
        most_orders: to build, without those that fail; None: as many as that share allows.
    """
    instance = builder.instance
    num_left = int(share * builder.most_dated_ops) // instance.num_ops
    num_left = num_left if most_orders is None else min(num_left, most_orders)
    is_free = all(room is None for room in instance.headroom_bytes)
    if is_free or num_left < 1:
        return []
    rng = random.Random(seed)
    found = _at_uniform_intervals(builder, RELEASE_DATES.uniform_share * num_left, should_stop)
    num_left -= len(found)
    if found:
        bursts = _after_a_burst(builder, found, num_left // 2, rng, should_stop)
        num_left -= len(bursts)
        found += bursts
        best = min(found, key=lambda one: one.built.value_us)
        found += _climbed(builder, best, num_left, rng, should_stop)
    return [one.built for one in found]


def _at_uniform_intervals(
    builder: ListBuilder[Built], most: float, should_stop: Callable[[], bool]
) -> list[_Dated[Built]]:
    """Build orders at ever longer intervals, until the last micro-batch begins too late."""
    choices, found = _rules(builder.instance), list[_Dated[Built]]()
    count = _count(builder.instance)
    for interval_us in _intervals_us(builder.instance, most / len(choices)):
        best_us = min((one.built.value_us for one in found), default=None)
        if best_us is not None and (count - 1) * interval_us >= best_us:
            break
        releases_us = tuple(n * interval_us for n in range(count))
        for rules in choices:
            if should_stop():
                return found
            _build(builder, _Start(rules, releases_us), found)
    return found


def _after_a_burst(
    builder: ListBuilder[Built],
    uniform: Sequence[_Dated[Built]],
    most: int,
    rng: random.Random,
    should_stop: Callable[[], bool],
) -> list[_Dated[Built]]:
    """Build some of the orders that begin with a burst, by the best rules at uniform intervals."""
    instance, tuning = builder.instance, RELEASE_DATES
    found, count = list[_Dated[Built]](), _count(instance)
    by_value = sorted(uniform, key=lambda one: one.built.value_us)
    choices: list[Rules] = []
    for one in by_value:
        if one.start.rules not in choices and len(choices) < tuning.rules_after_burst:
            choices.append(one.start.rules)
    apart_us, busy_us = max(instance.slowest_f_us), _busy_us(instance)
    best_us = by_value[0].start.releases_us[1] if count > 1 else 0
    num_ranks = instance.num_ranks / len({copy.replica for copy in instance.copies})
    sizes = sorted({round(share * num_ranks) for share in tuning.burst_shares})
    intervals_us = {best_us, *(round(share * busy_us) for share in tuning.interval_shares)}
    grid = list(product(choices, sizes, sorted(intervals_us), tuning.pauses))
    for rules, size, interval_us, pause in rng.sample(grid, len(grid)):
        if len(found) >= most or should_stop():
            break
        if not 1 < size < count:
            continue
        next_us = round((size - 1) * apart_us + pause * interval_us)
        releases_us = tuple(
            n * apart_us if n < size else next_us + (n - size + 1) * interval_us
            for n in range(count)
        )
        _build(builder, _Start(rules, releases_us), found)
    return found


def _climbed(
    builder: ListBuilder[Built],
    best: _Dated[Built],
    most: int,
    rng: random.Random,
    should_stop: Callable[[], bool],
) -> list[_Dated[Built]]:
    """Keep each change of release dates or rules that is no worse; return what is better."""
    improved, busy_us = list[_Dated[Built]](), _busy_us(builder.instance)
    for _ in range(most):
        if should_stop():
            break
        start = best.start
        if rng.random() < RELEASE_DATES.dates_share:
            start = start._replace(releases_us=_moved(start.releases_us, busy_us, rng))
        else:
            start = start._replace(rules=_changed(builder.instance, start.rules, rng))
        built = builder.build(*start)
        if built is not None and built.value_us <= best.built.value_us:
            is_better = built.value_us < best.built.value_us
            best = _Dated(built, start)
            improved += [best] * is_better
    return improved


def _moved(releases_us: Sequence[int], busy_us: int, rng: random.Random) -> tuple[int, ...]:
    """Move one release date, or all from one on, or stretch the distances of these."""
    dates, first = list(releases_us), rng.randrange(len(releases_us))
    by_us = round(rng.gauss(0, RELEASE_DATES.deviation) * busy_us)
    stretch = 1 + rng.gauss(0, RELEASE_DATES.stretch_deviation)
    which = rng.randrange(3)
    for n in range(first, first + 1 if which == 0 else len(dates)):
        if which == 2:
            by_us = round((releases_us[n] - releases_us[first]) * (stretch - 1))
        dates[n] = max(0, dates[n] + by_us)
    return tuple(sorted(dates))


def _changed(instance: Instance, rules: Rules, rng: random.Random) -> Rules:
    """Change the rules of one or a few copies."""
    new, most = list(rules), len(rules)
    num_changed = min(most, rng.choice((1, 1, 2, 4, max(1, most // 4))))
    for copy in rng.sample(range(most), num_changed):
        new[copy] = change(new[copy], instance[copy].num_micro_batches, rng)
    return new


def _build(builder: ListBuilder[Built], start: _Start, found: list[_Dated[Built]]) -> None:
    built = builder.build(*start)
    if built is not None:
        found.append(_Dated(built, start))


def _count(instance: Instance) -> int:
    """Return the most micro-batches of a replica."""
    return max(copy.num_micro_batches for copy in instance.copies)


def _busy_us(instance: Instance) -> int:
    """Return the work of the busiest rank for a micro-batch of each replica."""
    return max(sum(instance[copy].work_us for copy in held) for held in instance.held)


def _rules(instance: Instance) -> list[Rules]:
    """Return the rules to try at each interval: older micro-batches first, W soon or in gaps."""
    found: list[Rules] = []
    most = _count(instance)
    for fused, forward_first, backlog, patience in RELEASE_DATES.rules:
        rule = PriorityRule(1, forward_first, patience, most if backlog is None else backlog, fused)
        found.append([rule._replace(limit=copy.num_micro_batches) for copy in instance.copies])
    return found


def _intervals_us(instance: Instance, most: float) -> Iterator[int]:
    """Yield intervals from below the work of the busiest rank on, each longer by the same share.

    Each replica begins one micro-batch in an interval, so the work is that of one of each.
    """
    tuning = RELEASE_DATES
    ratio = min(tuning.most_ratio, max(tuning.ratio, tuning.range ** (1 / most)))
    interval_us = max(1.0, tuning.first * _busy_us(instance))
    last_us = tuning.range * interval_us
    while interval_us <= last_us:
        yield round(interval_us)
        interval_us *= ratio
