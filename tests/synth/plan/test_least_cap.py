"""The least cap for a target time: closed forms, every order of tiny problems, stops, refusals."""

import threading
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.errors import SynthError
from synth.families import generate
from synth.plan.choose.candidates import Candidate
from synth.plan.memory_curve.cap_breakpoints import CapBreakpoints
from synth.plan.memory_curve.least_cap_search import least_cap
from synth.plan.memory_curve.target import TimeTarget
from synth.plan.memory_curve.target_proof import TargetProof
from synth.plan.recompute.choice import solve_with
from synth.plan.search_space import OneCandidate
from synth.schedule.placements import placement
from synth.search.outcome import StoppedBy
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result
from synth.solver.watch import SolveWatch
from tests.synth.every_order import true_curve
from tests.synth.solver.test_solve_exact import random_problem

OPTIONS = SolveOptions(time_limit_s=300, workers=2)


def one(problem: Problem) -> OneCandidate:
    """The space of one problem."""
    return OneCandidate(Candidate("one", problem))


def proof_of(found: Result | Incumbent) -> TargetProof:
    """The limit that was found, and its bound."""
    assert isinstance(found.memory, TargetProof)
    return found.memory


def plain_costs(num_ranks: int) -> Costs:
    """F and B of 1, no W, no transfer times; F keeps 5 until B."""
    return uniform_costs(
        num_ranks, forward_us=1, backward_input_us=1, backward_weight_us=0, saved_bytes=5
    )


@pytest.mark.parametrize(("num_ranks", "m"), [(2, 6), (3, 8), (4, 12), (4, 3)])
def test_1f1bs_time_needs_1f1bs_memory(num_ranks: int, m: int) -> None:
    # Every rank works 2m; rank 0 gets its first B back after 2D − 1. With k < D micro-batches at
    # once it would wait in each of its rounds of 2D, so it needs D of them, or all.
    problem = Problem.linear(plain_costs(num_ranks), m)
    least = least_cap(one(problem), TimeTarget(time_us=2 * (m + num_ranks - 1)), OPTIONS)
    proof = proof_of(least)
    assert proof.cap_bytes == proof.not_below_bytes == 5 * min(num_ranks, m)
    assert (least.stopped_by, proof.gap) == (StoppedBy.OPTIMAL, 0)


def test_all_the_time_in_the_world_needs_one_micro_batch() -> None:
    least = least_cap(one(Problem.linear(plain_costs(3), 6)), TimeTarget(time_us=10**6), OPTIONS)
    assert proof_of(least).cap_bytes == proof_of(least).not_below_bytes == 5


@cache
def tiny(seed: int) -> Problem:
    """Two or three ranks, up to three micro-batches, no caps."""
    return replace(random_problem(seed), caps_bytes=None)


@pytest.mark.parametrize("seed", [0, 1, 3, 5, 8])
def test_for_every_target_the_proof_and_the_find_enclose_the_truth(seed: int) -> None:
    problem = tiny(seed)
    curve = true_curve(problem)
    for peak, value in curve[:6]:
        least = least_cap(one(problem), TimeTarget(time_us=value), OPTIONS)
        cap_bytes, not_below = proof_of(least).cap_bytes, proof_of(least).not_below_bytes
        assert cap_bytes is not None and not_below is not None
        assert not_below <= peak <= cap_bytes
        if least.stopped_by == StoppedBy.OPTIMAL:
            assert cap_bytes == peak


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_target_faster_than_any_order_is_proven_out_of_reach(seed: int) -> None:
    fastest = true_curve(tiny(seed))[-1][1]
    least = least_cap(one(tiny(seed)), TimeTarget(time_us=fastest - 1), OPTIONS)
    assert (least.schedule, least.stopped_by) == (None, StoppedBy.INFEASIBLE)
    assert least.message is not None and f"the lower bound is {fastest} µs" in least.message


def test_a_share_is_one_of_the_bound_without_a_cap() -> None:
    problem = Problem.linear(plain_costs(3), 8)
    # 20 without a cap; 115 % of it are 23.
    least = least_cap(one(problem), TimeTarget(share_of_bound=1.15), OPTIONS)
    assert proof_of(least).target_us == 23
    assert least.value_us is not None and least.value_us <= 23


def test_a_share_is_of_the_best_bound_that_is_known_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = Problem.linear(plain_costs(3), 8)
    optimum_us, bounds_us = 20, iter((15, 17, 20))

    def proving_slowly(asked: Problem, *rest: Any) -> Result:
        found = solve_with(asked, *rest)
        if asked.caps_bytes is not None:
            return found
        assert found.value_us == optimum_us
        return replace(found, lower_bound_us=next(bounds_us))

    monkeypatch.setattr("synth.plan.recompute.repartition.solve_with", proving_slowly)
    least = least_cap(one(problem), TimeTarget(share_of_bound=1.0), OPTIONS)
    assert proof_of(least).target_us == least.value_us == optimum_us


