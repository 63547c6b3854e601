"""STRADS: scheduled model parallelism, proven on Lasso by parallel coordinate descent.

Solutions are judged by the optimality conditions on the whole problem, which no code of the ranks
computes, and by closed forms.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from benchmarks.strads import SAMPLERS, UpdateScheduling, case_of, count
from synth.errors import SynthError, TrainingDiverged
from synth.runtime.execution.transport.groups import Group
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks
from synth.runtime.strads import (
    DependencyCheck,
    DynamicScheduler,
    Engine,
    Lasso,
    PrioritySampler,
    RoundRobinSampler,
    ScheduledModel,
)

Array = npt.NDArray[np.float64]
Sample = Callable[[int], Any]


class Problem(NamedTuple):
    """½‖y − Xβ‖² + λ‖β‖₁."""

    features: Array
    targets: Array
    penalty: float


def correlated(groups: int, size: int, correlation: float, rows: int = 200) -> Problem:
    """Groups of strongly correlated features, of which one per group matters."""
    draw = np.random.default_rng(1)
    common = np.repeat(draw.standard_normal((rows, groups)), size, axis=1)
    own = draw.standard_normal((rows, groups * size))
    features = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
    features /= np.linalg.norm(features, axis=0)
    truth = np.zeros(groups * size)
    truth[::size] = 10 * draw.standard_normal(groups)
    targets = features @ truth + 0.1 * draw.standard_normal(rows)
    return Problem(features, targets, 0.05 * float(np.abs(features.T @ targets).max()))


def lasso_of(
    problem: Problem,
    group: Any,
    *,
    size: int,
    threshold: float | None,
    sample: Sample = PrioritySampler,
) -> Lasso:
    """Every rank takes every so many-th row, so ranks may have different numbers of rows."""
    rows = torch.from_numpy(problem.features[group.rank :: group.size])
    targets = torch.from_numpy(problem.targets[group.rank :: group.size])
    sampler = sample(problem.features.shape[1])
    return Lasso(
        rows, targets, problem.penalty, group, sampler=sampler, block_size=size, threshold=threshold
    )


class Solution(NamedTuple):
    """The result of one rank."""

    coefficients: Array
    gap: float
    objective: float
    updates: int
    staleness: int


def solve(group: Any, problem: Problem, rounds: int, depth: int = 0, **options: Any) -> Solution:
    """Run some rounds on one rank of a group."""
    model = lasso_of(problem, group, **options)
    engine = Engine(model, group, depth=depth)
    for _ in range(rounds):
        engine.step()
    engine.drain()
    found = (model.duality_gap(), model.objective(), engine.num_updates, engine.largest_staleness)
    return Solution(model.coefficients.numpy(), *found)


def violation(problem: Problem, found: Array) -> float:
    """The largest violation of the optimality conditions, as a share of the penalty."""
    products = problem.features.T @ (problem.targets - problem.features @ found)
    slack = np.where(
        found == 0,
        np.maximum(np.abs(products) - problem.penalty, 0),
        np.abs(products - problem.penalty * np.sign(found)),
    )
    return float(slack.max()) / problem.penalty


def objective(problem: Problem, found: Array) -> float:
    residual = problem.targets - problem.features @ found
    return float(residual @ residual / 2 + problem.penalty * np.abs(found).sum())


def test_orthonormal_features_are_solved_by_one_update_each() -> None:
    draw = np.random.default_rng(0)
    features = np.linalg.qr(draw.standard_normal((60, 24)))[0]
    problem = Problem(features, 3 * draw.standard_normal(60), 0.8)

    found = run_ranks(3, lambda group: solve(group, problem, 3, size=8, threshold=1e-9))

    products = features.T @ problem.targets
    closed = np.sign(products) * np.maximum(np.abs(products) - 0.8, 0)
    assert 0 < np.count_nonzero(closed) < 24
    for each in found:
        assert each.updates == 24
        np.testing.assert_allclose(each.coefficients, closed, atol=1e-12)


@pytest.mark.parametrize("sample", [PrioritySampler, RoundRobinSampler])
@pytest.mark.parametrize("depth", [0, 2])
def test_four_ranks_reach_the_optimum_of_correlated_features(sample: Sample, depth: int) -> None:
    problem = correlated(groups=8, size=4, correlation=0.7)

    found = run_ranks(
        4, lambda group: solve(group, problem, 400, depth, size=4, threshold=0.3, sample=sample)
    )

    first = found[0]
    assert violation(problem, first.coefficients) < 1e-6
    assert first.objective == pytest.approx(objective(problem, first.coefficients), rel=1e-12)
    assert -1e-12 < first.gap / first.objective < 1e-6
    assert first.staleness == depth
    for each in found:  # all ranks agree to the last bit
        np.testing.assert_array_equal(each.coefficients, first.coefficients)


def test_parallel_updates_beyond_the_spectral_limit_diverge_unless_checked() -> None:
    """Bradley et al. 2011 bound the parallelism by features / spectral radius of XᵀX."""
    problem = correlated(groups=8, size=8, correlation=0.8)
    radius = np.linalg.eigvalsh(problem.features.T @ problem.features)[-1]
    parallel, limit = 32, 64 / radius
    assert parallel > 3 * limit
    start = objective(problem, np.zeros(64))

    with pytest.raises(TrainingDiverged, match="check dependencies"):
        run_ranks(2, lambda group: solve(group, problem, 500, size=parallel, threshold=None))
    checked = run_ranks(2, lambda group: solve(group, problem, 500, size=parallel, threshold=0.5))

    assert violation(problem, checked[0].coefficients) < 1e-3
    assert checked[0].objective < start / 2
    assert checked[0].updates > 4 * 500  # several at a time all the same


def test_below_the_threshold_of_gershgorin_no_round_makes_the_objective_larger() -> None:
    """(P − 1) ρ < 1 bounds the spectral radius of a block's Gram matrix below 2."""
    problem, size = correlated(groups=12, size=5, correlation=0.8), 6

    def run(group: InProcessGroup) -> list[float]:
        model = lasso_of(problem, group, size=size, threshold=0.99 / (size - 1))
        engine = Engine(model, group)
        values = [model.objective()]
        for _ in range(300):
            engine.step()
            values.append(model.objective())
        return values

    values = run_ranks(1, run)[0]
    assert all(after <= before * (1 + 1e-14) for before, after in pairwise(values))


