"""Scheduled model parallelism against its rivals, in rounds and updates; and its other engines.

    python -m benchmarks.strads_rivals --seeds 3 --json benchmarks/results/strads-rivals.json

Lasso and logistic regression run with priorities, round robin and random draws, all with the
dependency check, and as Shotgun does, with random draws and no check. The optimum is that of long
coordinate descent one by one. Matrix factorization and the topic model have static schedules, each
beside the same model without one. All counts and likelihoods depend on the seeds alone.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.results_file import (
    Run,
    Table,
    all_tables,
    markdown_table,
    parse_request,
    parser_of,
    report_rows,
)
from benchmarks.strads import SAMPLERS, Case, UpdateScheduling, case_of, count
from examples.strads.logistic_regression import LogisticRegression
from examples.strads.matrix_factorization import MatrixFactorization
from examples.strads.topic_model import TopicModel
from synth.errors import TrainingDiverged
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks
from synth.runtime.strads import Engine, RoundRobinSampler

FORMAT = "synth-strads-rivals-benchmark-1"
_RANKS, _BLOCK, _THRESHOLD, _NEAR, _MOST_ROUNDS = 1, 16, 0.3, 1e-4, 1000

_WAYS = {
    "priority, check": UpdateScheduling("priority", _BLOCK, _THRESHOLD),
    "round robin, check": UpdateScheduling("round robin", _BLOCK, _THRESHOLD),
    "random, check": UpdateScheduling("random", _BLOCK, _THRESHOLD),
    "Shotgun (random)": UpdateScheduling("random", _BLOCK, None),
}
# Groups, features of a group, their correlation, relevant features, rows, share of the penalty.
_PROBLEMS = {
    "independent, few not 0": (400, 1, 0.0, 10, 200, 0.4),
    "independent, many not 0": (400, 1, 0.0, 10, 200, 0.1),
    "correlated": (32, 4, 0.8, 32, 200, 0.1),
}


class Row(NamedTuple):
    """A run.

    Attributes:
        figure: rounds; of the static models an objective or a log-likelihood. None: not reached.
        updates: of parameters; None as above.
    """

    model: str
    problem: str
    way: str
    seed: int
    figure: float | None
    updates: float | None
    diverged: bool = False


def _logistic(case: Case, way: UpdateScheduling, seed: int, optimum: float) -> Row | None:
    labels = case.targets.sign()

    def run(group: InProcessGroup) -> tuple[int, int] | None:
        own = slice(group.rank, None, group.size)
        model = LogisticRegression(
            case.features[own], labels[own], _penalty(case), group,
            sampler=SAMPLERS[way.sampler](case.features.shape[1], seed),
            block_size=way.block_size, threshold=way.threshold,
        )  # fmt: skip
        engine = Engine(model, group)
        while engine.num_rounds < _MOST_ROUNDS:
            engine.step()
            value = model.objective()
            if value <= (1 + _NEAR) * optimum:
                return engine.num_rounds, engine.num_updates
            if not value < 100 * optimum:
                raise TrainingDiverged("the objective grows beyond all bounds")
        return None

    try:
        found = run_ranks(_RANKS, run)[0]
    except TrainingDiverged:
        return Row("logistic regression", "", "", seed, None, None, diverged=True)
    return Row("logistic regression", "", "", seed, *(found or (None, None)))


def _penalty(case: Case) -> float:
    """Return the penalty for the labels, as large a share of the largest one as the case's."""
    largest = float((case.features.T @ case.targets).abs().max())
    share = case.penalty / largest
    return share * float((case.features.T @ case.targets.sign()).abs().max()) / 2


def _logistic_optimum(case: Case) -> float:
    def run(group: InProcessGroup) -> float:
        num_features = case.features.shape[1]
        model = LogisticRegression(
            case.features, case.targets.sign(), _penalty(case), group,
            sampler=RoundRobinSampler(num_features), block_size=1, threshold=None,
        )  # fmt: skip
        engine, before = Engine(model, group), inf
        while (value := model.objective()) < (1 - 1e-8) * before:
            before = value
            for _ in range(num_features):
                engine.step()
        return value

    return run_ranks(1, run)[0]


def _dynamic(seeds: int) -> Iterator[Row]:
    for problem, (groups, size, correlation, relevant, rows, share) in _PROBLEMS.items():
        for seed in range(seeds):
            case = case_of(seed, groups, size, correlation, relevant, rows, share)
            optimum = _logistic_optimum(case)
            for name, way in _WAYS.items():
                found = count(case, way, [_NEAR], _RANKS, seed, _MOST_ROUNDS)
                rounds, updates = (
                    None if one == inf else one for one in (found.rounds[0], found.updates[0])
                )
                yield Row("Lasso", problem, name, seed, rounds, updates, found.diverged)
                row = _logistic(case, way, seed, optimum)
                assert row is not None
                yield row._replace(problem=problem, way=name)


