"""The activations of a micro-batch on its rank between F and W: the memory of the papers.

They are the saved values, and boundary values for as long as a layer holds them. Sent and received
values, parameters, and the workspace of ops are not included. The exact memory of a schedule is
that of its lowered programs.
"""

from collections.abc import Sequence

from synth.costs.costs import Costs
from synth.op_kinds import OpKind
from synth.schedule.ops import Op

F, B, W = OpKind.F, OpKind.B, OpKind.W


def activation_bytes(costs: Costs, stage: int) -> dict[OpKind, int]:
    """The bytes of one micro-batch after F, and after B.

    If the costs contain no memory, a micro-batch counts 1 from its F to its W.
    """
    held_bytes = {kind: _bytes_after(costs, stage, kind) for kind in (F, B)}
    return held_bytes if any(held_bytes.values()) else {F: 1, B: 1}


def growth_bytes(costs: Costs, stage: int) -> dict[OpKind, int]:
    """The change of a rank's bytes by F, B and W of one micro-batch."""
    held_bytes = activation_bytes(costs, stage)
    return {F: held_bytes[F], B: held_bytes[B] - held_bytes[F], W: -held_bytes[B]}


def peak_activation_bytes(costs: Costs, program: Sequence[Op]) -> int:
    """The most bytes that a rank holds while it runs a program."""
    growths = {stage: growth_bytes(costs, stage) for stage in {op.stage for op in program}}
    level = most = 0
    for op in program:
        level += growths[op.stage][op.kind]
        most = max(most, level)
    return most


def _bytes_after(costs: Costs, stage: int, kind: OpKind) -> int:
    own = costs.stages[stage]
    inputs = costs.stages[stage - 1].output_bytes if stage else 0
    held = [(own.input_until, inputs), (own.output_until, own.output_bytes)]
    if kind == B:
        held.append((own.gradient_until, own.returned_bytes))
    saved = own.saved_bytes if kind == F else own.saved_w_bytes
    return saved + sum(size for until, size in held if until.rank_in_chain > kind.rank_in_chain)