class Recorded(Lasso):
    """Keeps the blocks in the order in which they were pushed."""

    blocks: list[Tensor]

    def push(self, block: Tensor) -> Tensor:
        self.blocks.append(block)
        return super().push(block)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_push_reads_parameters_that_lack_exactly_the_blocks_in_flight(depth: int) -> None:
    problem, rounds = correlated(groups=10, size=4, correlation=0.2), 40

    def run(group: InProcessGroup) -> Recorded:
        rows = torch.from_numpy(problem.features[group.rank :: group.size])
        targets = torch.from_numpy(problem.targets[group.rank :: group.size])
        sampler = PrioritySampler(40, seed=7)
        model = Recorded(
            rows, targets, problem.penalty, group, sampler=sampler, block_size=3, threshold=None
        )
        model.blocks = []
        engine = Engine(model, group, depth=depth)
        for _ in range(rounds):
            engine.step()
        engine.drain()
        return model

    model = run_ranks(2, run)[0]

    versions = [np.zeros(40)]
    for number, block in enumerate(model.blocks):
        stale = versions[max(0, number - depth)]
        products = problem.features.T @ (problem.targets - problem.features @ stale)
        goal = products + stale
        best = np.sign(goal) * np.maximum(np.abs(goal) - problem.penalty, 0)
        after = versions[-1].copy()
        after[block] = best[block]
        versions.append(after)
    assert len(versions) == rounds + 1
    np.testing.assert_allclose(model.coefficients.numpy(), versions[-1], rtol=1e-10, atol=1e-12)


def test_gloo_processes_and_threads_find_the_same(pool: Any) -> None:
    by_process = pool.run(solve_on_gloo, 2)
    problem = correlated(groups=6, size=3, correlation=0.5)
    by_thread = run_ranks(2, lambda group: solve(group, problem, 200, 1, size=3, threshold=0.3))
    for mine, other in zip(by_process, by_thread, strict=True):
        np.testing.assert_array_equal(mine, other.coefficients)


class Empty(ScheduledModel):
    """A model that never schedules anything."""

    def schedule(self, in_flight: Tensor) -> Tensor:
        return in_flight[:0]

    def push(self, block: Tensor) -> Tensor:
        raise AssertionError

    def pull(self, block: Tensor, total: Tensor) -> Tensor:
        raise AssertionError


class Strided(Empty):
    """Pushes every other element of a tensor."""

    total: Tensor

    def schedule(self, in_flight: Tensor) -> Tensor:
        return torch.arange(3)

    def push(self, block: Tensor) -> Tensor:
        return torch.arange(6.0)[::2]

    def pull(self, block: Tensor, total: Tensor) -> Tensor:
        self.total = total
        return total


def strided_on_gloo(rank: int, size: int) -> list[float]:
    model = Strided()
    Engine(model, Group.world()).step()
    return model.total.tolist()


def test_a_push_may_return_a_view(pool: Any) -> None:
    assert pool.run(strided_on_gloo, 2) == [[0.0, 4.0, 8.0]] * 2


def solve_on_gloo(rank: int, size: int) -> Array:
    problem = correlated(groups=6, size=3, correlation=0.5)
    return solve(Group.world(), problem, 200, 1, size=3, threshold=0.3).coefficients


