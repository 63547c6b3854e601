"""Reading PyTorch's schedule files: both forms, and the letters of all versions.

Before PyTorch 2.6 `B` was the input gradient and `BW` the whole backward, which are `I` and `B`
since. So a `B` is an input gradient where the file has a `W` of the same stage and micro-batch, and
no `I`. The transfers of the form `compute_comms` follow from the order, and are read over.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.schedule.error import ScheduleError
from synth.schedule.files.program_text import MOST_OPS
from synth.schedule.least_buffering import with_least_buffering
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from synth.units import shown

_KINDS = {"F": OpKind.F, "I": OpKind.B, "W": OpKind.W, "B": OpKind.BW, "BW": OpKind.BW}
_ACTION = re.compile(r"(\d{1,6})(BW|[FIWB])(\d{1,9})")
_IMPLIED = re.compile(r"\d+(?:(?:SEND|RECV)_[FB]\d+|UNSHARD|RESHARD|REDUCE_GRAD)")
_OVERLAPPED = re.compile(r"\(([^)]*)\)OVERLAP_F_B")

# With transfers, which follow from the ops and are read over, there are about twice as many cells.
_MOST_CELLS = 2 * MOST_OPS

_Programs = list[tuple[Op, ...]]


class ReadSchedule(NamedTuple):
    """A schedule of a file, and sentences on what the file does not say by itself."""

    schedule: Schedule
    notes: tuple[str, ...]


def from_torch_csv(text: str, name: str = "csv") -> Schedule:
    """Return the schedule of `read_torch_csv`."""
    return read_torch_csv(text, name).schedule


def read_torch_csv(text: str, name: str = "csv") -> ReadSchedule:
    """Read either form. The rows give the placement.

    PyTorch receives into buffers of its own; the schedule has the least buffering with which it
    runs. `verify` checks whether it is complete and can run.

    Raises:
        SynthError: the file is too long; or a cell cannot be parsed, a row has no actions, or a
            stage is on two ranks or on none; names it.
    """
    rows = [
        [(rank, place, cell.strip()) for place, cell in enumerate(row)]
        for rank, row in enumerate(_rows(text))
    ]
    programs = [tuple(op for cell in row for op in _ops(*cell)) for row in rows]
    pairs = [[*_places_of_pairs(row)] for row in rows]
    if not any(programs):
        raise SynthError("the file holds no actions; it needs a row for each rank, as 0F0,0F1,0B0")
    if () in programs:
        raise SynthError(
            f"row {programs.index(())} has no actions; a row is a rank, which needs some: remove "
            f"the row"
        )
    notes = []
    split = _with_input_gradients(programs)
    if split != programs or re.search(r"\dBW\d", text):
        notes.append(
            "read with the letters from before PyTorch 2.6: B is an input gradient where W follows "
            "it, and BW a whole backward"
        )
    counted = _counted_from_0(split)
    if counted != split:
        notes.append(
            "the last stage's forwards are numbered from 1 on, as PyTorch's dumps of 1F1B are by "
            "mistake; read as from 0 on"
        )
    microbatches = 1 + max(op.microbatch for program in counted for op in program)
    overlapped = frozenset(
        program[place] for program, places in zip(counted, pairs, strict=True) for place in places
    )
    schedule = Schedule(
        _placement(counted), microbatches, tuple(counted), name, Buffering(), overlapped=overlapped
    )
    buffered = _with_buffering(schedule)
    if buffered != schedule:
        notes.append(
            f"the order needs receives that are posted {buffered.buffering.receive_ahead} ops "
            f"ahead instead of {schedule.buffering.receive_ahead}; the plan has their buffers "
            f"(receive_ahead)"
        )
    return ReadSchedule(buffered, tuple(notes))


def _rows(text: str) -> list[list[str]]:
    """The cells of all rows, with any kind of line ends."""
    num_cells = text.count(",") + text.count("\n")
    if num_cells > _MOST_CELLS:
        raise SynthError(
            f"the file has {num_cells:,} cells; at most {_MOST_CELLS:,} are read: export a "
            f"schedule of fewer micro-batches"
        )
    try:
        return list(csv.reader(io.StringIO(text, newline=None)))
    except csv.Error as error:
        raise SynthError(f"the file is not a CSV of actions such as 0F0: {error}") from None


def _ops(rank: int, place: int, cell: str) -> list[Op]:
    """The ops of one cell: [] if it is empty or implied, two if F and B overlap."""
    overlapped = _OVERLAPPED.fullmatch(cell)
    if overlapped is not None:
        found = [op for part in overlapped[1].split(";") for op in _ops(rank, place, part.strip())]
        if len(found) != 2:
            raise SynthError(
                f"row {rank}, cell {place}: {shown(cell)} has {len(found)} actions; two run at "
                f"once, an F and a B, as in (0F4;3B1)OVERLAP_F_B"
            )
        return found
    if not cell or _IMPLIED.fullmatch(cell):
        return []
    action = _ACTION.fullmatch(cell)
    if action is None:
        raise SynthError(
            f"row {rank}, cell {place}: {shown(cell)} is not understood; actions look like 0F3, "
            "0I3, 0W3 or 0B3 (stage, letter, micro-batch)"
        )
    return [Op(_KINDS[action[2]], int(action[1]), int(action[3]))]


def _places_of_pairs(row: Iterable[tuple[int, int, str]]) -> Iterator[int]:
    """The places among a row's ops of those that run at once with the next one."""
    place = 0
    for cell in row:
        num_ops = len(_ops(*cell))
        if num_ops > 1:
            yield place
        place += num_ops


def _with_input_gradients(programs: _Programs) -> _Programs:
    """Make BW a B where a W of the same stage and micro-batch needs one."""
    known = {op for program in programs for op in program}

    def read(op: Op) -> Op:
        b = op._replace(kind=OpKind.B)
        is_b = op.kind == OpKind.BW and op._replace(kind=OpKind.W) in known and b not in known
        return b if is_b else op

    return [tuple(map(read, program)) for program in programs]


def _counted_from_0(programs: _Programs) -> _Programs:
    """Undo the count from 1 in `Schedule1F1B._get_pipeline_order` of PyTorch (2.13 has it).

    Only forwards of the last stage have it; its backwards are counted from 0.
    """
    ops = [op for program in programs for op in program]
    last = max(op.stage for op in ops)
    forwards = {op.microbatch for op in ops if op.kind == OpKind.F and op.stage == last}
    others = {op.microbatch for op in ops if op.kind != OpKind.F and op.stage == last}
    if not others or forwards != {number + 1 for number in others}:
        return programs

    def read(op: Op) -> Op:
        is_shifted = op.kind == OpKind.F and op.stage == last
        return op._replace(microbatch=op.microbatch - 1) if is_shifted else op

    return [tuple(map(read, program)) for program in programs]


def _with_buffering(schedule: Schedule) -> Schedule:
    """Return the schedule with the buffering that it needs, or as it is if it cannot run."""
    try:
        return with_least_buffering(schedule)
    except ScheduleError:
        return schedule


def _placement(programs: Iterable[tuple[Op, ...]]) -> Placement:
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
