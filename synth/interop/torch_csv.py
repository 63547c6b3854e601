"""PyTorch's schedule files, which `_PipelineScheduleRuntime` reads with `_load_csv`.

A row per rank and a cell per action: stage, letter, micro-batch, as in `1F0`. The letters are F,
I (our B), W and B (our BW). Besides the plain form, `compute_only`, there is `compute_comms`
(`torch_comms_csv`). F and B that run at once are one cell, `(0F4;3B1)OVERLAP_F_B`.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Set

from synth.errors import SynthError
from synth.interop.expressible import check_expressible
from synth.interop.loss_order import in_loss_order
from synth.interop.torch_csv_reader import from_torch_csv as from_torch_csv
from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.ops import Op

LETTERS = {OpKind.F: "F", OpKind.B: "I", OpKind.W: "W", OpKind.BW: "B"}


def to_torch_csv(schedule: Schedule) -> str:
    """Write a schedule in the form `compute_only`, its micro-batches numbered by `in_loss_order`.

    Optimizer steps are not listed: PyTorch leaves them to the training loop. Nor is the buffering:
    its runtime has none.

    Raises:
        SynthError: the schedule recomputes with R, or `check_expressible` refuses it.
    """
    check_expressible(schedule, "PyTorch's runtime")
    text = io.StringIO()
    numbered = in_loss_order(schedule)
    csv.writer(text, lineterminator="\n").writerows(
        _cells(program, numbered.overlapped) for program in numbered.programs
    )
    return text.getvalue()


def _cells(program: Iterable[Op], overlapped: Set[Op]) -> Iterator[str]:
    ops = (op for op in program if op.kind != OpKind.STEP)
    for op in ops:
        yield f"({_cell(op)};{_cell(next(ops))})OVERLAP_F_B" if op in overlapped else _cell(op)


def _cell(op: Op) -> str:
    if op.kind not in LETTERS:
        raise SynthError(
            f"PyTorch's runtime has no op such as {op}, only {', '.join(LETTERS)}; solve with "
            f"--recompute none"
        )
    return f"{op.stage}{LETTERS[op.kind]}{op.microbatch}"