def test_parameters_are_drawn_by_their_last_change() -> None:
    sampler = PrioritySampler(4, seed=3)
    first = torch.cat([sampler.draw(2, torch.empty(0, dtype=torch.int64)) for _ in range(1)])
    sampler.changed(first, torch.ones(2))
    second = sampler.draw(2, torch.empty(0, dtype=torch.int64))
    assert sorted([*first.tolist(), *second.tolist()]) == [0, 1, 2, 3]  # new ones come first
    sampler.changed(torch.arange(4), torch.tensor([3.0, -1.0, 0.0, 4.0], dtype=torch.float64))

    none = torch.empty(0, dtype=torch.int64)
    drawn = torch.stack([sampler.draw(1, none) for _ in range(4000)]).flatten()
    counts = torch.bincount(drawn, minlength=4) / 4000

    floor = 0.01 * 8 / 3
    expected = (torch.tensor([3.0, 1.0, 0.0, 4.0]) + floor) / (8 + 4 * floor)
    assert torch.allclose(counts, expected, atol=0.03)
    assert 3 not in torch.stack([sampler.draw(3, torch.tensor([3])) for _ in range(50)])


def test_priority_takes_fewer_updates_than_a_fixed_or_random_order_to_a_sparse_solution() -> None:
    case = case_of(0, 200, 1, 0.0, relevant=5, rows=150, penalty_share=0.4)

    found = {
        name: count(
            case, UpdateScheduling(name), [1e-6], ranks=1, seed=0, most_rounds=2000
        ).updates[0]
        for name in SAMPLERS
    }

    assert 1.5 * found["priority"] < found["round robin"] < found["random"] < float("inf")


def test_the_check_keeps_preferred_candidates_that_fit_to_all_others() -> None:
    # 0–1, 2–3 and 0–5 depend on each other.
    matrix = torch.eye(6)
    for one, other in ((0, 1), (2, 3), (0, 5)):
        matrix[one, other] = matrix[other, one] = -0.6
    check = DependencyCheck(lambda some, others: matrix[some][:, others], 0.5)
    candidates = torch.tensor([3, 1, 2, 0, 4])

    def kept(in_flight: list[int], most: int) -> list[int]:
        return check.keep(candidates, torch.tensor(in_flight, dtype=torch.int64), most).tolist()

    assert kept([], 9) == [3, 1, 4]
    assert kept([], 2) == [3, 1]
    assert kept([5], 9) == [3, 1, 4]
    assert kept([0], 9) == [3, 4]  # 1 depends on what is in flight, as 0 does on itself


def test_round_robin_leaves_a_rejected_candidate_ahead() -> None:
    # 0 depends on every other: it is taken alone, after the others have not been able to wait.
    matrix = torch.eye(4)
    matrix[0] = 1.0
    matrix[:, 0] = 1.0
    check = DependencyCheck(lambda some, others: matrix[some][:, others], 0.5)
    scheduler = DynamicScheduler(RoundRobinSampler(4), 3, check=check, candidates=4)
    none = torch.empty(0, dtype=torch.int64)

    blocks = [scheduler.next_block(none).tolist() for _ in range(4)]

    assert blocks == [[0], [1, 2, 3], [0], [1, 2, 3]]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda group: Engine(Empty(), group).step(), "schedules no parameter"),
        (lambda group: Engine(Empty(), group, depth=-1), "depth is -1"),
        (lambda group: PrioritySampler(4, floor_share=0), "must be positive"),
        (lambda group: DynamicScheduler(RoundRobinSampler(4), 0, check=None), "blocks of 0"),
        (
            lambda group: DynamicScheduler(RoundRobinSampler(4), 2, check=None, candidates=0),
            "from 0 candidates",
        ),
        (lambda group: one_feature(group, torch.zeros(3, 1)), "feature 0 is 0 in all rows"),
        (lambda group: one_feature(group, torch.ones(2, 1)), r"\[2, 1\] and targets \[3\]"),
        (lambda group: one_feature(group, torch.ones(3, 1), penalty=-1.0), "penalty is -1"),
        (lambda group: one_feature(group, torch.ones(3, 1), threshold=-0.1), "threshold is -0.1"),
    ],
)
def test_wrong_arguments_are_explained(wrong: Callable[[Any], object], words: str) -> None:
    with pytest.raises(SynthError, match=words):
        run_ranks(1, wrong)


def one_feature(
    group: Any, rows: Tensor, penalty: float = 1.0, threshold: float | None = None
) -> Lasso:
    return Lasso(
        rows,
        torch.ones(3),
        penalty,
        group,
        sampler=RoundRobinSampler(1),
        block_size=1,
        threshold=threshold,
    )
