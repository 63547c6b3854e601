"""PyTorch's schedule files, which `_PipelineScheduleRuntime` reads with `_load_csv`.

A row per rank and a cell per action: stage, letter, micro-batch, as in `1F0`. The letters are F,
I (our B), W and B (our BW). Besides the plain form, `compute_only`, there is `compute_comms`, which
also lists transfers; they follow from the order, so here they are read over.
"""

import csv
import io
import re

from synth.errors import SynthError
from synth.interop.expressible import check_expressible
from synth.op_kinds import OpKind
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from synth.units import shown

_LETTERS = {OpKind.F: "F", OpKind.B: "I", OpKind.W: "W", OpKind.BW: "B"}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}
_ACTION = re.compile(r"(\d{1,6})([FIWB])(\d{1,9})")
_IMPLIED = re.compile(r"\d+(?:(?:SEND|RECV)_[FB]\d+|UNSHARD|RESHARD|REDUCE_GRAD)")
_OVERLAPPED = re.compile(r"\(([^)]*)\)OVERLAP_F_B")


def to_torch_csv(schedule: Schedule) -> str:
    """Write a schedule in the form `compute_only`.

    Optimizer steps are not listed: PyTorch leaves them to the training loop. Nor is the buffering:
    its runtime has none.

    Raises:
        SynthError: the schedule recomputes with R, or `check_expressible` refuses it.
    """
    check_expressible(schedule, "PyTorch's runtime")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [_cell(op) for op in program if op.kind != OpKind.STEP] for program in schedule.programs
    )
    return text.getvalue()


def _cell(op: Op) -> str:
    if op.kind not in _LETTERS:
        raise SynthError(
            f"PyTorch's runtime has no op such as {op}, only {', '.join(_LETTERS)}; solve with "
            f"--recompute none"
        )
    return f"{op.stage}{_LETTERS[op.kind]}{op.microbatch}"


def from_torch_csv(text: str, name: str = "csv") -> Schedule:
    """Read either form; the rows give the placement, the buffering is the default one.

    `verify` checks whether the schedule is complete and can run.

    Raises:
        SynthError: a cell cannot be parsed, a row has no actions, or a stage is on two ranks or on
            none; names it.
    """
    programs = [
        tuple(op for place, cell in enumerate(row) for op in _ops(rank, place, cell.strip()))
        for rank, row in enumerate(_rows(text))
    ]
    if not any(programs):
        raise SynthError("the file holds no actions; it needs a row for each rank, as 0F0,0F1,0B0")
    if () in programs:
        raise SynthError(
            f"row {programs.index(())} has no actions; a row is a rank, which needs some: remove "
            f"the row"
        )
    microbatches = 1 + max(op.microbatch for program in programs for op in program)
    return Schedule(_placement(programs), microbatches, tuple(programs), name, Buffering())


def _rows(text: str) -> list[list[str]]:
    """The cells of all rows, with any kind of line ends."""
    try:
        return list(csv.reader(io.StringIO(text, newline=None)))
    except csv.Error as error:
        raise SynthError(f"the file is not a CSV of actions such as 0F0: {error}") from None


def _ops(rank: int, place: int, cell: str) -> list[Op]:
    """The ops of one cell: [] if it is empty or implied, two if F and B overlap."""
    overlapped = _OVERLAPPED.fullmatch(cell)
    if overlapped is not None:
        return [op for part in overlapped[1].split(";") for op in _ops(rank, place, part.strip())]
    if not cell or _IMPLIED.fullmatch(cell):
        return []
    found = _ACTION.fullmatch(cell)
    if found is None:
        raise SynthError(
            f"row {rank}, cell {place}: {shown(cell)} is not understood; actions look like 0F3, "
            "0I3, 0W3 or 0B3 (stage, letter, micro-batch)"
        )
    return [Op(_KINDS[found[2]], int(found[1]), int(found[3]))]


def _placement(programs: list[tuple[Op, ...]]) -> Placement:
    owners: dict[int, int] = {}
    for rank, program in enumerate(programs):
        for op in program:
            if owners.setdefault(op.stage, rank) != rank:
                raise SynthError(
                    f"stage {op.stage} is on the ranks {owners[op.stage]} and {rank}; a stage has "
                    "one rank"
                )
    missing = sorted(set(range(max(owners) + 1)) - set(owners))
    if missing:
        raise SynthError(f"the file has no actions of stage {missing[0]}; every stage needs some")
    return Placement((tuple(owners[stage] for stage in sorted(owners)),))
