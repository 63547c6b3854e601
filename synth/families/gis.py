"""Generalized interleaving: GIS and GIS-H (Wan et al. 2025, arXiv 2503.01328, 3.1 and 3.2).

Interleaved 1F1B (see `interleaved.py`) with B and W separate, so that B is sent on before W, and
with as few forwards before the first B as possible: rank r runs (v − 1) g + D − r, where g is the
size of the groups. The first rank never holds more than g (v − 1) + D micro-batches of a stage: v
D, instead of v D + D − 1, for groups of D. Groups may be as small as ⌈D / 2⌉, which is GIS-H
(`half`): about half the memory, while the pipeline takes (D − g) (v − 1) (F + B − W) longer to fill
(if g divides the micro-batches and W ≤ F, B).

GIS-H's block can be repeated micro-batch by micro-batch instead of group by group (`uniform`): each
stage's F's, and B's, are then v turns apart, in the same memory, with a longer fill and drain.
PipeOffload uses this schedule (`pipeoffload.py`), because its activations leave at an even pace.
"""

from itertools import zip_longest
from math import gcd

from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import ChoiceOption, rounds
from synth.families.interleaved import even_groups, in_groups
from synth.op_kinds import OpKind
from synth.schedule.ops import Op

_FULL, _HALF, _UNIFORM = "full", "half", "uniform"


def make(setting: Setting) -> Programs:
    """The forwards of the warm-up, then B, W and F in turn while there are any left.

    The paper draws groups that divide the micro-batches equally; here their sizes differ by at most
    one.
    """
    if setting.options["memory"] == _UNIFORM:
        return uniform(setting)
    num_ranks, total = setting.num_ranks, setting.num_micro_batches
    size = num_ranks if setting.options["memory"] == _FULL else -(-num_ranks // 2)
    groups = even_groups(total, max(1, total // size))
    programs = []
    for rank in range(num_ranks):
        stages = range(rank, setting.num_stages, num_ranks)
        forwards = in_groups(OpKind.F, stages, groups)
        backwards = in_groups(OpKind.B, stages[::-1], groups)
        warm_up = (setting.count("rounds") - 1) * len(groups[0]) + num_ranks - rank
        program = forwards[:warm_up]
        for backward, forward in zip_longest(backwards, forwards[warm_up:]):
            program += [backward, backward._replace(kind=OpKind.W), *([forward] if forward else [])]
        programs.append(program)
    return programs


def uniform(setting: Setting) -> Programs:
    """F of round c and micro-batch j in turn k c + v j of every rank, with k = ⌈D / 2⌉.

    If k and v have a common divisor g, rounds from the (v / g)-th on are one turn later for each v
    / g rounds, so that no two collide. B, and W right after it, follow the same pattern, last
    round first. The first B is D − 1 − r turns after F of that micro-batch's last round, later in
    its turn than the F there. This equals the authors' program for a group size of 1, whose turns,
    3 slots each, give the order; empty turns at both ends are not waited for.
    """
    num_ranks, num_rounds = setting.num_ranks, setting.count("rounds")
    interval = -(-num_ranks // 2)
    shift = gcd(interval, num_rounds)

    def turn(place: int, microbatch: int) -> int:
        return interval * place + place * shift // num_rounds + num_rounds * microbatch

    programs = []
    for rank in range(num_ranks):
        first_backward = turn(num_rounds - 1, 0) + num_ranks - 1 - rank
        ops: list[tuple[int, int, Op]] = []
        for place in range(num_rounds):
            down, up = (c * num_ranks + rank for c in (place, num_rounds - 1 - place))
            for j in range(setting.num_micro_batches):
                at, back = turn(place, j), first_backward + turn(place, j)
                ops.append((at, 0, Op(OpKind.F, down, j)))
                ops += [(back, 1, Op(OpKind.B, up, j)), (back, 2, Op(OpKind.W, up, j))]
        programs.append([op for _, _, op in sorted(ops)])
    return programs


FAMILY = Family(
    "gis",
    "Wan et al. 2025, arXiv 2503.01328, sections 3.1 and 3.2",
    make,
    "looped:{rounds}",
    options=(rounds(2, 2), ChoiceOption("memory", (_FULL, _HALF, _UNIFORM))),
    buffering=patient,
)
