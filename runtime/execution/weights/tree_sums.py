"""Reduction of gradients along a tree: a rank adds those of the ranks below, and passes the sum on.

This is REDUCE_GRAD where gradients go by `Route.TREE`. It takes the gradient accumulated on its
rank, adds the sums that have come, and leaves its own sum for the transfer to the rank above. The
home adds its sum to the gradient that its STEP uses.
"""

from collections.abc import Callable

from synth.schedule.lowering.effects import Effects
from synth.schedule.ops import Op, ValueKind

from ..base.boundary import Tensors
from ..base.step_table import Slots, StepTable
from .kept_protocol import KeptProtocol


def sums_below(effects: Effects, op: Op, slots: Slots) -> list[int]:
    """The slots of the sums for which a REDUCE_GRAD waits."""
    return [slots.number(v) for v in effects.reads(op) if v.kind == ValueKind.GRAD_SUM]


def passing_up(
    effects: Effects, op: Op, kept: KeptProtocol, slots: Slots, table: StepTable
) -> Callable[[], None]:
    """Return the work of a REDUCE_GRAD.

    Args:
        kept: what the rank keeps of its stage.
        slots: the slots of the table's values.
        table: shared by all steps.
    """
    own = next(slots.number(v) for v in effects.reads(op) if v.kind == ValueKind.GRAD_ACC)
    below = sums_below(effects, op, slots)
    made = [slots.number(value) for value in effects.makes(op)]

    def run() -> None:
        total = _present(table, own, op)
        for slot in below:
            kept.add_from_below(total, _present(table, slot, op))
        if made:
            table.values[made[0]] = total
        else:
            kept.add(total)

    return run


def _present(table: StepTable, slot: int, op: Op) -> Tensors:
    tensors = table.values[slot]
    if tensors is None:
        raise RuntimeError(f"a gradient that {op} adds up has not come")
    return tensors
