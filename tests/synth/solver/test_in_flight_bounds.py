"""Bounds by what is in flight beside versions, against orders that are replayed."""

import random

import pytest

from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.flush_free.in_flight_bounds import in_flight_us
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.problem import Problem
from tests.synth.flush_free_orders import NUM, Program, TwoRanks, least_us, replayed
from tests.synth.solver.test_flush_free_search import RULES, costs

STATIC = 4000


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


def _bound_us(ranks: TwoRanks, cap: int, rule: str, every: int) -> float:
    given = costs(
        [(one["F"], one["B"], one["W"]) for one in ranks.us],
        link_us=ranks.link_us,
        step_us=ranks.step_us,
        saved_w=ranks.saved_w,
        parameters=ranks.parameters,
    )
    static = given.stages[0].static_bytes
    problem = Problem.linear(given, NUM, cap - ranks.static + static)
    asked = FlushFreeProblem(problem, Consistency(rule), every)
    instance = relaxed_for_fusion(problem)
    # These replays let a link carry several transfers at once.
    return max(in_flight_us(asked, instance, index) for index in range(2))


def test_no_order_of_one_micro_batch_is_below_the_bound_and_some_are_at_it() -> None:
    rng, above, tight = random.Random(1), 0, 0
    for trial in range(60):
        rule, every = RULES[trial % 3]
        ranks = _ranks(rng)
        cap = STATIC + rng.choice((1000, 2000, 2600, 3500, 4500))
        least = least_us(ranks, cap, rule, every)
        if least is None:
            continue
        bound_us = _bound_us(ranks, cap, rule, every)
        assert bound_us <= least + 1e-9, (trial, rule)
        is_above = bound_us > _bound_us(ranks, cap, "none", every) + 1e-9
        above += is_above
        tight += is_above and bound_us > least - 1e-9
    assert above > 10 and tight > 3


def _bursts(rng: random.Random, every: int) -> Program | None:
    """A program that repeats after one to four micro-batches; None: B or W would be too early."""
    size = rng.choice((1, 2, 3, 4))
    lag = {"F": 0, "B": rng.randint(0, 2), "W": rng.randint(0, 4)}
    period = rng.choice((["F"] * size + ["B"] * size + ["W"] * size, list("FBW" * size)))
    if rng.random() < 0.5:
        rng.shuffle(period)
    counts = dict.fromkeys("FBW", 0)
    program: Program = []
    for turn in range(NUM // size + lag["W"] + lag["B"]):
        for kind in period:
            if turn < lag[kind] or counts[kind] == NUM:
                continue
            program.append((kind, counts[kind]))
            counts[kind] += 1
            if not counts["W"] <= counts["B"] <= counts["F"]:
                return None
            if kind == "W" and counts["W"] % every == 0:
                program.append(("STEP", counts["W"] // every - 1))
    return program if counts["W"] == NUM else None


@pytest.mark.parametrize(("rule", "every"), RULES[:3])
def test_no_order_in_bursts_is_below_the_bound_of_its_own_memory(rule: str, every: int) -> None:
    """Bursts of updates leave fewer versions stashed than micro-batches are in flight."""
    rng, num_tried, above = random.Random(rule), 0, 0
    while num_tried < 400:
        first, second = _bursts(rng, every), _bursts(rng, every)
        if first is None or second is None:
            continue
        ranks = _ranks(rng)
        found = replayed(ranks, (first, second), rule, every)
        if found is None:
            continue
        cap, us = found
        bound_us = _bound_us(ranks, cap, rule, every)
        assert bound_us <= us + 1e-9, (num_tried, ranks, first[:40], second[:40], cap)
        num_tried += 1
        above += bound_us > _bound_us(ranks, cap, "none", every) + 1e-9
    assert above > 20
