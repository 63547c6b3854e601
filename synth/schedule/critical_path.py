"""The critical path of a schedule in time, followed from its end.

Each op or transfer leads to the one that it waited for last. In a simulation every node starts when
the last of its predecessors ends, so that the times of the path's nodes add up to the makespan.
"""

from collections.abc import Callable

from synth.schedule.simulate import Timeline


def path_to(last: int | None, awaited: Callable[[int], int | None]) -> list[int]:
    """Return the nodes that lead to the last one, in order of time.

    Args:
        last: the node at which the path ends; None: there is no path.
        awaited: the node that a node waited for last; None: it waited for none.
    """
    path: list[int] = []
    while last is not None:
        path.append(last)
        last = awaited(last)
    return path[::-1]


def awaited_in(timeline: Timeline, node: int) -> int | None:
    """Return the first predecessor of a node that ends when it starts; None: it has none."""
    begin_us, end_us = timeline.start_us[node], timeline.end_us
    before = timeline.lowered.predecessors[node]
    return next((one for one in before if end_us[one] == begin_us), None)


def critical_nodes(timeline: Timeline) -> list[int]:
    """Return a path of ops and transfers that ends with the last op."""
    ops = range(timeline.lowered.first_node[-1])
    last = max(ops, key=timeline.end_us.__getitem__, default=None)
    return path_to(last, lambda node: awaited_in(timeline, node))
