"""Cuts for an order: its critical ops, moves of layers, and the cuts to begin with."""

import random
from itertools import accumulate

import numpy as np
import pytest

from synth.costs.costs import uniform_costs
from synth.costs.partition_costs import partition_costs
from synth.families import generate, generate_for
from synth.objective import Objective
from synth.plan.choose.candidates import Candidate, Partitioning
from synth.plan.choose.race import solve_best_of
from synth.plan.partition.balance import balance, starting_cuts
from synth.plan.partition.candidates import equal_cuts
from synth.plan.partition.rebalance import _Search
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.published.critical_counts import critical_counts
from synth.plan.published.cut_moves import CutMoves
from synth.plan.published.order_scores import Judge, OrderScores
from synth.plan.published.variants import VariantCosts
from synth.profile import Profile
from synth.schedule.placements import placement
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.verify import verify
from synth.solver.infeasibility import needed_bytes
from synth.solver.problem import Problem
from tests.synth.effort import counted
from tests.synth.plan.test_balance import profile_of, uneven_profile


def test_the_critical_path_of_gpipe_goes_down_the_ranks_and_up() -> None:
    # rank 0  F F F . . . . . . B B B     F 2 and B 1 take twice as long on rank 1:
    # rank 1    F F F B B B               one F of stage 0, all ops of stage 1, one B of stage 0
    costs = uniform_costs(2, forward_us=10, backward_input_us=10, backward_weight_us=0)
    slow = costs.stages[1].replace(
        duration_us={kind: 2 * us for kind, us in costs.stages[1].duration_us.items()}
    )
    _, line = verify(generate("gpipe", 2, 3), costs.replace(stages=(costs.stages[0], slow)))
    forward, backward, _, _ = critical_counts(line)
    assert line.makespan_us == 10 + 6 * 20 + 10
    assert forward.tolist() == [1, 3] and backward.tolist() == [1, 3]


def moves(
    profile: Profile, name: str, sizes: tuple[int, ...], caps: tuple[int, ...] | None
) -> CutMoves:
    where = placement(name, 2)
    schedule = generate(
        "interleaved:2", 2, 4, costs=partition_costs(profile, sizes), caps_bytes=caps, where=where
    )
    order = OrderScores(schedule, Judge(Objective.MAKESPAN, caps))
    return CutMoves(order, VariantCosts(profile), (), lambda judged: False)


def test_layers_leave_the_stage_that_delays() -> None:
    search = moves(profile_of([10] * 12), "looped:2", (6, 2, 2, 2), None)
    assert search.best(placement("looped:2", 2), (6, 2, 2, 2), ()) == (3, 3, 3, 3)


def test_a_cut_that_does_not_fit_is_not_taken() -> None:
    profile = profile_of([10] * 8, [100, 100, 1, 1, 1, 1, 1, 1])
    caps = (120, 120)  # one heavy layer on each rank
    search = moves(profile, "looped:2", (1, 5, 1, 1), None)
    search.order = OrderScores(search.order._arrays.schedule, Judge(Objective.MAKESPAN, caps))
    best = search.best(placement("looped:2", 2), (1, 5, 1, 1), [(2, 2, 2, 2)])
    assert best[0] == 1 and best != (1, 5, 1, 1)


@pytest.mark.parametrize("name", ["v", "looped:2", "bidirectional", "wave:2"])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_called_ample_is_no_less_than_what_is_needed(name: str, seed: int) -> None:
    profile, where, rng = uneven_profile(seed, 12), placement(name, 2), random.Random(seed)
    table = StageCostTable(profile)
    search = _Search(table, where, (0, 0), None, ())
    for _ in range(20):
        edges = np.array([0, *sorted(rng.sample(range(1, 12), where.num_stages - 1)), 12])
        needs = needed_bytes(Problem(table.costs(tuple(edges.tolist())), where, len(where.ranks)))
        ample = search.held @ np.diff(search.ample_bytes[edges]) + search.margin_bytes
        assert (ample >= np.array(needs)).all()


@pytest.mark.parametrize("name", ["v", "looped:2", "wave:2", "bidirectional"])
@pytest.mark.parametrize("num_layers", [8, 11, 16])
def test_searches_begin_with_equal_numbers_of_layers_among_others(
    name: str, num_layers: int
) -> None:
    where, table = placement(name, 2), StageCostTable(uneven_profile(1, num_layers))
    cuts = starting_cuts(table, where)
    assert {*equal_cuts(table, where.num_stages)} <= {*cuts}
    assert len({*cuts}) == len(cuts)
    assert all(sum(cut) == num_layers and min(cut) >= 1 for cut in cuts)


@pytest.mark.parametrize(("name", "seed"), [("v", 0), ("looped:2", 1), ("bidirectional", 2)])
def test_no_published_schedule_on_a_cut_to_begin_with_is_better(name: str, seed: int) -> None:
    profile, where, m = uneven_profile(seed, 7), placement(name, 2), 4
    sizes = balance(profile, where, None, m)
    loose = Problem(partition_costs(profile, sizes), where, m)
    caps = (2 * max(needed_bytes(loose)),) * 2
    problem = Problem(loose.costs, where, m, caps, partition=sizes)
    found = solve_best_of([Candidate(name, problem)], profile, Partitioning.SEARCHED, counted(0.2))
    assert found.result.value_us is not None
    table = StageCostTable(profile)
    for cut in starting_cuts(table, where, caps, m):
        costs = table.costs(tuple(accumulate(cut, initial=0)))
        for _, schedule in generate_for(where, m, costs, caps):
            lowered, line = verify(schedule, costs)
            if schedule.keeps_saved and not exceeds_caps(peak_bytes(lowered), caps):
                assert found.result.value_us <= line.makespan_us
