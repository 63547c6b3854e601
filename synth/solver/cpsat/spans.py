"""The objective of the exact model: the makespan, the period, or a sum of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from synth.solver.cpsat.op_variables import OpVariables
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.reductions import add_reductions
from synth.solver.instance.instance import STEP, B, F, OpIndex, W

_Origins: TypeAlias = "Mapping[int, cp_model.IntVar | int]"


class SpanVariable(NamedTuple):
    """The makespan or the period, its weight, and by rank the moment from which it counts."""

    length: cp_model.IntVar
    weight: int
    origins: _Origins


class Minimised(NamedTuple):
    """The value that a model minimises, and the spans that it is made of, if it is."""

    value: cp_model.LinearExprT
    spans: tuple[SpanVariable, ...] = ()


# Adds an objective to a model with all its constraints.
Minimise = Callable[[OpVariables], Minimised]


def minimise_spans(ops: OpVariables, horizon_us: int) -> Minimised:
    """Minimise the last end of a rank, less its first start for the period, or a sum.

    Copies above the modelled ones end no sooner than the last gradients that reach them and the W's
    that are then left.

    Args:
        horizon_us: upper limit of the objective.
    """
    objective, instance = ops.objective, ops.instance
    reduced = add_reductions(ops)
    spans = []
    if objective.makespans:
        begins = dict.fromkeys(range(instance.num_ranks), 0)
        spans.append(_span(ops, begins, objective.makespans, reduced))
    if objective.periods:
        for rank, origin in ops.origin.items():
            if not isinstance(origin, int):
                for index in instance.held[rank]:
                    ops.cp.add(origin <= ops.start[index, OpIndex(F, 0)])
        known = dict(enumerate(instance.origins_us or ()))
        spans.append(_span(ops, {**known, **ops.origin}, objective.periods, reduced))
    value = spans[0].length
    if len(spans) > 1:
        value = ops.cp.new_int_var(0, horizon_us, "value")
        ops.cp.add(value == sum(span.length * span.weight for span in spans))
    ops.cp.minimize(value)
    return Minimised(value, tuple(spans))


def _span(
    ops: OpVariables, origins: _Origins, weight: int, reduced: Mapping[int, cp_model.IntVar]
) -> SpanVariable:
    """Add a variable that no rank's end, less its origin, exceeds."""
    length = ops.cp.new_int_var(0, ops.longest_us, "span")
    for rank in ops.ranks:
        for end in ends_of_rank(ops, rank, reduced):
            ops.cp.add(length >= end - origins[rank])
    for above, end in ends_above(ops):
        rank = ops.instance[above].rank
        if rank in origins:
            ops.cp.add(length >= end - origins[rank])
    return SpanVariable(length, weight, origins)


def ends_of_rank(
    ops: OpVariables, rank: int, reduced: Mapping[int, cp_model.IntVar]
) -> Iterator[cp_model.LinearExpr]:
    """Yield the ends of a rank: STEPs come last, in order, each after its own reduction."""
    instance, held = ops.instance, ops.instance.held[rank]
    for index in held:
        yield ops.end(index, OpIndex(W, instance[index].last)) + instance.step_us(rank)
    for place, index in enumerate(held):
        end = reduced.get(instance[index].stage)
        if end is not None:
            yield end + sum(instance[copy].duration_us[STEP] for copy in held[place:])


def ends_above(ops: OpVariables) -> Iterator[tuple[int, cp_model.LinearExpr]]:
    """Yield copies above the modelled ones, and the least ends of their ranks.

    After B k has come up to a copy, it has at least m − 1 − k B's and m − k W's left. Where a link
    is slower than that, it has the last W left after m − 1 − k transfers.
    """
    modelled, instance = set(ops.copies), ops.instance
    for index in ops.copies:
        for above in instance.chain_above(index):
            if above in modelled:
                break
            copy = instance[above]
            way_us = instance.way_up_us(index, above) + copy.duration_us[B]
            slowest_us = instance.slowest_up_us(index, above)
            for k in range(copy.num_micro_batches):
                behind = copy.num_micro_batches - 1 - k
                work_us = behind * (copy.duration_us[B] + copy.duration_us[W])
                left_us = max(work_us, behind * slowest_us) + copy.duration_us[W]
                end = ops.end(index, OpIndex(B, k)) + way_us + left_us
                yield above, end + instance.step_us(copy.rank)
