"""Interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473; Llama 3, arXiv 2407.21783, 3.3.2).

With v stages a rank, stage c · D + r is on rank r. Micro-batches run in groups; a group passes the
first round of stages, then the second, and so on. The paper requires groups of D and so m a
multiple of D; Llama 3 leaves the group size free. With groups smaller than D a rank would wait for
backwards that wait for it; larger ones hold more activations. By default there are ⌊m / D⌋ groups
(one for m < D) whose sizes differ by at most one, so that every m ≥ D has the bubble of the paper,
(D − 1) (F + B) of one of the v stages. `group=` sets the size: if it does not divide m, the last
group is smaller, and ranks wait for it if it is smaller than D. With `recompute` F keeps only its
input, and R rebuilds the rest before BW (Korthikanti et al. 2022, arXiv 2205.05198, section 5).
With `overlap` the F and BW that alternate run at once. Every rank then warms up with one forward
more, without which the last rank's BW would need the F that runs at once with it (Megatron-LM,
`--overlap-moe-expert-parallel-comm`).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from synth.errors import SynthError
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import PAIRS, Count, rounds
from synth.families._lib.pairs import before_backwards, overlaps
from synth.families._lib.recompute_option import RECOMPUTE, RECOMPUTE_IF_ASKED, recomputed
from synth.op_kinds import OpKind
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op


def make(setting: Setting) -> Programs:
    """With `recompute` a rank holds its inputs, and the saved activations of one micro-batch.

    Raises:
        SynthError: groups are too small, or BW is to run at once with F, and R to stand between.
    """
    if _overlaps(setting) and setting.options[RECOMPUTE.name] != RECOMPUTE.default:
        raise SynthError(
            "interleaved runs either F and BW at once (overlap) or R between them (recompute); "
            "leave out one of both"
        )
    return recomputed(setting, in_order(setting))


def in_order(setting: Setting) -> list[list[Op]]:
    """Rank r warms up with (v − 1) · group + 2 (D − r − 1) forwards, then alternates."""
    num_ranks, groups = setting.num_ranks, _groups(setting)
    programs = []
    for rank in range(num_ranks):
        stages = range(rank, setting.num_stages, num_ranks)
        forwards = in_groups(OpKind.F, stages, groups)
        backwards = in_groups(OpKind.BW, stages[::-1], groups)
        programs.append(_alternate(forwards, backwards, _warmup(setting, rank)))
    return programs


def _warmup(setting: Setting, rank: int) -> int:
    rounds, group = setting.count("rounds"), len(_groups(setting)[0])
    return (rounds - 1) * group + 2 * (setting.num_ranks - rank - 1) + _overlaps(setting)


def _overlaps(setting: Setting) -> bool:
    """True if F and BW run at once; in smaller groups than ranks they would need each other."""
    return overlaps(setting) and min(map(len, _groups(setting))) >= setting.num_ranks


def _overlapped(setting: Setting, programs: Programs) -> frozenset[Op]:
    """The F's that alternate with BW; the last one of the warm-up may stand before a BW, too."""
    if not _overlaps(setting):
        return frozenset()
    return before_backwards(
        setting, [list(ops)[_warmup(setting, rank) :] for rank, ops in enumerate(programs)]
    )


def _groups(setting: Setting) -> list[range]:
    """The micro-batches of each group.

    Raises:
        SynthError: several groups, smaller than the number of ranks.
    """
    total, num_ranks, group = setting.num_micro_batches, setting.num_ranks, setting.count("group")
    if group == 0:
        return even_groups(total, max(1, total // num_ranks))
    if group < min(num_ranks, total):
        raise SynthError(
            f"interleaved needs groups of {num_ranks} micro-batches at least, as many as ranks, "
            f"given group={group}: with less the ranks wait for each other forever"
        )
    return [range(first, min(first + group, total)) for first in range(0, total, group)]


def in_groups(kind: OpKind, stages: Sequence[int], groups: Sequence[range]) -> list[Op]:
    """One op for each micro-batch and stage: a group passes all stages before the next one."""
    return [Op(kind, stage, j) for group in groups for stage in stages for j in group]


def even_groups(total: int, num_groups: int) -> list[range]:
    """Groups whose sizes differ by at most one, larger ones first."""
    size, larger = divmod(total, num_groups)
    ends = list(accumulate(size + (k < larger) for k in range(num_groups)))
    return [range(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _alternate(forwards: list[Op], backwards: list[Op], warmup: int) -> list[Op]:
    """`warmup` forwards, then forwards and backwards alternate while there are any left."""
    program = forwards[:warmup]
    for k, backward in enumerate(backwards):
        program += [*forwards[warmup + k : warmup + k + 1], backward]
    return program


def buffering(setting: Setting, _: Schedule) -> Buffering:
    """The default plus, for each micro-batch that a group has beyond D, one F and one B.

    The output of the last rank waits for its turn on the first rank longer by these ops.
    """
    beyond = max(0, len(_groups(setting)[0]) - setting.num_ranks)
    usual = Buffering()
    return replace(usual, send_behind=usual.send_behind + 2 * beyond)


FAMILY = Family(
    "interleaved",
    "Narayanan et al. 2021, arXiv 2104.04473, section 2.2",
    make,
    "looped:{rounds}",
    options=(rounds(2, 2), Count("group", 0), RECOMPUTE_IF_ASKED, PAIRS),
    buffering=buffering,
    overlapped=_overlapped,
)
