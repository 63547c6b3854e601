"""List schedules whose micro-batches begin at a uniform interval.

Under a tight memory limit, micro-batches that begin as soon as there is room come in bursts: all
reach the same stages at the same time, fill the memory there, and wait for each other. At a uniform
interval each one passes through the ranks in another phase than its neighbours, so that their
lifetimes fit together. That is how building blocks are repeated (Qi et al. 2024, arXiv 2405.15362,
section 3); here every op still waits for its inputs, its rank and memory, so stages may be unequal
and links slow.
"""

from collections.abc import Iterator

from synth.solver.improve.priority_rules import PriorityRule
from synth.solver.instance.instance import Instance
from synth.solver.tuning import UNIFORM_INTERVALS


def uniform_rules(instance: Instance) -> list[list[PriorityRule]]:
    """Return the rules to try at each interval: B first, W soon, older micro-batches first."""
    found = []
    for fused, backlog, patience in UNIFORM_INTERVALS.rules:
        rule = PriorityRule(1, False, patience, backlog, fused)
        found.append([rule._replace(limit=copy.num_micro_batches) for copy in instance.copies])
    return found


def intervals_us(instance: Instance) -> Iterator[int]:
    """Yield intervals from below the work of the busiest rank on, each longer by the same share.

    Each replica begins one micro-batch in an interval, so the work is that of one of each.
    """
    work_us = max(sum(instance[copy].work_us for copy in held) for held in instance.held)
    interval_us = max(1.0, UNIFORM_INTERVALS.first * work_us)
    while True:
        yield round(interval_us)
        interval_us *= UNIFORM_INTERVALS.ratio


def least_us(instance: Instance, interval_us: int) -> int:
    """Return the least makespan at an interval: the last micro-batch has yet to begin."""
    most = max(copy.num_micro_batches for copy in instance.copies)
    return (most - 1) * interval_us
