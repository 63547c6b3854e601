"""Random problems in which everything odd happens, and random valid schedules for them."""

import random
from collections.abc import Iterator
from typing import NamedTuple

from synth.costs.costs import Costs
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links, PairLink
from synth.schedule.ops import Op
from synth.solver.problem import Problem

F, B, W, BW, STEP = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP


def odd_costs(rng: random.Random, num_stages: int, num_ranks: int) -> Costs:
    """Ops of no duration, BW cheaper than B + W, B that adds, values held twice, slow links."""
    stages = tuple(_odd_stage(rng) for _ in range(num_stages))
    pairs = {}
    for _ in range(3):
        source, target = rng.randrange(num_ranks), rng.randrange(num_ranks)
        if source != target:
            bandwidth = rng.choice([None, 5e5])
            pairs[source, target] = PairLink(
                source=source,
                target=target,
                latency_us=rng.randint(0, 12),
                bandwidth_bytes_per_s=bandwidth,
            )
    default = Link(latency_us=rng.randint(0, 2), bandwidth_bytes_per_s=2e6)
    return Costs(stages=stages, links=Links(default=default, pairs=tuple(pairs.values())))


def _odd_stage(rng: random.Random) -> StageCosts:
    saved, saved_w, output = (
        rng.randint(0, 6),
        rng.choice([0, rng.randint(0, 8)]),
        rng.randint(1, 4),
    )
    times = {kind: rng.choice([0, rng.randint(1, 9), rng.randint(1, 9)]) for kind in (F, B, W)}
    if rng.random() < 0.3:
        times[W] = rng.randint(20, 40)
    together = times[B] + times[W]
    times[BW] = rng.randint(0, together) if rng.random() < 0.7 else together
    times[STEP] = rng.randint(0, 4)
    return StageCosts(
        duration_us=times,
        static_bytes=rng.randint(0, 3),
        output_bytes=output,
        saved_bytes=saved,
        saved_w_bytes=saved_w,
        rise_bytes={
            F: rng.randint(0, saved + output + 1),
            B: rng.randint(0, 6),
            W: rng.choice([0, rng.randint(0, 12)]),
            BW: rng.randint(0, 9),
            STEP: rng.randint(0, 3),
        },
        input_until=rng.choice([F, B, W]),
        output_until=rng.choice([F, B, W]),
        gradient_until=rng.choice([B, W]),
        gradient_bytes=rng.randint(0, 9),
        # Not of `rng`, so that what follows does not depend on it.
        reduce_us=random.Random(repr(times)).choice([0, 0, 0, 4, 30]),
    )


class _Next(NamedTuple):
    """An op that could come next, and how likely it is to."""

    weight: float
    rank: int
    op: Op


class RandomOrders:
    """Grows programs op by op, each op possible when it is chosen, micro-batches in order."""

    def __init__(self, rng: random.Random, problem: Problem) -> None:
        self.rng, self.placement = rng, problem.placement
        self.shares = [problem.share(r) for r in range(problem.num_replicas)]
        pairs = [
            (stage, replica)
            for replica in range(problem.num_replicas)
            for stage in range(self.placement.num_stages)
        ]
        self.forwards = dict.fromkeys(pairs, 0)
        self.backwards = dict.fromkeys(pairs, 0)
        self.waiting: dict[tuple[int, int], list[int]] = {pair: [] for pair in pairs}
        self.weight_share = rng.choice([0.1, 0.5, 0.9])
        self.forward_share = rng.choice([0.2, 0.5, 0.8])
        self.fused_share = rng.choice([0, 0.4, 1])

    def programs(self) -> tuple[tuple[Op, ...], ...]:
        """One valid order for each rank."""
        programs: list[list[Op]] = [[] for _ in range(self.placement.num_ranks)]
        while possible := list(self._possible()):
            chosen = self.rng.choices(possible, [option.weight for option in possible])[0]
            programs[chosen.rank].append(self._take(chosen.op))
        return tuple(map(tuple, programs))

    def _possible(self) -> Iterator[_Next]:
        last = self.placement.num_stages - 1
        for stage, replica in self.forwards:
            first, count = self.shares[replica]
            rank = self.placement.rank_of(stage, replica)
            f, b = self.forwards[stage, replica], self.backwards[stage, replica]
            if f < count and (stage == 0 or self.forwards[stage - 1, replica] > f):
                yield _Next(self.forward_share, rank, Op(F, stage, first + f, replica))
            if b < f and (stage == last or self.backwards[stage + 1, replica] > b):
                yield _Next(1.0, rank, Op(B, stage, first + b, replica))
            if self.waiting[stage, replica]:
                j = self.waiting[stage, replica][0]
                yield _Next(self.weight_share, rank, Op(W, stage, j, replica))

    def _take(self, op: Op) -> Op:
        pair = (op.stage, op.replica)
        if op.kind == F:
            self.forwards[pair] += 1
        elif op.kind == W:
            self.waiting[pair].pop(0)
        else:
            self.backwards[pair] += 1
            if self.rng.random() < self.fused_share:
                return op._replace(kind=BW)
            self.waiting[pair].append(op.microbatch)
        return op
