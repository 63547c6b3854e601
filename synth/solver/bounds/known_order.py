"""The value that a few ranks attain in the order of a known schedule, with others as delays.

In a fixed order a model of some ranks is a system of differences, whose least solution is made of
longest paths. Memory depends on the order alone, and the known schedule keeps its limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.instance.instance import Node
from synth.solver.instance.timing import TimedOrders


class _Difference(NamedTuple):
    """The variable `later` is at least `earlier` and `apart`."""

    earlier: int
    later: int
    apart: int


def attained_us(model: ExactModel, timing: TimedOrders) -> int | None:
    """Return the objective of the model's ranks in a known order.

    None if it is a sum of spans, or a period from starts that differ between schedules, or if more
    is to be ordered than F, B and W: recomputation that runs by itself, and reductions.

    Args:
        model: minimises a makespan or a period; its memory limits are not looked at.
        timing: all starts of the known schedule.
    """
    copies = [model.ops.instance[copy] for copy in model.ops.copies]
    has_more = any(copy.again_us or copy.reduce_us for copy in copies)
    starts_vary = any(not isinstance(origin, int) for origin in model.ops.origin.values())
    if has_more or starts_vary or model.ops.objective.is_sum:
        return None
    index = {node: _index(start) for node, start in model.ops.start.items()}
    known_us = {index[node]: timing.starts[node] for node in index}
    differences = [*_differences_of(model), *_orders(model, timing, index)]
    # Along the known starts, so that nearly all paths are complete after one pass.
    differences.sort(key=lambda one: known_us.get(one.earlier, 0))
    least_us: list[int] = [variable.domain[0] for variable in model.cp.proto.variables]
    for _ in model.ops.start:
        is_done = True
        for earlier, later, apart in differences:
            if least_us[earlier] + apart > least_us[later]:
                least_us[later] = least_us[earlier] + apart
                is_done = False
        if is_done:
            return least_us[_index(model.value)]
    return None


def _index(variable: cp_model.LinearExprT) -> int:
    assert isinstance(variable, cp_model.IntVar)
    return variable.index


def _differences_of(model: ExactModel) -> Iterator[_Difference]:
    """Yield the differences of two variables that the model asks for under no condition."""
    for constraint in model.cp.proto.constraints:
        if not constraint.has_linear() or len(constraint.enforcement_literal):
            continue
        linear = constraint.linear
        if sorted(linear.coeffs) != [-1, 1]:
            continue
        one, other = linear.vars if linear.coeffs[0] == 1 else reversed(linear.vars)
        least_us, most_us = linear.domain[0], linear.domain[1]
        yield _Difference(other, one, least_us)
        yield _Difference(one, other, -most_us)


def _orders(
    model: ExactModel, timing: TimedOrders, index: dict[Node, int]
) -> Iterator[_Difference]:
    """Yield the order of each rank's ops."""
    instance = model.ops.instance

    def duration_us(node: Node) -> int:
        copy, op = node
        return instance[copy].duration_us[op.kind]

    for rank in model.ops.ranks:
        nodes = [node for node in index if instance[node[0]].rank == rank]
        # Ops of no time come before those that start with them.
        nodes.sort(key=lambda node: (timing.starts[node], duration_us(node)))
        for before, after in pairwise(nodes):
            yield _Difference(index[before], index[after], duration_us(before))