def table_problem() -> Problem:
    """Eight ranks and 32 micro-batches: minutes to prove."""
    costs = uniform_costs(
        8,
        forward_us=55,
        backward_input_us=58,
        backward_weight_us=35,
        saved_bytes=300,
        saved_w_bytes=200,
    )
    return Problem.linear(costs, 32)


def test_the_answer_is_a_result_under_the_cap_found() -> None:
    stop = threading.Event()

    target = TimeTarget(share_of_bound=1.02)
    result = least_cap(
        one(table_problem()), target, OPTIONS, SolveWatch(lambda _: stop.set(), stop)
    )
    assert result.value_us is not None and result.peak_bytes is not None
    assert result.value_us <= proof_of(result).target_us
    assert max(result.peak_bytes) == proof_of(result).cap_bytes
    assert result.problem.caps_bytes == (max(result.peak_bytes),) * 8
    assert result.stopped_by == StoppedBy.INTERRUPT
    assert result.lower_bound_us <= result.value_us
    assert {baseline.name for baseline in result.baselines if not baseline.fits} >= {"gpipe"}


def test_progress_only_closes_in_and_the_limit_is_for_the_whole() -> None:
    seen: list[Incumbent] = []
    options = replace(OPTIONS, time_limit_s=3)
    last = least_cap(
        one(table_problem()), TimeTarget(share_of_bound=1.1), options, SolveWatch(seen.append)
    )
    assert last.wall_s < 60
    caps = [max(step.peak_bytes) for step in seen]
    proven = [proof_of(step).not_below_bytes or 0 for step in seen]
    assert caps == sorted(caps, reverse=True) and proven == sorted(proven)
    assert [proof_of(step).cap_bytes for step in seen] == caps
    assert proof_of(last).rank_key == (caps[-1], -proven[-1])


def test_a_stop_keeps_the_best_so_far() -> None:
    stop = threading.Event()
    stop.set()
    least = least_cap(
        one(table_problem()), TimeTarget(share_of_bound=2.0), OPTIONS, SolveWatch(stop=stop)
    )
    assert least.stopped_by == StoppedBy.INTERRUPT
    assert least.peak_bytes is not None
    assert (proof_of(least).not_below_bytes or 0) <= max(least.peak_bytes)


def test_a_hint_in_less_memory_counts() -> None:
    problem = table_problem()
    serial_time = TimeTarget(time_us=32 * 8 * (55 + 58 + 35))
    options = replace(OPTIONS, time_limit_s=0.3, hint=generate("1f1b", 8, 32))
    least = least_cap(one(problem), serial_time, options)
    assert least.peak_bytes is not None and max(least.peak_bytes) <= 8 * 300


def test_several_stages_per_rank_have_a_least_cap_too() -> None:
    costs = uniform_costs(
        4, forward_us=3, backward_input_us=3, backward_weight_us=2, saved_bytes=5, saved_w_bytes=4
    )
    problem = Problem(costs, placement("v", 2), 3)
    options = replace(OPTIONS, time_limit_s=10)
    least = least_cap(one(problem), TimeTarget(share_of_bound=1.2), options)
    assert least.peak_bytes is not None
    assert 2 * 5 <= (proof_of(least).not_below_bytes or 0) <= max(least.peak_bytes)


def test_caps_given_or_determinism_are_refused() -> None:
    problem = Problem.linear(plain_costs(2), 2, 10)
    with pytest.raises(SynthError, match="has memory limits"):
        least_cap(one(problem), TimeTarget(time_us=10))
    with pytest.raises(SynthError, match="cannot be deterministic"):
        free = replace(problem, caps_bytes=None)
        least_cap(one(free), TimeTarget(time_us=10), SolveOptions(deterministic=True))
    with pytest.raises(SynthError, match="give one"):
        TimeTarget()


def test_levels_are_the_sums_that_orders_can_reach() -> None:
    # One rank, two micro-batches: F +5, B −2, W −3. An order holds 0, 3, 5, 6, 8 or 10 before an
    # op; F needs 5 more, so 11, 13 and 15 count too, and B and W need nothing.
    costs = uniform_costs(
        1, forward_us=1, backward_input_us=1, backward_weight_us=1, saved_bytes=5, saved_w_bytes=3
    )
    breakpoints = CapBreakpoints(Problem.linear(costs, 2))
    like = {0: 2, 3: 4, 4: 4, 5: 5, 6: 7, 8: 9, 9: 9, 10: 10, 11: 12, 15: 15, 99: 99}
    assert {cap: breakpoints.largest_like(cap) for cap in like} == like
