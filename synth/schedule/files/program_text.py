"""One rank's program as a line of a plan file.

    F0.0 F0.1 BW0.0 BW0.1 STEP0                         ops, separated by spaces
    F0.0 [F0.1 BW0.0 STEP0]*47+1/1 BW0.47 STEP0.47      prologue, body and epilogue

    F0.3&BW1.1 F1.2&BW0.1                               F and BW that run at once

The second line is rank 0 of PipeDream on two ranks with 48 micro-batches. A body in brackets runs
47 times; each time the numbers of micro-batches are larger by the number after `+`, and those of
updates by the one after `/`. So a schedule without a flush has a short line for any number of
micro-batches.
"""

import re
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.op_kinds import OpKind
from synth.schedule.error import ScheduleError
from synth.schedule.model import Schedule
from synth.schedule.ops import Op

_BODY = re.compile(r"\[([^\[\]]*)\]\*([1-9][0-9]{0,8})\+([1-9][0-9]{0,5})/([0-9]{1,6})(?=\s|$)")

# What runs at once are two tokens.
_TOKEN = re.compile(r"[^\s&]+")
AT_ONCE = "&"

# The most micro-batches of a body. Searched orders repeat after fewer, and so do published ones
# whose updates take no more.
_MOST_PER_BODY = 128

# The most ops of a file that is read, counted before any is made: a line of a few bytes could fill
# the memory. The solver's largest problem has so many with an R or a STEP for each micro-batch.
MOST_OPS = 2_000_000

# So many are read in any case, and `verify` names the first that is wrong.
_FEW_OPS = 50_000

# A micro-batch has at most one op of each kind on a stage copy, and so has a visit or an update.
_MOST_PER_MICRO_BATCH = len(OpKind)


class _Body(NamedTuple):
    """A part of a program that is repeated.

    Attributes:
        begin: the place of its first op.
        length: ops of one repetition.
        times: repetitions.
        micro_batches: by which the numbers grow with each.
        updates: the same of STEPs.
    """

    begin: int
    length: int
    times: int
    micro_batches: int
    updates: int

    @property
    def end(self) -> int:
        """The place after its last op."""
        return self.begin + self.length * self.times

    @property
    def saved(self) -> int:
        """The ops that need not be written."""
        return self.length * (self.times - 1)


def program_lines(schedule: Schedule) -> tuple[str, ...]:
    """Write the programs of all ranks; without a flush, what is repeated is written once.

    Raises:
        ScheduleError: there are more ops than are read again.
    """
    num_ops = sum(map(len, schedule.programs))
    if num_ops > MOST_OPS:
        raise ScheduleError(
            f"the schedule has {num_ops:,} ops, a plan at most {MOST_OPS:,}; give fewer "
            f"micro-batches"
        )
    if schedule.versions is None:
        return tuple(program_text(ops, schedule.overlapped) for ops in schedule.programs)
    return tuple(repeating_text(ops, schedule.num_micro_batches) for ops in schedule.programs)


def program_text(program: Sequence[Op], overlapped: Set[Op] = frozenset()) -> str:
    """Write a rank's ops one by one; `overlapped` run at once with the op behind them."""
    if not overlapped:
        return " ".join(map(str, program))
    ends = (AT_ONCE if op in overlapped else " " for op in program)
    return "".join(f"{op}{end}" for op, end in zip(program, ends, strict=True)).removesuffix(" ")


def repeating_text(program: Sequence[Op], num_micro_batches: int) -> str:
    """Write a rank's ops with the longest body that is repeated, if there is one.

    Args:
        program: of a schedule without a flush.
    """
    body = _longest_body(program, num_micro_batches)
    if body is None:
        return program_text(program)
    one = program_text(program[body.begin : body.begin + body.length])
    repeated = f"[{one}]*{body.times}+{body.micro_batches}/{body.updates}"
    parts = program_text(program[: body.begin]), repeated, program_text(program[body.end :])
    return " ".join(filter(None, parts))


