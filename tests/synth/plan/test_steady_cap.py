"""The least memory without a steady bubble: known cases, and the pattern's own claims."""

import pytest

from synth.costs.costs import uniform_costs
from synth.plan.memory_curve.steady_cap import SteadyCap, least_steady
from synth.profile.links import Link, Links
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.instance.timing import keeps_caps, number, timed
from synth.solver.modulo.least_memory import find
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem


def problem(name: str, num_ranks: int, m: int, times: tuple[int, int, int], lag: int) -> Problem:
    """Equal stages; a micro-batch keeps 3 per stage, 2 after B."""
    where = placement(name, num_ranks)
    forward, backward, weight = times
    costs = uniform_costs(
        where.num_stages,
        forward_us=forward,
        backward_input_us=backward,
        backward_weight_us=weight,
        links=Links(default=Link(latency_us=lag)),
        saved_bytes=3,
        saved_w_bytes=2,
    )
    return Problem(costs, where, m)


def least(asked: Problem) -> SteadyCap:
    """Search the least cap briefly, and verify the result."""
    found = least_steady(asked, SolveOptions(time_limit_s=20, workers=1))
    assert found is not None
    lowered, _ = verify(found.schedule, asked.costs, (found.cap_bytes,) * asked.num_ranks)
    assert max(peak_bytes(lowered)) == found.cap_bytes
    return found


@pytest.mark.parametrize("num_ranks", [2, 4, 6])
def test_one_stage_per_rank_needs_what_1f1b_holds(num_ranks: int) -> None:
    """F = B = W: no pattern without bubble in less than 1F1B's memory, and one in just that."""
    found = least(problem("linear", num_ranks, 24, (10, 10, 10), 0))
    assert found.cap_bytes == found.not_below_bytes == 3 * num_ranks
    assert found.each_us == found.work_us == 30
    assert found.bubble_rate == 0


def test_a_v_needs_half_of_that() -> None:
    found = least(problem("v", 4, 24, (10, 10, 10), 0))
    assert found.cap_bytes <= 12 < 24
    assert found.not_below_bytes is not None and found.not_below_bytes <= found.cap_bytes
    assert found.each_us == found.work_us == 60


def test_a_pattern_keeps_its_caps_however_often_it_is_repeated() -> None:
    for m in (1, 3, 20, 50):
        asked = problem("v", 3, m, (12, 9, 7), 2)
        capped = Problem(asked.costs, asked.placement, m, (15, 15, 15))
        instance = relaxed_memory(capped)
        pattern = find(instance, 1.1, 5)
        assert pattern is not None
        orders = pattern.unrolled(instance).orders(instance)
        assert keeps_caps(tuple(number(instance, order) for order in orders), instance)
        assert len(timed(orders, instance).starts) == instance.num_ops


def test_without_a_pattern_there_is_none() -> None:
    asked = problem("linear", 4, 8, (10, 10, 10), 0)
    capped = Problem(asked.costs, asked.placement, 8, (9, 9, 9, 9))
    assert find(relaxed_memory(capped), 1.0, 5) is None
