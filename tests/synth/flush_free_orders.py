"""Repeating orders of two ranks, each tried out: times and memory by replaying their programs.

It shares no code with the search: an order is a list of ops, times are the longest path through
two such lists, and versions are counted by going through them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

NUM = 60
# Micro-batches of the steady state that are counted: whole multiples of 1, 2, 3 and 4 in flight.
FIRST, LAST = 24, 48

# A program: (kind, micro-batch), updates included.
Program = list[tuple[str, int]]


@dataclass(frozen=True)
class TwoRanks:
    """Times of F, B, W by rank, of an update, and of a transfer; bytes that are kept."""

    us: tuple[dict[str, int], dict[str, int]]
    step_us: int
    link_us: int
    saved: int
    saved_w: int
    parameters: int
    static: int


def least_us(ranks: TwoRanks, cap: int, rule: str, every: int) -> float | None:
    """The least time of a micro-batch of all orders that keep the limit; None: there is none."""
    programs = [*_programs(every)]
    late = [[_reads(program, rule, every) for program in programs] for _ in range(2)]
    found = []
    for (i, first), (j, second) in product(enumerate(programs), repeat=2):
        if rule == "vertical":
            read = [late[0][i][0]] * 2
        else:
            read = [late[0][i][0], late[1][j][0]]
        pair = first, second
        fits = all(_fits(ranks, cap, pair[r], read[r], late[r][k][1]) for r, k in ((0, i), (1, j)))
        if fits:
            us = _steady_us(ranks, pair)
            if us is not None:
                found.append(us)
    return min(found, default=None)


def replayed(
    ranks: TwoRanks, programs: tuple[Program, Program], rule: str, every: int
) -> tuple[int, float] | None:
    """The limit that an order needs, and its time of a micro-batch; None: it does not run."""
    late = [_reads(program, rule, every) for program in programs]
    read = [late[0 if rule == "vertical" else rank][0] for rank in (0, 1)]
    us = _steady_us(ranks, programs)
    if us is None or any(read[r][j] > late[r][1][j] for r in (0, 1) for j in read[r]):
        return None
    return max(max(_levels(ranks, programs[r], read[r])) for r in (0, 1)), us


def _programs(every: int) -> Iterator[Program]:
    """Every order with up to four in flight, and W up to two micro-batches late."""
    for in_flight, lag, is_w_first in product(range(1, 5), range(3), (False, True)):
        if is_w_first and lag == 0:
            continue  # W would stand before its own B
        program: Program = [("F", j) for j in range(in_flight - 1)]
        for j in range(NUM):
            of_weights = [("W", j - lag), *_step(j - lag, every)] if j >= lag else []
            if j + in_flight - 1 < NUM:
                program.append(("F", j + in_flight - 1))
            program += [*of_weights, ("B", j)] if is_w_first else [("B", j), *of_weights]
        for j in range(NUM - lag, NUM):
            program += [("W", j), *_step(j, every)]
        yield program


def _step(micro_batch: int, every: int) -> Program:
    return [("STEP", micro_batch // every)] if (micro_batch + 1) % every == 0 else []


def _reads(program: Program, rule: str, every: int) -> tuple[dict[int, int], dict[int, int]]:
    """By micro-batch the version that F reads, and the newest one there is then."""
    newest, found = 0, {}
    for kind, number in program:
        newest += kind == "STEP"
        if kind == "F":
            found[number] = newest
    if rule == "2bw":
        return {j: max(0, j // every - 1) for j in found}, found
    return found, found


def _fits(
    ranks: TwoRanks, cap: int, program: Program, read: dict[int, int], newest: dict[int, int]
) -> bool:
    """True if the versions are there, and the level keeps the limit at every op."""
    return all(read[j] <= newest[j] for j in read) and max(_levels(ranks, program, read)) <= cap


def _levels(ranks: TwoRanks, program: Program, read: dict[int, int]) -> Iterator[int]:
    last = {read[j]: place for place, (kind, j) in enumerate(program) if kind in ("F", "B")}
    level, at = ranks.static, 0
    held: set[int] = set()
    for place, (kind, _) in enumerate(program):
        if kind == "STEP":
            if last.get(at, -1) > place:
                held.add(at)
            at += 1
        level += {"F": ranks.saved, "B": ranks.saved_w - ranks.saved, "W": -ranks.saved_w}.get(
            kind, 0
        )
        before = level - ranks.saved_w + ranks.saved if kind == "B" else level
        yield max(level, before) + ranks.parameters * len(held)
        held = {version for version in held if last[version] > place}


def _steady_us(ranks: TwoRanks, programs: tuple[Program, Program]) -> float | None:
    """The time of a micro-batch in the middle; None: the ranks wait for each other."""
    ended: dict[tuple[int, str, int], int] = {}
    place, free = [0, 0], [0, 0]
    is_moving = True
    while is_moving:
        is_moving = False
        for rank in (0, 1):
            while place[rank] < len(programs[rank]):
                kind, j = programs[rank][place[rank]]
                needed = {"F": (0, "F", j), "B": (1, "B", j)}.get(kind)
                start = free[rank]
                if needed is not None and needed[0] != rank:
                    if needed not in ended:
                        break
                    start = max(start, ended[needed] + ranks.link_us)
                us = ranks.step_us if kind == "STEP" else ranks.us[rank][kind]
                free[rank] = ended[rank, kind, j] = start + us
                place[rank] += 1
                is_moving = True
    if place != [len(program) for program in programs]:
        return None
    return (ended[0, "B", LAST] - ended[0, "B", FIRST]) / (LAST - FIRST)
