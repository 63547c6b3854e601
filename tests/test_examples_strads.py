"""The models of examples/strads: optimality, sums over ranks, and the static schedule."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from benchmarks.strads_rivals import TABLES
from examples.strads.logistic_regression import LogisticRegression
from examples.strads.matrix_factorization import MatrixFactorization
from examples.strads.topic_model import TopicModel
from synth.errors import SynthError
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks
from synth.runtime.strads import Engine, PrioritySampler, StaticScheduler

NONE_IN_FLIGHT = torch.empty(0, dtype=torch.int64)


def test_a_static_schedule_goes_through_its_blocks_and_waits_for_those_in_flight() -> None:
    blocks = [torch.tensor([0, 1]), torch.tensor([2])]
    scheduler = StaticScheduler(blocks)
    assert not len(scheduler.next_block(torch.tensor([1])))
    drawn = [scheduler.next_block(NONE_IN_FLIGHT).tolist() for _ in range(3)]
    assert drawn == [[0, 1], [2], [0, 1]]
    for wrong in ([], [NONE_IN_FLIGHT]):
        with pytest.raises(SynthError, match="give at least one"):
            StaticScheduler(wrong)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_logistic_regression_meets_the_conditions_of_its_optimum(num_ranks: int) -> None:
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(60, 20, generator=draw, dtype=torch.float64)
    labels = (features[:, 0] + 0.5 * torch.randn(60, generator=draw)).sign()
    penalty = 4.0

    def run(group: InProcessGroup) -> Tensor:
        own = slice(group.rank, None, group.size)
        model = LogisticRegression(
            features[own], labels[own], penalty, group,
            sampler=PrioritySampler(20), block_size=4, threshold=0.2,
        )  # fmt: skip
        engine = Engine(model, group, depth=1)
        for _ in range(600):
            engine.step()
        engine.drain()
        return model.coefficients

    found = run_ranks(num_ranks, run)[0]
    slopes = features.T @ (-labels * torch.sigmoid(-labels * (features @ found)))
    is_zero = found == 0
    assert 0 < int(is_zero.sum()) < 20
    assert float(slopes[is_zero].abs().max()) <= penalty + 1e-6
    expected = -penalty * found[~is_zero].sign()
    torch.testing.assert_close(slopes[~is_zero], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("depth", [0, 1])
def test_matrix_factorization_never_gets_worse_and_does_not_depend_on_the_ranks(depth: int) -> None:
    draw = torch.Generator().manual_seed(1)
    matrix = torch.randn(12, 9, generator=draw, dtype=torch.float64)
    is_observed = torch.rand(12, 9, generator=draw) < 0.7

    def run(group: InProcessGroup) -> list[float]:
        own = slice(group.rank, None, group.size)
        model = MatrixFactorization(
            matrix[own], is_observed[own], 0.5, group, num_factors=3, seed=2
        )
        engine, found = Engine(model, group, depth=depth), []
        for _ in range(24):
            engine.step()
            found.append(model.objective())
        return found

    alone, together = run_ranks(1, run)[0], run_ranks(3, run)[0]
    assert together == pytest.approx(alone)
    if not depth:
        assert all(after <= before + 1e-9 for before, after in pairwise(alone))


@pytest.mark.parametrize("rotates", [True, False])
def test_a_topic_model_keeps_the_counts_of_its_words_and_gets_likelier(rotates: bool) -> None:
    draw = torch.Generator().manual_seed(3)
    words = torch.cat([torch.randint(5 * t, 5 * t + 5, (60,), generator=draw) for t in range(2)])
    documents = torch.arange(12).repeat_interleave(10)

    def run(group: InProcessGroup) -> tuple[Tensor, float, float]:
        own = documents % group.size == group.rank
        model = TopicModel(
            documents[own] // group.size, words[own], 10, group,
            num_topics=2, seed=0, rotates=rotates,
        )  # fmt: skip
        before, engine = model.log_likelihood(), Engine(model, group)
        for _ in range(20):
            engine.step()
        return model.by_word, before, model.log_likelihood()

    counts, before, after = run_ranks(2, run)[1]
    assert counts.sum(dim=1).tolist() == torch.bincount(words, minlength=10).tolist()
    assert float(counts.min()) >= 0 and after > before


def test_tables_show_medians_and_what_was_not_reached() -> None:
    row = {"model": "Lasso", "problem": "correlated", "seed": 0, "diverged": False}
    runs = [("priority, check", 20, 320), ("random, check", None, None)]
    rows = [{**row, "way": way, "figure": one, "updates": two} for way, one, two in runs]
    rows += [{**row, "way": "Shotgun (random)", "figure": None, "updates": None, "diverged": True}]
    rows += [{**row, "way": "round robin, check", "figure": 10, "updates": 160}]
    made = TABLES["dynamic"]({"rows": rows})
    assert "| Lasso | correlated | 20 / 320 | 10 / 160 | – | 1 of 1 diverges |" in made
