"""ZeRO: data parallelism whose state is sharded (Rajbhandari et al. 2020, arXiv 1910.02054).

Every rank runs all stages of its own micro-batches. The number is the ZeRO stage: what a rank keeps
only its share of.

    1   optimizer state; the parameters are gathered once, the gradients scattered once
    2   gradients too; they are scattered after each backward of a stage
    3   parameters too, as FSDP does (Zhao et al. 2023, arXiv 2304.11277): they are gathered before
        each forward and each backward of a stage and freed after it, except where the backward of
        the last stage follows its forward at once

`ahead` is the number of stages for which parameters are gathered before the one that runs.
"""

from collections.abc import Iterator

from synth.errors import SynthError
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import ChoiceOption, Count, rounds
from synth.op_kinds import OpKind
from synth.schedule.insert_visits import with_visits
from synth.schedule.ops import Op
from synth.schedule.weight_flow import Sharded, WeightFlow

F, BW, UNSHARD, REDUCE = OpKind.F, OpKind.BW, OpKind.UNSHARD, OpKind.REDUCE_GRAD

_STAGE = ChoiceOption("stage", ("zero-3", "zero-2", "zero-1"))
_AHEAD = Count("ahead", 1, least=0)


def make(setting: Setting) -> Programs:
    """Micro-batches one after another on each rank, as many on each."""
    num_ranks, m = setting.num_ranks, setting.num_micro_batches
    if m % num_ranks:
        raise SynthError(f"zero needs a multiple of {num_ranks} micro-batches, given {m}")
    return [_program(setting, rank) for rank in range(num_ranks)]


def _program(setting: Setting, rank: int) -> list[Op]:
    num_stages, mine = setting.num_stages, range(rank, setting.num_micro_batches, setting.num_ranks)
    stages = range(num_stages)
    computing = [
        op
        for j in mine
        for op in (
            *(Op(F, s, j, rank) for s in stages),
            *(Op(BW, s, j, rank) for s in reversed(stages)),
        )
    ]
    sharded = _sharded(setting)
    if setting.num_ranks == 1:
        return list(_reducing(computing, None))  # all weights are at home
    if sharded == Sharded.WEIGHTS:
        reducing, ahead = list(_reducing(computing, None)), setting.count("ahead")
        return list(with_visits(reducing, ahead, shares_visit=lambda op: op.kind == BW))
    gathered = [Op(UNSHARD, s, 0, rank) for s in stages]
    is_each = sharded == Sharded.GRADIENTS
    return [*gathered, *_reducing(computing, None if is_each else mine[-1])]


def _reducing(computing: list[Op], only: int | None) -> Iterator[Op]:
    """Put a REDUCE_GRAD after each backward, or after those of one micro-batch."""
    counts: dict[int, int] = {}
    for op in computing:
        yield op
        if op.kind == BW and (only is None or op.microbatch == only):
            number = counts.setdefault(op.stage, 0)
            counts[op.stage] += 1
            yield Op(REDUCE, op.stage, number, op.replica)


def _sharded(setting: Setting) -> Sharded:
    return dict(zip(_STAGE.words, reversed(Sharded), strict=True))[str(setting.options["stage"])]


def weight_flow(setting: Setting) -> WeightFlow:
    """Every rank keeps a share of every stage."""
    everyone = tuple(range(setting.num_ranks))
    return WeightFlow((everyone,) * setting.num_stages, _sharded(setting))


FAMILY = Family(
    "zero",
    "Rajbhandari et al. 2020, arXiv 1910.02054; Zhao et al. 2023, arXiv 2304.11277",
    make,
    "replicated:{rounds}",
    options=(rounds(1), _STAGE, _AHEAD),
    weights=weight_flow,
)
