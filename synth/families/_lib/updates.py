"""Updates between the ops of a program: families that never flush the pipeline."""

from collections.abc import Iterator, Sequence
from math import lcm

from synth.errors import SynthError
from synth.families._lib.family import Setting
from synth.families._lib.options import Count
from synth.op_kinds import OpKind
from synth.schedule.model import Placement
from synth.schedule.ops import Op

# The number of micro-batches of an update; 0: chosen by the family.
EVERY = Count("every", 0, least=1)


def one_forward_one_backward(setting: Setting, in_flight: Sequence[int]) -> list[list[Op]]:
    """Each rank fills up to `in_flight[s]` micro-batches of its stage, then alternates F and BW.

    If several ranks hold a stage, they take micro-batches in turn (1F1B-RR).
    """
    programs = []
    copies = setting.placement.ranks
    for rank, held in enumerate(setting.placement.held):
        stage = held[0][0]
        mine = [
            (j, j % len(copies))
            for j in range(setting.num_micro_batches)
            if copies[j % len(copies)][stage] == rank
        ]
        warmup = min(len(mine), in_flight[stage] - 1)
        program = [Op(OpKind.F, stage, *one) for one in mine[:warmup]]
        for i, one in enumerate(mine):
            program += [Op(OpKind.F, stage, *next_one) for next_one in mine[warmup + i :][:1]]
            program.append(Op(OpKind.BW, stage, *one))
        programs.append(program)
    return programs


def admitted(placement: Placement) -> list[int]:
    """By stage the micro-batches that each of its ranks admits before a backward, in PipeDream.

    For the first stage it is NOAM: the ranks over those of the stage, rounded up. A rank of a later
    stage admits one, and those that the ranks after the stage have for it, rounded down, as in the
    released program. With one rank for each of n stages stage s admits n − s.
    """
    counts = [len(ranks) for ranks in placement.holders]
    behind = [sum(counts[stage + 1 :]) for stage in range(len(counts))]
    later = [1 + most // count for most, count in zip(behind, counts, strict=True)]
    return [1 - (-behind[0] // counts[0]), *later[1:]]


def admitted_to_stay_full(placement: Placement) -> list[int]:
    """By stage the micro-batches that each of its ranks admits so that no rank is ever idle.

    Ranks of a stage wait for each other at each update, so their micro-batches go on and come back
    in rounds. For that a stage needs more of them than the next one: one for each of its own
    ranks, and as many as rounds of both may be apart, their least common multiple less one.
    """
    counts = [len(ranks) for ranks in placement.holders]
    found: list[int] = []
    for stage in reversed(range(len(counts))):
        own, total = counts[stage], counts[stage]
        if found:
            total += found[0] * counts[stage + 1] + lcm(own, counts[stage + 1]) - 1
        found.insert(0, -(-total // own))
    return found


def with_updates(
    programs: Sequence[Sequence[Op]], every: int, placement: Placement | None = None
) -> list[list[Op]]:
    """Put STEP(s, v) after the last backward of its micro-batches on each rank.

    Args:
        programs: the programs of the ranks, without STEPs.
        every: the micro-batches of an update, of each rank of a stage.
        placement: the placement of the stages; None: every stage is on one rank.
    """
    return [list(_with_updates(program, every, placement)) for program in programs]


def _with_updates(program: Sequence[Op], every: int, placement: Placement | None) -> Iterator[Op]:
    left: dict[tuple[int, int], int] = {}
    for op in program:
        yield op
        if op.kind in (OpKind.BW, OpKind.W):
            num_ranks = 1 if placement is None else len(placement.holders[op.stage])
            first = 0 if placement is None else placement.first_copies[op.replica][op.stage]
            batch = op.stage, op.microbatch // (every * num_ranks)
            left[batch] = left.get(batch, every) - 1
            if not left[batch]:
                yield Op(OpKind.STEP, *batch, first)


def batch_size(setting: Setting, least: int) -> int:
    """The micro-batches of an update: the option's, or the fewest from `least` on that divide all.

    If several ranks hold each stage, those of one of them count.

    Raises:
        SynthError: they do not divide the micro-batches, or there are fewer than `least`.
    """
    m, given = in_turn(setting), setting.count(EVERY.name)
    if given:
        if m % given:
            raise SynthError(f"an update every {given} micro-batches does not divide {m} of them")
        return given
    found = least_divisor(m, least)
    if found is None:
        raise SynthError(
            f"an update needs {least} micro-batches on {setting.num_ranks} ranks, given {m}"
        )
    return found


def least_divisor(num_micro_batches: int, least: int) -> int | None:
    """The fewest micro-batches of an update, from `least` on, that divide all; None: there are too
    few.
    """
    sizes = range(max(1, least), num_micro_batches + 1)
    return next((size for size in sizes if num_micro_batches % size == 0), None)


def in_turn(setting: Setting) -> int:
    """The micro-batches of each copy of the stages.

    Raises:
        SynthError: the copies do not have equally many.
    """
    copies = len(setting.placement.ranks)
    if setting.num_micro_batches % copies:
        raise SynthError(
            f"{copies} copies of the stages take micro-batches in turn, which needs a multiple of "
            f"{copies} of them; given {setting.num_micro_batches}"
        )
    return setting.num_micro_batches // copies
