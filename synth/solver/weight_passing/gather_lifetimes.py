"""The lifetimes of a rank's values: their makers and readers, as sums over the slots of its ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from synth.op_kinds import OpKind
from synth.schedule.lowering.effects import Effects
from synth.schedule.ops import Op, Value
from synth.solver.cpsat.or_tools import cp_model

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW

# By slot, 1 if an op stands there.
Sums: TypeAlias = "Sequence[cp_model.LinearExpr]"
# A reader, and 1 if it is there.
Reader: TypeAlias = "tuple[Sums, cp_model.LinearExpr | int]"


def sum_of(terms: Iterable[cp_model.LinearExpr]) -> cp_model.LinearExpr:
    """The sum of expressions, of which there may be none."""
    found: cp_model.LinearExpr = cp_model.LinearExpr.sum(list(terms))
    return found


def find_lives(
    effects: Effects,
    cells: Iterable[tuple[int, int]],
    at: Mapping[Op, Sequence[cp_model.IntVar]],
    split: Mapping[tuple[int, int], cp_model.IntVar],
) -> Iterator[tuple[Value, Sums, list[Reader]]]:
    """Yield the values that take memory, with the slots of their maker and of their readers.

    Args:
        effects: the effects of the ops, with rounds for micro-batches.
        cells: all stages and rounds.
        at: by op and slot, 1 if it stands there.
        split: 1 for the cells with B and W, not BW.
    """
    readers: dict[Value, list[Reader]] = {}
    makers: dict[Value, Sums] = {}
    for cell in cells:
        backs = zip(at[Op(B, *cell)], at[Op(BW, *cell)], strict=True)
        ways: list[tuple[Op, Sums, cp_model.LinearExpr | int]] = [
            (Op(F, *cell), at[Op(F, *cell)], 1),
            (Op(BW, *cell), [b + bw for b, bw in backs], 1),  # B reads the same
            (Op(W, *cell), at[Op(W, *cell)], split[cell]),
        ]
        for op, slots, is_there in ways:
            for value in effects.reads(op):
                readers.setdefault(value, []).append((slots, is_there))
            for value in effects.makes(op):
                makers[value] = slots
        for value in effects.makes(Op(B, *cell)):
            makers.setdefault(value, at[Op(B, *cell)])
    for value, maker in makers.items():
        if effects.bytes_of(value) and value in readers:
            yield value, maker, readers[value]
