"""Generalized interleaving: GIS and GIS-H (Wan et al. 2025, arXiv 2503.01328, 3.1 and 3.2).

Interleaved 1F1B (see `interleaved.py`) with B and W apart, so that B is handed on before W, and
with as few forwards before the first B as can be: rank r runs (v − 1) g + D − r, where g is the
size of the groups. The first rank never holds more than g (v − 1) + D micro-batches of a stage:
v D, instead of v D + D − 1, for groups of D. Groups may be as small as ⌈D / 2⌉, which is GIS-H
(`half`): about half the memory, for (D − g) (v − 1) more bubbles while the pipeline fills.
"""

from itertools import zip_longest

from synth.families.buffers import patient
from synth.families.family import Family, Programs, Setting
from synth.families.interleaved import even_groups, in_groups
from synth.families.options import Way, rounds
from synth.kinds import OpKind

_FULL, _HALF = "full", "half"


def make(setting: Setting) -> Programs:
    """The forwards of the warm-up, then B, W and F in turn while there are any.

    The paper draws groups that divide the micro-batches; here their sizes differ by at most one.
    """
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


FAMILY = Family(
    "gis",
    "Wan et al. 2025, arXiv 2503.01328, sections 3.1 and 3.2",
    make,
    "looped:{rounds}",
    options=(rounds(2, 2), Way("memory", (_FULL, _HALF))),
    buffering=patient,
)
