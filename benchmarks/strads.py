"""Scheduled model parallelism on Lasso: dependency check, priority and staleness, in updates.

Counts rounds and updates until the objective is within a tolerance of the optimum. The optimum is
that of coordinate descent one by one, certified by its duality gap. Counts do not depend on time,
and on the number of ranks only by rounding.

    python -m benchmarks.strads --ranks 2 --seeds 3 --json benchmarks/results/strads.json
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import isinf
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.results_file import Run, all_tables, parse_request, parser_of, report_rows
from benchmarks.strads_table import FORMAT, TABLES, Row
from synth.errors import TrainingDiverged
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks
from synth.runtime.strads import Engine, Lasso, PrioritySampler, RoundRobinSampler

# With a floor far above all changes, every parameter is drawn with the same probability (Shotgun).
UNIFORM = 1e9
SAMPLERS: dict[str, Callable[[int, int], PrioritySampler | RoundRobinSampler]] = {
    "priority": lambda count, seed: PrioritySampler(count, seed=seed),
    "round robin": lambda count, seed: RoundRobinSampler(count),
    "random": lambda count, seed: PrioritySampler(count, seed=seed, floor_share=UNIFORM),
}
# The optimum is known to this share, so tolerances above it are meaningful.
CERTIFIED = 1e-9


class Case(NamedTuple):
    """½‖y − Xβ‖² + λ‖β‖₁ with its least value."""

    features: Tensor
    targets: Tensor
    penalty: float
    optimum: float

    @property
    def parallel_limit(self) -> float:
        """Features over the spectral radius of XᵀX (Bradley et al. 2011, theorem 3.2)."""
        features = self.features
        return features.shape[1] / float(torch.linalg.matrix_norm(features, 2)) ** 2


class UpdateScheduling(NamedTuple):
    """A way to schedule updates."""

    sampler: str = "priority"
    block_size: int = 8
    threshold: float | None = 0.3
    depth: int = 0


class Count(NamedTuple):
    """The updates and rounds until each tolerance was reached; infinite if it never was."""

    rounds: list[float]
    updates: list[float]
    diverged: bool = False


def case_of(
    seed: int,
    groups: int,
    size: int,
    correlation: float,
    relevant: int,
    rows: int,
    penalty_share: float = 0.05,
) -> Case:
    """Groups of features with a common part; some features are relevant, the others are not.

    The penalty is a share of the least one for which all coefficients are 0.
    """
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    common = normal(rows, groups).repeat_interleave(size, dim=1)
    own = normal(rows, groups * size)
    features = correlation**0.5 * common + (1 - correlation) ** 0.5 * own
    features /= features.norm(dim=0)
    truth = torch.zeros(groups * size, dtype=torch.float64)
    truth[torch.randperm(groups * size, generator=draw)[:relevant]] = 10 * normal(relevant)
    targets = features @ truth + 0.1 * normal(rows)
    penalty = penalty_share * float((features.T @ targets).abs().max())
    return Case(features, targets, penalty, _optimum(features, targets, penalty))


def _optimum(features: Tensor, targets: Tensor, penalty: float) -> float:
    def solve(group: InProcessGroup) -> float:
        count = features.shape[1]
        sampler = RoundRobinSampler(count)
        model = Lasso(
            features, targets, penalty, group, sampler=sampler, block_size=1, threshold=None
        )
        engine = Engine(model, group)
        while model.duality_gap() > CERTIFIED * model.objective():
            for _ in range(10 * count):
                engine.step()
        return model.objective()

    return run_ranks(1, solve)[0]


def count(
    case: Case,
    way: UpdateScheduling,
    tolerances: Sequence[float],
    ranks: int,
    seed: int,
    most_rounds: int,
) -> Count:
    """Run until the last tolerance is reached."""
    try:
        rounds, updates = run_ranks(
            ranks, lambda group: _count(group, case, way, tolerances, seed, most_rounds)
        )[0]
        return Count(rounds, updates)
    except TrainingDiverged:
        never = [float("inf")] * len(tolerances)
        return Count(never, never, diverged=True)


def _count(
    group: InProcessGroup,
    case: Case,
    way: UpdateScheduling,
    tolerances: Sequence[float],
    seed: int,
    most_rounds: int,
) -> tuple[list[float], list[float]]:
    model = Lasso(
        case.features[group.rank :: group.size],
        case.targets[group.rank :: group.size],
        case.penalty,
        group,
        sampler=SAMPLERS[way.sampler](case.features.shape[1], seed),
        block_size=way.block_size,
        threshold=way.threshold,
    )
    engine = Engine(model, group, depth=way.depth)
    rounds, updates = [float("inf")] * len(tolerances), [float("inf")] * len(tolerances)
    reached = 0
    while reached < len(tolerances) and engine.num_rounds < most_rounds:
        engine.step()
        above = model.objective() / case.optimum - 1
        while reached < len(tolerances) and above <= tolerances[reached]:
            rounds[reached], updates[reached] = engine.num_rounds, engine.num_updates
            reached += 1
    return rounds, updates


class Problems(NamedTuple):
    """Problems of equal sizes, by seed."""

    correlation: float
    penalty_share: float
    cases: Sequence[Case]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save the rows of all problems and ways, then the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--most-rounds", type=int, default=3000)
    asked = parse_request(parser, arguments)
    about = (
        f"Lasso with 400 rows, {asked.ranks} ranks as threads of one process, at most "
        f"{asked.most_rounds} rounds (–: not reached)."
    )
    request = Run("strads", about, asked.seeds, 0, None)
    report_rows(_measured(asked), asked.json, FORMAT, request, all_tables(TABLES))
    return 0


def _measured(asked: Namespace) -> Iterator[Row]:
    correlated = [case_of(seed, 32, 4, 0.8, 32, 400) for seed in range(asked.seeds)]
    limit = median(case.parallel_limit for case in correlated)
    print(f"32 groups of 4 features, correlation 0.8: features / spectral radius = {limit:.1f}")
    for way in _ways():
        yield from _of_way(Problems(0.8, 0.05, correlated), way, [1e-4], asked)
    for share in (0.05, 0.2, 0.4):
        cases = [case_of(seed, 1000, 1, 0.0, 20, 400, share) for seed in range(asked.seeds)]
        for sampler in SAMPLERS:
            way, tolerances = UpdateScheduling(sampler), [1e-1, 1e-2, 1e-4, 1e-6]
            yield from _of_way(Problems(0.0, share, cases), way, tolerances, asked)


def _ways() -> list[UpdateScheduling]:
    """Block sizes with the newest parameters, and depths with small blocks; each once."""
    settings = [*product((4, 8, 16, 32), (0,)), *product((4,), (1, 2, 4))]
    return [
        UpdateScheduling(block_size=block_size, threshold=threshold, depth=depth)
        for (block_size, depth), threshold in product(settings, (None, 0.3))
    ]


def _of_way(
    problems: Problems,
    way: UpdateScheduling,
    tolerances: Sequence[float],
    asked: Namespace,
) -> Iterator[Row]:
    for seed, case in enumerate(problems.cases):
        found = count(case, way, tolerances, asked.ranks, seed, asked.most_rounds)
        for tolerance, *figures in zip(tolerances, found.rounds, found.updates, strict=True):
            rounds, updates = (None if isinf(one) else int(one) for one in figures)
            yield Row(
                problems.correlation, seed, problems.penalty_share, *way, tolerance, rounds,
                updates, found.diverged,
            )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
