"""List schedules whose micro-batches begin at a uniform interval.

Under a tight memory limit, micro-batches that begin as soon as there is room come in bursts: all
reach the same stages at the same time, fill the memory there, and wait for each other. At a uniform
interval each one passes through the ranks in another phase than its neighbours, so that their
lifetimes fit together. That is how building blocks are repeated (Qi et al. 2024, arXiv 2405.15362,
section 3); here every op still waits for its inputs, its rank and memory, so stages may be unequal
and links slow.
"""

from collections.abc import Callable, Iterator

from synth.solver.evaluate.evaluate import never
from synth.solver.improve.list_scheduling import Built, ListBuilder
from synth.solver.improve.priority_rules import PriorityRule
from synth.solver.instance.instance import Instance
from synth.solver.tuning import UNIFORM_INTERVALS


def at_uniform_intervals(
    builder: ListBuilder[Built], should_stop: Callable[[], bool] = never
) -> list[Built]:
    """Build orders at ever longer intervals, until the last micro-batch begins too late.

    Without a memory limit there are none, as nothing is gained by waiting, and of instances with
    more ops than the builder places for all orders.

    Args:
        builder: of the instance.
        should_stop: polled before each order.
    """
    instance, most_ops = builder.instance, builder.most_uniform_ops
    choices, found = _rules(instance), list[Built]()
    is_free = all(room is None for room in instance.headroom_bytes)
    if is_free or instance.num_ops > most_ops:
        return found
    last = max(copy.num_micro_batches for copy in instance.copies) - 1
    for interval_us in _intervals_us(instance, most_ops // len(choices)):
        if found and last * interval_us >= min(one.value_us for one in found):
            break
        for rules in choices:
            if should_stop():
                return found
            if (one := builder.build(rules, interval_us)) is not None:
                found.append(one)
    return found


def _rules(instance: Instance) -> list[list[PriorityRule]]:
    """Return the rules to try at each interval: B first, W soon, older micro-batches first."""
    found = []
    for fused, backlog, patience in UNIFORM_INTERVALS.rules:
        rule = PriorityRule(1, False, patience, backlog, fused)
        found.append([rule._replace(limit=copy.num_micro_batches) for copy in instance.copies])
    return found


def _intervals_us(instance: Instance, most_ops: int) -> Iterator[int]:
    """Yield intervals from below the work of the busiest rank on, each longer by the same share.

    Each replica begins one micro-batch in an interval, so the work is that of one of each.
    """
    tuning = UNIFORM_INTERVALS
    ratio = tuning.range ** (instance.num_ops / most_ops)
    ratio = min(tuning.most_ratio, max(tuning.ratio, ratio))
    work_us = max(sum(instance[copy].work_us for copy in held) for held in instance.held)
    interval_us = max(1.0, tuning.first * work_us)
    last_us = tuning.range * interval_us
    while interval_us <= last_us:
        yield round(interval_us)
        interval_us *= ratio