def _longest_body(program: Sequence[Op], num_micro_batches: int) -> _Body | None:
    """The body that saves most ops; None: no part is repeated."""
    if not program:
        return None
    types = [(op.kind, op.stage, op.replica) for op in program]
    number_of = {one: number for number, one in enumerate(dict.fromkeys(types))}
    kinds = np.array([number_of[one] for one in types])
    numbers = np.array([op.microbatch for op in program])
    is_step = np.array([op.kind == OpKind.STEP for op in program])
    num_updates = int(numbers[is_step].max()) + 1 if is_step.any() else 0
    best: _Body | None = None
    for count in range(1, min(_MOST_PER_BODY, num_micro_batches // 2) + 1):
        length, more = divmod(len(program) * count, num_micro_batches)
        updates, left = divmod(num_updates * count, num_micro_batches)
        if more or left or not length:
            continue
        grown = numbers[:-length] + np.where(is_step[:-length], updates, count)
        is_same = (kinds[length:] == kinds[:-length]) & (numbers[length:] == grown)
        begin, end = _longest_run(is_same)
        body = _Body(begin, length, 1 + (end - begin) // length, count, updates)
        if body.saved > (0 if best is None else best.saved):
            best = body
    return best


def _longest_run(flags: NDArray[np.bool_]) -> tuple[int, int]:
    """The first place of the longest stretch of True's, and the place after it."""
    changes = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    begins, ends = changes[::2], changes[1::2]
    if not len(begins):
        return 0, 0
    longest = int(np.argmax(ends - begins))
    return int(begins[longest]), int(ends[longest])


def num_ops(line: str) -> int:
    """Count the ops of a line without making them; those of a repeated part count each time."""
    repeated = sum(_num_tokens(match[1]) * int(match[2]) for match in _BODY.finditer(line))
    return _num_tokens(_BODY.sub(" ", line)) + repeated


def _num_tokens(text: str) -> int:
    return sum(1 for _ in _TOKEN.finditer(text))


def check_size(lines: Sequence[str], num_stages: int, num_micro_batches: int) -> None:
    """Check that programs are short enough to be read, before their repeated parts are written out.

    Args:
        num_stages: of the schedule; each copy of a stage counts.

    Raises:
        ValueError: there are more ops than are read, or than any schedule of these sizes has.
    """
    counts = [num_ops(line) for line in lines]
    longest = counts.index(max(counts))
    found = f"the programs have {sum(counts):,} ops, rank {longest} {counts[longest]:,} of them"
    if sum(counts) > MOST_OPS:
        raise ValueError(
            f"{found}; at most {MOST_OPS:,} are read: make a plan of fewer micro-batches"
        )
    most = max(_FEW_OPS, _MOST_PER_MICRO_BATCH * num_stages * num_micro_batches)
    if sum(counts) > most:
        raise ValueError(
            f"{found}, too many for {num_micro_batches:,} micro-batches in {num_stages} stages "
            f"with their copies: the micro-batches or the repetitions are wrong"
        )


class ParsedPrograms(NamedTuple):
    """The programs of all ranks, and the ops that run at once with the op behind them."""

    programs: tuple[tuple[Op, ...], ...]
    overlapped: frozenset[Op]


def parse_programs(lines: Sequence[str]) -> ParsedPrograms:
    """Read the lines of all ranks; `check_size` says whether they are short enough.

    Raises:
        ScheduleError: an op or a body cannot be parsed, with its rank and place.
    """
    read = [_ops(rank, line) for rank, line in enumerate(lines)]
    programs = tuple(tuple(op for op, _ in program) for program in read)
    return ParsedPrograms(programs, frozenset(op for each in read for op, joined in each if joined))


# An op, and whether the next one runs at once with it.
_Read = tuple[Op, bool]


def _ops(rank: int, text: str) -> list[_Read]:
    ops: list[_Read] = []
    at = 0
    for match in _BODY.finditer(text):
        ops += _parsed(rank, len(ops), text[at : match.start()])
        body = [*_parsed(rank, len(ops), match[1])]
        if not body:
            raise ScheduleError(f"rank {rank}, op {len(ops)}: the part that is repeated has no ops")
        times, micro_batches, updates = (int(match[group]) for group in (2, 3, 4))
        grown_by = [updates if op.kind == OpKind.STEP else micro_batches for op, _ in body]
        ops += (
            (Op(op.kind, op.stage, op.microbatch + turn * more, op.replica), joined)
            for turn in range(times)
            for (op, joined), more in zip(body, grown_by, strict=True)
        )
        at = match.end()
    ops += _parsed(rank, len(ops), text[at:])
    return ops


def _parsed(rank: int, place: int, text: str) -> Iterator[_Read]:
    for token in text.split():
        if "[" in token or "]" in token:
            raise ScheduleError(
                f"rank {rank}, op {place}: {token!r} is not understood; a part that is repeated "
                f"looks like [F0.1 BW0.0 STEP0]*47+1/1 (ops, repetitions, and the numbers by which "
                f"micro-batches and updates grow)"
            )
        parts = token.split(AT_ONCE)
        for number, part in enumerate(parts, 1):
            if not part:
                raise ScheduleError(
                    f"rank {rank}, op {place}: {token!r} lacks an op beside '&'; F and BW that run "
                    f"at once look like F0.3&BW1.1, without spaces"
                )
            try:
                yield Op.parse(part), number < len(parts)
            except ValueError as error:
                raise ScheduleError(f"rank {rank}, op {place}: {error}") from None
            place += 1
