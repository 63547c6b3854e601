"""The common part of ZeRO's three stages (Rajbhandari et al. 2020, arXiv 1910.02054).

Every rank runs all stages of its own micro-batches, one micro-batch after another, and keeps a
share of the state. The three families differ in what is shared out.
"""

from collections.abc import Collection, Iterator, Sequence

from synth.errors import SynthError
from synth.families._lib.family import Setting
from synth.op_kinds import OpKind
from synth.schedule.ops import Op
from synth.schedule.weight_flow import Sharded, WeightFlow

_F, _BW, _UNSHARD, _REDUCE = OpKind.F, OpKind.BW, OpKind.UNSHARD, OpKind.REDUCE_GRAD

SOURCE = "Rajbhandari et al. 2020, arXiv 1910.02054"

# All stages, `rounds` for each rank, on every rank.
LAYOUT = "all-stages:{rounds}"


def micro_batches_of(setting: Setting) -> list[range]:
    """The micro-batches of each rank.

    Raises:
        SynthError: their number is no multiple of the ranks.
    """
    num_ranks, m = setting.num_ranks, setting.num_micro_batches
    if m % num_ranks:
        raise SynthError(f"ZeRO needs a multiple of {num_ranks} micro-batches, given {m}")
    return [range(rank, m, num_ranks) for rank in range(num_ranks)]


def computing(num_stages: int, own: Sequence[int], rank: int) -> list[Op]:
    """The forwards and backwards of a rank's micro-batches, one micro-batch after another."""
    stages = range(num_stages)
    return [
        op
        for j in own
        for op in (
            *(Op(_F, s, j, rank) for s in stages),
            *(Op(_BW, s, j, rank) for s in reversed(stages)),
        )
    ]


def reducing(ops: Sequence[Op], after: Collection[int]) -> Iterator[Op]:
    """Put a REDUCE_GRAD after each backward of some micro-batches."""
    counts: dict[int, int] = {}
    for op in ops:
        yield op
        if op.kind == _BW and op.microbatch in after:
            number = counts.setdefault(op.stage, 0)
            counts[op.stage] += 1
            yield Op(_REDUCE, op.stage, number, op.replica)


def gathered_once(setting: Setting, *, reduces_each: bool) -> list[list[Op]]:
    """Programs whose ranks keep whole parameters, and gather the updated ones at the beginning.

    Args:
        setting: as a family gets it.
        reduces_each: gradients are reduced after each backward, not only after the last one.
    """
    programs = []
    for rank, own in enumerate(micro_batches_of(setting)):
        is_alone = setting.num_ranks == 1  # all parameters are at home
        gathers = [] if is_alone else [Op(_UNSHARD, s, 0, rank) for s in range(setting.num_stages)]
        ops = computing(setting.num_stages, own, rank)
        after = own if is_alone or reduces_each else own[-1:]
        programs.append([*gathers, *reducing(ops, after)])
    return programs


def shared_by_all(setting: Setting, sharded: Sharded) -> WeightFlow:
    """Every rank keeps a share of every stage."""
    everyone = tuple(range(setting.num_ranks))
    return WeightFlow((everyone,) * setting.num_stages, sharded)
