"""The search without a flush where ranks hold two stages: second versions in turn, shared links."""

import random
from dataclasses import replace

import pytest

from synth.op_kinds import OpKind
from synth.schedule.model import Buffering
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.steady_state import steady_us
from synth.schedule.verify import verify
from synth.solver.flush_free.bounds import closed_form_us
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.instance.instance import OpIndex
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.modulo.cyclic_ops import CyclicSchedule
from synth.solver.problem import Problem
from tests.synth.flush_free_two_stages import TwoStages
from tests.synth.solver.test_flush_free_search import costs, found_us, searched

F, B, W = OpKind.F, OpKind.B, OpKind.W


def test_stages_of_a_rank_may_hold_their_second_versions_in_turn() -> None:
    """A known order takes 300 in a limit that holds one second version; 270 if links never wait."""
    given = costs([(10, 10, 10)] * 4, link_us=50, parameters=5000)
    stages = [*given.stages]
    stages[2] = costs([(10, 10, 10)], saved_w=1000, parameters=5000).stages[0]
    given = given.replace(stages=tuple(stages))
    problem = Problem(given, placement("looped:2", 2), 48)
    asked, instance = (
        FlushFreeProblem(problem, Consistency.TWO_VERSIONS, 4),
        relaxed_memory(problem),
    )
    by_stage = [
        {F: 0, B: 370, W: 1340},
        {F: 60, B: 310, W: 320},
        {F: 120, B: 250, W: 380},
        {F: 180, B: 190, W: 200},
    ]
    starts = {
        (instance.index[stage, 0], OpIndex(kind, 0)): at
        for stage, times in enumerate(by_stage)
        for kind, at in times.items()
    }
    programs = CyclicSchedule(starts, 270).unrolled(instance).programs(instance)
    lowered, line = verify(asked.schedule(programs, Buffering(100, 100)), given)
    assert steady_us(line) == pytest.approx(300)
    cap = peak_bytes(lowered)[0], 10**6
    result = searched(replace(problem, caps_bytes=cap), "2bw", 4)
    assert found_us(result) == pytest.approx(300)
    assert result.steady is not None
    assert result.steady.repeating_us == pytest.approx(300, rel=2e-5)


@pytest.mark.parametrize(("where", "stages"), [("looped:2", (0, 2)), ("v", (0, 3))])
def test_two_stages_of_a_rank_take_the_least_time_of_all_orders_tried_out(
    where: str, stages: tuple[int, int]
) -> None:
    """Updates after two micro-batches, slow links, and every limit at which the time changes."""
    rng = random.Random(where)
    us = {stage: {kind: 10 * rng.randint(1, 3) for kind in "FBW"} for stage in stages}
    link_us, parameters = 10 * rng.randint(3, 6), 2500
    ranks = TwoStages(us, link_us, saved=1000, saved_w=300, parameters=parameters, every=2)
    tried, times = ranks.tried(), [(0, 0, 0)] * 4
    for stage in stages:
        times[stage] = us[stage]["F"], us[stage]["B"], us[stage]["W"]
    given = costs(times, link_us=link_us, saved_w=300, parameters=parameters)
    least_us = {cap: min(us for peak, us in tried if peak <= cap) for cap, _ in tried}
    caps = {us: cap for cap, us in sorted(least_us.items(), reverse=True)}
    assert len(caps) > 3  # else the limit would not matter
    for expected, cap in caps.items():
        static = 2 * given.stages[0].static_bytes
        problem = Problem(given, placement(where, 2), 48, caps_bytes=(static + cap, 10**7))
        result = searched(problem, "2bw", 2)
        assert result.steady is not None, (cap, result.message)
        assert result.steady.us == pytest.approx(expected, rel=2e-5), cap
        assert result.steady.repeating_us <= expected * (1 + 1e-9), cap
        assert result.steady.lower_bound_us <= expected * (1 + 1e-9), cap


def test_a_micro_batch_that_holds_both_stages_leaves_no_memory_for_another_one() -> None:
    """From F2 to B2 it holds 2000 bytes, for F2 + 2 c + F3 + B3 + B2 = 500; a rank's work is 420.

    With 2BW two versions of 100 bytes are beside them.
    """
    given = costs([(100, 100, 10)] * 4, link_us=50, saved_w=370, parameters=100)
    static = 2 * given.stages[0].static_bytes
    for most_bytes, by_rule in ((3500, (500, 500)), (4100, (420, 500)), (4300, (420, 420))):
        problem = Problem(given, placement("v", 2), 48, caps_bytes=(static + most_bytes,) * 2)
        rules = (
            FlushFreeProblem.parse("none", problem),
            FlushFreeProblem.parse("2bw:every=8", problem),
        )
        assert tuple(map(closed_form_us, rules)) == by_rule
