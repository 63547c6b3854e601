"""Recomputation of stages: F keeps only its input, and R rebuilds the rest before B.

Searches have no R. In their costs the B of such a stage takes the time of R and B, its peak is the
higher of the two, and F keeps nothing (`costs.merged_recomputation`). Orders are written out, with
each such B as R B, and then verified and simulated with the true costs:

    searched     | F0 | F1 |   B0    |   B1    | W0 | W1 |
    written out  | F0 | F1 | R0 | B0 | R1 | B1 | W0 | W1 |    R0 need not wait for B0's gradient
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.ops import Op

BACKWARDS = (OpKind.B, OpKind.BW)


def written_out(schedule: Schedule, stages: Collection[int]) -> Schedule:
    """The schedule with R right before each B or BW of some stages."""

    def ops(program: Sequence[Op]) -> Iterator[Op]:
        for op in program:
            if op.stage in stages and op.kind in BACKWARDS:
                yield op._replace(kind=OpKind.R)
            yield op

    return replace(schedule, programs=tuple(tuple(ops(program)) for program in schedule.programs))


def without_recompute(schedule: Schedule) -> Schedule:
    """The schedule without its R's, the reverse of `written_out`."""
    programs = tuple(
        tuple(op for op in program if op.kind != OpKind.R) for program in schedule.programs
    )
    return replace(schedule, programs=programs)


def recomputed(schedule: Schedule) -> list[int]:
    """The stages of which R's are listed."""
    ops = (op for program in schedule.programs for op in program)
    return sorted({op.stage for op in ops if op.kind == OpKind.R})