def _factors(seed: int, num_ranks: int, sweeps: int) -> float:
    """Return the objective after some sweeps over the factors."""
    draw = torch.Generator().manual_seed(seed)
    truth = [torch.randn(n, 5, generator=draw, dtype=torch.float64) for n in (120, 80)]
    matrix = truth[0] @ truth[1].T
    is_observed = torch.rand(matrix.shape, generator=draw) < 0.4

    def run(group: InProcessGroup) -> float:
        own = slice(group.rank, None, group.size)
        model = MatrixFactorization(
            matrix[own], is_observed[own], 0.1, group, num_factors=5, seed=seed
        )
        engine = Engine(model, group)
        for _ in range(5 * sweeps):
            engine.step()
        engine.drain()
        return model.objective()

    return run_ranks(num_ranks, run)[0]


def _topics(seed: int, sweeps: int, *, rotates: bool) -> float:
    """Return the log-likelihood of the tokens after some sweeps."""
    draw = torch.Generator().manual_seed(seed)
    num_topics, num_words, num_documents, length = 6, 60, 48, 40
    topics = torch.zeros(num_topics, num_words)
    for topic in range(num_topics):
        topics[topic, 10 * topic : 10 * topic + 10] = 1
    shares = torch.rand(num_documents, num_topics, generator=draw) ** 6
    drawn = torch.multinomial(shares, length, replacement=True, generator=draw)
    words = torch.multinomial(topics[drawn.flatten()], 1, generator=draw).flatten()
    documents = torch.arange(num_documents).repeat_interleave(length)

    def run(group: InProcessGroup) -> float:
        own = documents % group.size == group.rank
        model = TopicModel(
            documents[own] // group.size, words[own], num_words, group,
            num_topics=num_topics, seed=seed, rotates=rotates,
        )  # fmt: skip
        engine = Engine(model, group)
        for _ in range(sweeps * (group.size if rotates else 1)):
            engine.step()
        engine.drain()
        return model.log_likelihood()

    return run_ranks(4, run)[0]


def _static(seeds: int) -> Iterator[Row]:
    for seed in range(seeds):
        for sweeps in (1, 4, 16):
            for ranks in (1, 4):
                found = _factors(seed, ranks, sweeps)
                way = f"static, {ranks} rank" + "s" * (ranks > 1)
                yield Row("matrix factorization", f"{sweeps} sweeps", way, seed, found, None)
        for sweeps in (1, 4, 16):
            for rotates in (True, False):
                way = "static, words rotate" if rotates else "all words at once"
                likelihood = _topics(seed, sweeps, rotates=rotates)
                yield Row("topic model", f"{sweeps} sweeps", way, seed, likelihood, None)


def _rows(document: Mapping[str, Any], *, is_dynamic: bool) -> list[Row]:
    rows = [Row(**row) for row in document["rows"]]
    return [row for row in rows if (row.way in _WAYS) == is_dynamic]


def _lines(rows: Sequence[Row], shown: Callable[[Sequence[Row]], str], ways: Sequence[str]) -> str:
    keys = dict.fromkeys((row.model, row.problem) for row in rows)
    lines = [
        [
            *key,
            *(shown([r for r in rows if (r.model, r.problem, r.way) == (*key, w)]) for w in ways),
        ]
        for key in keys
    ]
    return markdown_table(("model", "problem", *ways), lines)


def _dynamic_table(document: Mapping[str, Any]) -> str:
    return _lines(_rows(document, is_dynamic=True), _counts, [*_WAYS])


def _counts(rows: Sequence[Row]) -> str:
    """Return rounds and updates, medians."""
    diverged = sum(row.diverged for row in rows)
    if diverged:
        return f"{diverged} of {len(rows)} diverge{'s' * (diverged == 1)}"
    figures = [
        median(inf if one is None else one for one in column)
        for column in ([row.figure for row in rows], [row.updates for row in rows])
    ]
    return "–" if inf in figures else " / ".join(f"{one:.0f}" for one in figures)


def _static_table(document: Mapping[str, Any]) -> str:
    rows = _rows(document, is_dynamic=False)
    parts = []
    for model in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == model]
        parts.append(_lines(own, _middle, [*dict.fromkeys(row.way for row in own)]))
    return "\n\n".join(parts)


def _middle(rows: Sequence[Row]) -> str:
    return f"{median(row.figure or 0.0 for row in rows):.3f}"


TABLES: dict[str, Table] = {"dynamic": _dynamic_table, "static": _static_table}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save the rows, then the tables."""
    parser = parser_of(__doc__)
    asked = parse_request(parser, arguments)
    about = (
        f"blocks of {_BLOCK}, ρ = {_THRESHOLD}, at most {_MOST_ROUNDS} rounds (–: not reached); "
        "static models on 1 or 4 ranks as threads of one process."
    )
    request = Run("strads-rivals", about, asked.seeds, 0, None)
    measured = (row for part in (_dynamic, _static) for row in part(asked.seeds))
    report_rows(measured, asked.json, FORMAT, request, all_tables(TABLES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
