"""WPipe: two groups of stages, of which the second one is never late (Yang et al., ICLR 2022).

"Group-based Interleaved Pipeline Parallelism for Large-scale DNN Training". Rank r of n holds stage
r of the first half of the model and stage n + r of the second half. In the first group the forwards
of the next batch stand before the backwards of this one have ended, so they read weights that miss
one update, as in PipeDream-2BW; the second group runs its batches one after another with the newest
weights. Each group is updated once per batch of `every` micro-batches, by default the fewest from
2 n on that divide all. Two versions of the first half and one of the second are 1.5 of the model.

The paper's figures were not available: the order within a batch is that of a rank that always runs
the first op of this list that is ready, with BW = 2 F. It has no idle time from 2 n micro-batches
on; with n it has some.

    BW of the second group, F of the second group, F of the first group, BW of the first group
"""

from typing import NamedTuple

from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.updates import EVERY, batch_size, with_updates
from synth.op_kinds import OpKind
from synth.schedule.ops import Op
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions

F, BW = OpKind.F, OpKind.BW
_UNITS = {F: 1, BW: 2}

# Kind and group in the order in which a rank prefers them.
_PREFERRED = ((BW, 1), (F, 1), (F, 0), (BW, 0))


class _Choice(NamedTuple):
    """An op that could run next, ordered by the moment at which it could, then by preference."""

    start: int
    preference: int
    rank: int
    op: Op


class _Drafting:
    """Programs that grow op by op, in the order of time."""

    def __init__(self, num_ranks: int, num_micro_batches: int, every: int) -> None:
        self.num_ranks, self.m, self.every = num_ranks, num_micro_batches, every
        self.programs: list[list[Op]] = [[] for _ in range(num_ranks)]
        self.free = [0] * num_ranks
        self.ended: dict[Op, int] = {}
        self.count = {kind: [0] * (2 * num_ranks) for kind in (F, BW)}

    def drafted(self) -> list[list[Op]]:
        """Run the first op of all that could run next, until there is none."""
        while True:
            choices = [choice for rank in range(self.num_ranks) for choice in self._choices(rank)]
            if not choices:
                return self.programs
            start, _, rank, op = min(choices)
            self.free[rank] = self.ended[op] = start + _UNITS[op.kind]
            self.count[op.kind][op.stage] += 1
            self.programs[rank].append(op)

    def _choices(self, rank: int) -> list[_Choice]:
        found = []
        for preference, (kind, group) in enumerate(_PREFERRED):
            stage = rank + group * self.num_ranks
            op = Op(kind, stage, self.count[kind][stage])
            needed = self._needed(op)
            if op.microbatch < self.m and self._may_run(op) and needed <= self.ended.keys():
                start = max((self.ended[other] for other in needed), default=0)
                found.append(_Choice(max(start, self.free[rank]), preference, rank, op))
        return found

    def _needed(self, op: Op) -> set[Op]:
        """The ops whose values an op reads."""
        if op.kind == F:
            return {op._replace(stage=op.stage - 1)} if op.stage else set()
        forward = op._replace(kind=F)
        is_last = op.stage == 2 * self.num_ranks - 1
        return {forward} if is_last else {forward, op._replace(stage=op.stage + 1)}

    def _may_run(self, op: Op) -> bool:
        """The rule of the groups: the updates before an op, and those after it."""
        batch, is_first_group = op.microbatch // self.every, op.stage < self.num_ranks
        if op.kind == F:
            # One batch of the first group may be unfinished, none of the second.
            return self.count[BW][op.stage] >= (batch - is_first_group) * self.every
        if not is_first_group or (op.microbatch + 1) % self.every:
            return True
        # The update of this batch follows all forwards of the next one.
        return self.count[F][op.stage] >= min(self.m, (batch + 2) * self.every)


def make(setting: Setting) -> Programs:
    """Draft all programs with the rule of the groups, and put the updates in."""
    n = setting.num_ranks
    every = batch_size(setting, 2 * n)
    return with_updates(_Drafting(n, setting.num_micro_batches, every).drafted(), every)


def versions(setting: Setting) -> WeightVersions:
    """The order alone says which versions forwards find."""
    every = batch_size(setting, 2 * setting.num_ranks)
    return WeightVersions(every, ForwardReads.NEWEST, BackwardReads.STASHED)


FAMILY = Family(
    "wpipe",
    "Yang et al., ICLR 2022",
    make,
    "looped:2",
    options=(EVERY,),
    buffering=patient,
    versions=versions,
)
