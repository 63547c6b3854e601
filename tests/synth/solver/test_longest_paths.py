"""Longest paths in several scenarios: by topological generation, and node by node."""

import random

import numpy as np
import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.families import generate
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Schedule
from synth.schedule.simulate import simulate
from synth.solver.evaluate import longest_paths as paths
from synth.solver.evaluate.longest_paths import ByGeneration, LongestPaths, NodeByNode
from synth.solver.evaluate.scenarios import NOTHING_US

# 0 ─┬─> 1 ──> 3 ─┐
#    └─> 2 ───────┴─> 4        5 alone
BEFORE, AFTER = np.array([0, 0, 1, 3, 2]), np.array([1, 2, 3, 4, 4])
GENERATIONS = [np.array([0, 5]), np.array([1, 2]), np.array([3]), np.array([4])]


def both() -> list[LongestPaths]:
    return [ByGeneration(BEFORE, AFTER, GENERATIONS), NodeByNode(BEFORE, AFTER, 6)]


@pytest.mark.parametrize("way", [0, 1])
def test_a_node_starts_when_the_last_of_its_predecessors_ends(way: int) -> None:
    # Node 4 waits for node 2, which ends at 1 + 9; in the second scenario for node 3.
    durations = np.array([[1, 1], [2, 2], [9, 1], [3, 3], [4, 4], [5, 5]])
    start, end = both()[way].forwards(durations)
    assert start.T.tolist() == [[0, 1, 1, 3, 10, 0], [0, 1, 1, 3, 6, 0]]
    assert (end - start).tolist() == durations.tolist()


@pytest.mark.parametrize("way", [0, 1])
def test_tails_are_the_longest_paths_to_the_end(way: int) -> None:
    durations = np.array([[1.0], [2.0], [9.0], [3.0], [4.0], [5.0]])
    after = np.full((6, 1), NOTHING_US)
    after[4] = 100
    tails = both()[way].backwards(durations, after)
    assert tails[:5, 0].tolist() == [114, 109, 113, 107, 104]
    assert tails[5, 0] < 0


def test_generations_hold_nodes_whose_last_predecessor_is_in_the_one_before() -> None:
    found = [sorted(nodes.tolist()) for nodes in paths._generations(BEFORE, AFTER, 6)]
    assert found == [nodes.tolist() for nodes in GENERATIONS]


def test_a_cycle_is_refused() -> None:
    # 0 ──> 1 ⇄ 2 ──> 3
    with pytest.raises(ValueError, match="cycle"):
        paths.wide_generations(np.array([0, 1, 2, 2]), np.array([1, 2, 1, 3]), 4)


def test_a_long_chain_is_known_as_narrow_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The serial schedule is one: it is the first incumbent under tight limits."""
    looked_at, generations = 0, paths._generations

    def counted(*args: object) -> object:
        nonlocal looked_at
        for nodes in generations(*args):  # type: ignore[arg-type]
            looked_at += 1
            yield nodes

    monkeypatch.setattr(paths, "_generations", counted)
    chain = np.arange(100_000)
    found = paths.longest_paths(chain[:-1], chain[1:], len(chain))
    assert isinstance(found, NodeByNode)
    assert looked_at < 1_000


@pytest.mark.parametrize(
    ("family", "num_ranks", "is_wide"),
    [("1f1b", 4, False), ("zb-h1", 24, True), ("zb-v", 16, True)],
)
def test_scenarios_have_the_times_of_simulations_in_both_ways(
    family: str, num_ranks: int, is_wide: bool
) -> None:
    schedule = generate(family, num_ranks, 2 * num_ranks)
    lowered = lower(schedule, costs(schedule, 1))
    before, after = lowered.edges
    chosen = paths.longest_paths(before, after, len(lowered.durations))
    assert isinstance(chosen, ByGeneration) == is_wide
    rng = random.Random(0)
    scenarios = [lower(schedule, costs(schedule, rng.randint(1, 9))) for _ in range(3)]
    durations = np.stack([one.durations for one in scenarios], axis=1)
    for way in (chosen, NodeByNode(before, after, len(durations))):
        start, end = way.forwards(durations)
        for number, one in enumerate(scenarios):
            simulated = simulate(one)
            assert start[:, number].tolist() == simulated.start_us
            assert end[:, number].tolist() == simulated.end_us


def costs(schedule: Schedule, forward_us: int) -> Costs:
    return uniform_costs(
        schedule.placement.num_stages,
        forward_us=forward_us,
        backward_input_us=7,
        backward_weight_us=3,
    )
