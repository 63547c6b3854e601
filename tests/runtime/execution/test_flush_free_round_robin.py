"""1F1B-RR, replayed: weights equal those of the recurrence of stages on several ranks.

The reference runs in one process, micro-batch by micro-batch. Which version a micro-batch reads is
written down here from the numbers of micro-batches that ranks admit, not taken from the schedule.
An update takes the sums of a stage's ranks, in the order of the ranks, and divides them by their
number, as DistributedDataParallel's mean does.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import lcm
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from synth.errors import RunFailure, SynthError
from synth.families import generate
from synth.schedule.model import Schedule
from synth.schedule.version_facts import version_facts
from tests.runtime.execution.test_flush_free import (
    ITERATIONS,
    OPTIMIZERS,
    Versions,
    batch_of,
    train,
)
from tests.runtime.rank_threads import RankThreads, group_here
from tests.runtime.replaying import build_stages

MICRO_BATCHES = 12

# The version that stage s reads for micro-batch j, forward and backward.
Reads = Callable[[int, int], int]


def noam(ranks: Sequence[int]) -> list[int]:
    """The micro-batches that each rank of a stage admits, in PipeDream."""
    later = [1 + sum(ranks[s + 1 :]) // ranks[s] for s in range(1, len(ranks))]
    return [-(-sum(ranks) // ranks[0]), *later]


def full(ranks: Sequence[int]) -> list[int]:
    """The same where the pipeline stays full."""
    counts = [1]
    for own, behind in reversed(list(pairwise(ranks))):
        needed = counts[0] * behind + own + lcm(own, behind) - 1
        counts.insert(0, -(-needed // own))
    return counts


def newest(ranks: Sequence[int], admits: Sequence[int]) -> Reads:
    """A rank's i-th forward of a stage is behind its update i − K, if it admits K at first."""
    return lambda s, j: max(0, j // ranks[s] - admits[s] + 1)


def vertical(ranks: Sequence[int], admits: Sequence[int]) -> Reads:
    return lambda s, j: max(0, j // ranks[0] - admits[0] + 1)


def batch_before(size: int) -> Reads:
    return lambda s, j: max(0, j // size - 1)


# The ranks of each stage, the micro-batches of an update on each of them, and the versions read.
CASES: dict[str, tuple[tuple[int, ...], int, Reads]] = {
    "pipedream:2-1": ((2, 1), 1, newest((2, 1), noam((2, 1)))),
    "pipedream:1-2": ((1, 2), 1, newest((1, 2), noam((1, 2)))),
    "pipedream:3-1": ((3, 1), 1, newest((3, 1), noam((3, 1)))),
    "pipedream:3-2,full": ((3, 2), 1, newest((3, 2), full((3, 2)))),
    "pipedream:1-2-1": ((1, 2, 1), 1, newest((1, 2, 1), noam((1, 2, 1)))),
    "pipedream:2,vertical": ((2, 2), 1, vertical((2, 2), noam((2, 2)))),
    "2bw:2,every=3": ((2, 2), 3, batch_before(6)),
    "2bw:2,recompute,every=2": ((2, 2), 2, batch_before(4)),
}


def recurrence(name: str, optimizer: str, clip_norm: float | None = None) -> list[nn.Module]:
    """Train in one process, each stage with the version that it reads."""
    ranks, every, reads = CASES[name]
    stages = build_stages(len(ranks))
    state = Versions(stages, optimizer)
    smallest = every * min(ranks)
    for iteration in range(ITERATIONS):
        state.begin()
        sums: list[list[dict[str, Tensor]]] = [[{} for _ in range(r)] for r in ranks]
        for j, (x, targets) in enumerate(zip(*batch_of(MICRO_BATCHES, 1, iteration), strict=True)):
            used = []
            for s, stage in enumerate(stages):
                kept = state.kept[s][reads(s, j)]
                weights = {n: tensor.clone().requires_grad_() for n, tensor in kept.items()}
                used.append(weights)
                arguments = (x, targets) if s == len(stages) - 1 else (x,)
                x = functional_call(stage, weights, arguments)
            (x * (1 / smallest)).backward()
            for s, weights in enumerate(used):
                own = sums[s][j % ranks[s]]
                for parameter, tensor in weights.items():
                    assert tensor.grad is not None
                    own[parameter] = own.get(parameter, torch.zeros_like(tensor)) + tensor.grad
                if (j + 1) % (every * ranks[s]) == 0:
                    _update(state, s, sums[s], min(ranks) / ranks[s], clip_norm)
    return stages


def _update(
    state: Versions,
    s: int,
    sums: list[dict[str, Tensor]],
    share: float,
    clip_norm: float | None,
) -> None:
    for name, parameter in state.stages[s].named_parameters():
        total = sums[0][name].clone()
        for other in sums[1:]:
            total += other[name]
        parameter.grad = total * share
    if clip_norm is not None:
        norm = nn.utils.clip_grad_norm_(state.stages[s].parameters(), clip_norm)
        assert norm > 2 * clip_norm  # else the case would not clip
    state.update_stage(s)
    for each in sums:
        each.clear()


def _check(by_rank: list[Any], name: str, schedule: Schedule, stages: list[nn.Module]) -> None:
    from synth.runtime.pipeline.rank_parts import lower_verified

    facts = version_facts(lower_verified(schedule))
    most_held = [0] * len(stages)
    for rank, ((weights, most, left),) in enumerate(by_rank):
        (stage,) = {stage for stage, _ in schedule.placement.held[rank]}
        assert left == 0
        assert all(map(torch.equal, weights[0], stages[stage].parameters())), (name, rank)
        most_held[stage] = max(most_held[stage], most)
    assert most_held == [each.alive for each in facts]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", CASES)
def test_ranks_of_a_stage_train_as_the_recurrence_says(name: str, optimizer: str) -> None:
    num_ranks = sum(CASES[name][0])
    schedule = generate(name, num_ranks, MICRO_BATCHES)
    by_rank = RankThreads().run(train, num_ranks, [schedule], False, optimizer)
    _check(by_rank, name, schedule, recurrence(name, optimizer))


def test_ranks_of_a_stage_clip_by_the_norm_of_the_whole_update() -> None:
    """With momentum a factor of the clipped gradient would be seen, as one of AdamW's is not."""
    name, optimizer, clip_norm = "pipedream:1-2", "sgd:0.9", 0.01
    schedule = generate(name, 3, MICRO_BATCHES)
    by_rank = RankThreads().run(train, 3, [schedule], False, optimizer, clip_norm)
    stages = recurrence(name, optimizer, clip_norm)
    for rank, (((found,), _, _),) in enumerate(by_rank):
        expected = [p.detach() for p in stages[min(rank, 1)].parameters()]
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert all(map(torch.equal, by_rank[1][0][0][0], by_rank[2][0][0][0]))


class _SparseEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=True)

    def forward(self, tokens_B: Tensor) -> Tensor:
        found: Tensor = self.table(tokens_B)
        return found


def _connect_sparse(rank: int, size: int, schedule: Schedule) -> str:
    from synth.runtime.pipeline import Pipeline

    stages = [_SparseEmbedding(), nn.Linear(2, 1)]
    mine = {stage: stages[stage] for stage, _ in schedule.placement.held[rank]}
    try:
        Pipeline(schedule, mine, group=group_here())
    except (SynthError, RunFailure) as error:
        return str(error)
    return ""


def test_sparse_gradients_of_a_stage_on_several_ranks_are_refused() -> None:
    said = RankThreads().run(_connect_sparse, 3, generate("pipedream:2-1", 3, 4))
    assert all("make it with sparse=False" in each for each in said[:2]), said


def test_with_gloo_processes_the_weights_are_the_same(pool: Any) -> None:
    """Two ranks add up in either order to the same bits."""
    name = "pipedream:2-1"
    schedule = generate(name, 3, MICRO_BATCHES)
    by_rank = pool.run(train, 3, [schedule], False, "adamw")
    _check(by_rank, name, schedule, recurrence(name, "adamw"))


def test_three_gloo_ranks_of_a_stage_have_equal_weights_and_sums_to_rounding(pool: Any) -> None:
    """The order in which gloo adds up three ranks is its own, but the same for all of them."""
    name = "pipedream:3-1"
    by_rank = pool.run(train, 4, [generate(name, 4, MICRO_BATCHES)], False, "sgd:0.9")
    held = [weights[0] for ((weights, _, _),) in by_rank[:3]]
    for other in held[1:]:
        assert all(map(torch.equal, held[0], other))
    expected = recurrence(name, "sgd:0.9")[0].parameters()
    for found, parameter in zip(held[0], expected, strict=True):
        torch.testing.assert_close(found, parameter.detach(), rtol=1e-5, atol=1e-6)


def _evaluate(rank: int, size: int, schedule: Schedule) -> float:
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    stages = build_stages(schedule.placement.num_stages)
    mine = {stage: stages[stage] for stage, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(schedule, mine, group=group_here())
    loss = pipeline.evaluate(Batch(*batch_of(schedule.num_micro_batches, 1, 0)))
    return 0.0 if loss is None else float(loss)


@pytest.mark.parametrize("name", ["pipedream:2-1", "pipedream:1-2"])
def test_a_mini_batch_is_evaluated_by_the_ranks_in_turn(name: str) -> None:
    found = sum(RankThreads().run(_evaluate, 3, generate(name, 3, 4)))
    first, last = build_stages(2)
    with torch.no_grad():
        losses = [last(first(x), targets) for x, targets in zip(*batch_of(4, 1, 0), strict=True)]
    assert found == pytest.approx(float(sum(losses)) / 4)
