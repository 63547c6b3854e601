"""Bounds by what is in flight beside versions, against orders that are replayed."""

import random

import pytest

from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.flush_free.in_flight_bounds import in_flight_us
from synth.solver.flush_free.stage_state_bound import stage_state_bound_us
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.problem import Problem
from tests.synth.flush_free_orders import NUM, Program, TwoRanks, least_us, replayed
from tests.synth.solver.test_flush_free_search import RULES, costs

STATIC, MOST_BYTES = 4000, 4500


def _ranks(rng: random.Random) -> TwoRanks:
    us = tuple({kind: 10 * rng.randint(1, 4) for kind in "FBW"} for _ in range(2))
    return TwoRanks(
        (us[0], us[1]),
        step_us=rng.choice((0, 6)),
        link_us=10 * rng.randint(0, 9),
        saved=1000,
        saved_w=rng.choice((0, 300, 900)),
        parameters=rng.choice((200, 900, 2500)),
        static=STATIC,
    )


def _asked(ranks: TwoRanks, cap: int, rule: str, every: int) -> FlushFreeProblem:
    given = costs(
        [(one["F"], one["B"], one["W"]) for one in ranks.us],
        link_us=ranks.link_us,
        step_us=ranks.step_us,
        saved_w=ranks.saved_w,
        parameters=ranks.parameters,
    )
    problem = Problem.linear(given, NUM, cap - ranks.static + given.stages[0].static_bytes)
    return FlushFreeProblem(problem, Consistency(rule), every)


def _bounds_us(ranks: TwoRanks, cap: int, rule: str, every: int) -> tuple[float, float]:
    """The larger bound of both ranks: the closed form, and that of all states by itself.

    These replays let a link carry several transfers at once, so bounds of links do not hold.
    """
    asked = _asked(ranks, cap, rule, every)
    instance = relaxed_for_fusion(asked.problem)
    closed = [in_flight_us(asked, instance, index) for index in range(2)]
    by_states = [stage_state_bound_us(asked, instance, index, 0.0) for index in range(2)]
    return max(closed), max(by_states)


@pytest.mark.parametrize(("rule", "every"), [*RULES, ("2bw", 2), ("none", 3)])
def test_no_order_of_one_micro_batch_is_below_the_bounds_and_some_are_at_them(
    rule: str, every: int
) -> None:
    rng, larger, tight = random.Random(f"{rule} {every}"), 0, 0
    for trial in range(12):
        ranks = _ranks(rng)
        cap = STATIC + rng.choice((1000, 2000, 2600, 3500, 4500))
        least = least_us(ranks, cap, rule, every)
        if least is None:
            continue
        closed_us, by_states_us = _bounds_us(ranks, cap, rule, every)
        assert max(closed_us, by_states_us) <= least + 1e-9, (trial, ranks, cap)
        # Without a W that waits for memory the states have no end, and are not used.
        assert by_states_us >= closed_us - 1e-9 or by_states_us == 0, (trial, ranks, cap)
        larger += by_states_us > closed_us + 1e-9
        tight += by_states_us > least - 1e-9
    assert larger > 1 and (tight > 0 or rule == "2bw")


def _bursts(rng: random.Random, every: int) -> Program | None:
    """A program that repeats after one to four micro-batches; None: B or W would be too early."""
    size = rng.choice((1, 2, 3, 4))
    lag = {"F": 0, "B": rng.randint(0, 2), "W": rng.randint(0, 4)}
    interval = rng.choice((["F"] * size + ["B"] * size + ["W"] * size, list("FBW" * size)))
    if rng.random() < 0.5:
        rng.shuffle(interval)
    counts = dict.fromkeys("FBW", 0)
    program: Program = []
    for turn in range(NUM // size + lag["W"] + lag["B"]):
        for kind in interval:
            if turn < lag[kind] or counts[kind] == NUM:
                continue
            program.append((kind, counts[kind]))
            counts[kind] += 1
            if not counts["W"] <= counts["B"] <= counts["F"]:
                return None
            if kind == "W" and counts["W"] % every == 0:
                program.append(("STEP", counts["W"] // every - 1))
    return program if counts["W"] == NUM else None


@pytest.mark.parametrize(("rule", "every"), RULES)
def test_no_order_in_bursts_is_below_the_bounds_of_its_own_memory(rule: str, every: int) -> None:
    """Bursts of updates leave fewer versions stashed than micro-batches are in flight."""
    rng, num_tried, larger = random.Random(rule), 0, 0
    while num_tried < 25:
        first, second = _bursts(rng, every), _bursts(rng, every)
        if first is None or second is None:
            continue
        ranks = _ranks(rng)
        found = replayed(ranks, (first, second), rule, every)
        if found is None:
            continue
        cap, us = found
        if cap > STATIC + MOST_BYTES:
            continue  # many in flight have many states
        closed_us, by_states_us = _bounds_us(ranks, cap, rule, every)
        assert max(closed_us, by_states_us) <= us + 1e-9, (num_tried, ranks, first[:40], cap)
        num_tried += 1
        larger += by_states_us > closed_us + 1e-9
    assert larger > 5


def test_two_in_flight_that_leave_no_memory_for_a_w_take_turns_with_it() -> None:
    """Of 2500 bytes two F's take 2000 and a waiting W 600: it runs while one is in flight.

    That is (L + W) / 2 = (440 + 100) / 2, with L = 2 (F + B) + 2 c = 440.
    """
    given = costs([(100, 100, 100)] * 2, link_us=20, saved_w=600)
    problem = Problem.linear(given, 24, given.stages[0].static_bytes + 2500)
    asked, instance = FlushFreeProblem(problem, Consistency.NONE), relaxed_for_fusion(problem)
    assert in_flight_us(asked, instance, 0) == pytest.approx(220)
    assert stage_state_bound_us(asked, instance, 0, 0.0) == pytest.approx(270)


@pytest.mark.parametrize(("rule", "every"), [*RULES, ("2bw", 2)])
def test_where_no_forward_fits_the_known_bound_remains(rule: str, every: int) -> None:
    us = {"F": 70, "B": 90, "W": 50}
    ranks = TwoRanks((us, us), 0, 0, saved=1000, saved_w=300, parameters=1000, static=STATIC)
    asked = _asked(ranks, STATIC, rule, every)
    instance = relaxed_for_fusion(asked.problem)
    assert stage_state_bound_us(asked, instance, 0, 210.0) == 210.0
