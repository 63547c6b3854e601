"""1F1B with vocabulary parallelism (Yeung et al. 2024, arXiv 2411.05288).

Embedding and head are divided by vocabulary over all p ranks (see `StageFlow`). For each
micro-batch a rank runs its part of the head in two passes, S and T, here F and BW of a stage of its
own, and with them its part of the embedding. In each interval I it runs one F, B, S and T:

    algorithm 1, two barriers    | F | S | T | B |     rank r + 1 begins F's time later than rank r
    algorithm 2, one barrier     | F | S | B | T |

S of a micro-batch is in the first such place behind its F on the last rank, so that all ranks have
run it an interval later, wherever the place lies. So each barrier takes one interval. From rank to
rank F and B together take no more than another one. Rank r thus runs B of a micro-batch
p − 1 − r + barriers intervals after its F, and holds one micro-batch more than that: rank 0 holds
p + 2 with algorithm 1 (Vocab-1), and p + 1 with algorithm 2 (Vocab-2).

Parts of the embedding are made an interval before the first decoder stage reads them.
"""

from math import ceil
from typing import NamedTuple

from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import ChoiceOption, Options
from synth.op_kinds import OpKind
from synth.schedule.ops import Op

F, BW = OpKind.F, OpKind.BW

# The algorithm by its number in the paper, and its barriers.
_BARRIERS = {"1": 2, "2": 1}
_ALGORITHM = ChoiceOption("algorithm", ("2", "1"))


class _Place(NamedTuple):
    """The op of a stage in each interval of a rank: that of the micro-batch `late` before."""

    kind: OpKind
    stage: int
    late: int


def make(setting: Setting) -> Programs:
    """The times of equal decoder stages; of others the largest."""
    p, m = setting.num_ranks, setting.num_micro_batches
    programs = []
    for rank in range(p):
        places = _places(setting, rank)
        last = m + max(place.late for place in places)
        programs.append(
            [
                Op(place.kind, place.stage, number - place.late)
                for number in range(min(place.late for place in places), last)
                for place in places
                if 0 <= number - place.late < m
            ]
        )
    return programs


def _places(setting: Setting, rank: int) -> list[_Place]:
    """Return the ops of a rank in an interval, in their order."""
    p, wait = setting.num_ranks, barriers(setting.options)
    embedding, decoder, head = rank, p + rank, 2 * p + rank
    stages = setting.costs.stages
    forward_us, backward_us = (
        max(stage.duration_us[kind] for stage in stages[p : 2 * p]) for kind in (F, BW)
    )
    head_us = max(stage.duration_us[F] + stage.duration_us[BW] for stage in stages[2 * p :])
    interval_us = max(1, forward_us + backward_us + head_us)
    behind_us, before_us = (p - 1 - rank) * forward_us, rank * forward_us
    late = p - 1 - rank + wait
    forward, backward = _Place(F, decoder, 0), _Place(BW, decoder, late)
    first = _Place(F, head, ceil(behind_us / interval_us))
    if wait == 2:
        second = _Place(BW, head, 1 + first.late)
        passes = [forward, first, second, backward]
    else:
        second = _Place(BW, head, 1 + ceil((behind_us - backward_us) / interval_us))
        passes = [forward, first, backward, second]
    return [
        _Place(F, embedding, -1 - ceil(before_us / interval_us)),
        *passes,
        _Place(BW, embedding, p - 1 + wait),
    ]


def barriers(options: Options) -> int:
    return _BARRIERS[str(options[_ALGORITHM.name])]


FAMILY = Family(
    "1f1b-vocab",
    "Yeung et al. 2024, arXiv 2411.05288, section 5",
    make,
    "looped:3",
    options=(_ALGORITHM,),
    timed=True,
    buffering=patient,
    vocabulary=barriers,
)
