"""WPipe: two groups of stages, of which the second one is never late (Yang et al., ICLR 2022).

"Group-based Interleaved Pipeline Parallelism for Large-scale DNN Training". Rank r of n holds stage
r of the first half of the model and stage n + r of the second half. In the first group the forwards
of the next batch stand before the backwards of this one have ended, so they read weights that miss
one update, as in PipeDream-2BW; the second group runs its batches one after another with the newest
weights. Each group is updated once per batch of k = `every` micro-batches, by default the fewest
from n on that divide all. Two versions of the first half and one of the second are 1.5 of the
model.

The paper's figures were not available; the order is derived from what it says. All ranks run 1F1B:

    forwards     k of the first group, k of the second, k of the first of the next batch, …
    backwards    k of the second group, k of the first, …
    rank r       runs k + n − 1 − r forwards, then a forward and a backward in turn

With F and BW of a half stage in f and b, forward number i of rank r starts at i (f + b) + r f, and
backward number i at (k + n − 1 + i) (f + b) + f − r b, so that a slot of f + b has one of each and
no rank is idle. Each op follows those it reads, and each version is there, if k ≥ n − 1; with
k = n − 2 the second group of rank 0 would start a batch before the backwards of the last one have
ended. Rank r holds k + n − r activations of half a stage: with k = n at most 2 n, which is what
2BW's first rank holds. With `recompute` it holds as many inputs, and the saved activations of one
micro-batch and half a stage, where 2BW has those of a whole stage.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.recompute_option import RECOMPUTE, recomputed
from synth.families._lib.updates import EVERY, batch_size, with_updates
from synth.op_kinds import OpKind
from synth.schedule.ops import Op
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions

F, BW = OpKind.F, OpKind.BW


def make(setting: Setting) -> Programs:
    """Run 1F1B on each rank over the two groups, with updates behind the batches of each."""
    every, n = _every(setting), setting.num_ranks
    programs = with_updates([[*_program(setting, every, rank)] for rank in range(n)], every)
    return recomputed(setting, programs)


def _every(setting: Setting) -> int:
    return batch_size(setting, setting.num_ranks)


def _program(setting: Setting, every: int, rank: int) -> Iterator[Op]:
    n, m = setting.num_ranks, setting.num_micro_batches
    groups = (rank, n + rank)
    forwards = [*_by_batch(F, groups, m, every)]
    backwards = [*_by_batch(BW, groups[::-1], m, every)]
    first = min(every + n - 1 - rank, len(forwards))
    yield from forwards[:first]
    for pair in zip_longest(forwards[first:], backwards):
        yield from (op for op in pair if op is not None)


def _by_batch(kind: OpKind, stages: tuple[int, int], m: int, every: int) -> Iterator[Op]:
    """Yield the ops of each batch, first those of one stage, then those of the other."""
    for begin in range(0, m, every):
        for stage in stages:
            yield from (Op(kind, stage, j) for j in range(begin, begin + every))


def versions(setting: Setting) -> WeightVersions:
    """The order alone says which versions forwards find."""
    return WeightVersions(_every(setting), ForwardReads.NEWEST, BackwardReads.STASHED)


FAMILY = Family(
    "wpipe",
    "Yang et al., ICLR 2022",
    make,
    "looped:2",
    options=(replace(RECOMPUTE, untried=(RECOMPUTE.words[-1],)), EVERY),
    buffering=patient,
    versions=versions,
)
