"""V-shaped schedules within caps: the released greedy, and what is never longer than that."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import v_limits
from benchmarks.realistic_profiles import realistic_case
from benchmarks.solver.suites import v_shaped
from benchmarks.v_limits import Case
from synth.costs.costs import Costs, uniform_costs
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import generate
from synth.families._lib.activations import peak_activation_bytes
from synth.families._lib.v_greedy import ALL_CHOICES, VGreedyRun
from synth.families._lib.v_passes import averaged, costs_by_pass, units_bytes
from synth.families.zb_v_greedy import released
from synth.objective import Objective
from synth.plan.partition.candidates import equal_cuts
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering, Schedule
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify
from synth.solver.improve.published import PublishedIncumbents
from synth.solver.options import Part
from synth.solver.problem import Problem
from synth.solver.search_state import SearchState
from synth.solver.solver import solve
from tests.synth.effort import counted
from tests.synth.search_context import context_of

SHARES = (0.6, 0.9, 1, 1.1, 1.25, 1.6, 2.2)


@st.composite
def v_costs(draw: st.DrawFn, num_ranks: int) -> Costs:
    """Stages alike, or not; with parameters and boundary values or without."""
    alike, boundary = draw(st.booleans()), draw(st.sampled_from([0, 1, 3]))
    numbers = st.integers(4, 40)
    stages = []
    for stage in range(2 * num_ranks):
        if stage == 0 or not alike:
            saved = draw(numbers)
            one = uniform_costs(
                3,
                forward_us=draw(numbers),
                backward_input_us=draw(numbers),
                backward_weight_us=draw(numbers),
                saved_bytes=saved,
                saved_w_bytes=draw(st.integers(1, saved)),
                output_bytes=boundary,
            )
            static = draw(st.integers(0, 30))
        end = 0 if stage == 0 else 2 if stage == 2 * num_ranks - 1 else 1
        stages.append(one.stages[end].replace(static_bytes=static))
    latency_us = draw(st.sampled_from([0, 3, 20]))
    return Costs(stages=tuple(stages), links=Links(default=Link(latency_us=latency_us)))


def caps_of(case: Case) -> list[int]:
    """From less than any V-shaped schedule takes to more than twice 1F1B's memory."""
    unit = max(units_bytes(costs_by_pass(case.costs, case.num_micro_batches)))
    static = 2 * max(stage.static_bytes for stage in case.costs.stages)
    return [static + int(share * 2 * case.num_ranks * unit) for share in SHARES]


@given(data=st.data(), d=st.integers(1, 4), m=st.integers(1, 8))
@settings(max_examples=8, deadline=None)
def test_more_memory_is_never_longer_and_the_released_greedy_never_shorter(
    data: st.DataObject, d: int, m: int
) -> None:
    case = Case("drawn", m, data.draw(v_costs(d)))
    ours = [case.period_us("zb-v-limit", cap) for cap in caps_of(case)]
    for less, more in pairwise(ours):
        assert less is None or (more is not None and more <= less)
    for cap, found in zip(caps_of(case), ours, strict=True):
        theirs = case.period_us("zb-v-greedy", cap)
        assert theirs is None or (found is not None and found <= theirs)


@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("share", v_limits.SHARES)
def test_in_the_released_greedy_s_memory_a_published_profile_takes_no_longer(
    share: float, layers: bool
) -> None:
    name = f"1.5b 8,24 {'layers' if layers else 'equal'}"
    case = next(case for case in v_limits.cases() if case.name == name)
    case = replace(case, num_micro_batches=10)  # for time's sake
    cap = case.released_peak_bytes(share)
    greedy_us, limit_us = (case.period_us(f"zb-v-{word}", cap) for word in ("greedy", "limit"))
    assert greedy_us is not None and limit_us is not None and limit_us <= greedy_us


def test_the_released_greedy_has_the_printed_bubble_rates() -> None:
    # arXiv 2405.15362, ZB-V on 16 ranks in 1F1B's memory; to four decimals.
    rows = list(v_limits.printed())
    assert [row.case.num_micro_batches for row in rows] == [48, 64, 128]
    assert [round(row.rate_of("zb-v-greedy"), 4) for row in rows] == [row.rate for row in rows]
    assert round(rows[0].rate_of("zb-v-limit"), 4) <= rows[0].rate


# The idle time of the authors' program (zbv.py), run on these numbers: ranks, micro-batches, F, B,
# W and transfer in µs, bytes that F keeps and that B leaves, limit in bytes.
@pytest.mark.parametrize(
    ("d", "m", "times_us", "kept", "limit", "idle_us"),
    [
        (3, 7, (22, 9, 8, 5), (3, 2), 33, 36),
        (6, 7, (24, 5, 9, 2), (3, 2), 60, 172),
        (3, 4, (27, 20, 20, 5), (3, 2), 27, 47),
        (7, 20, (9, 12, 13, 0), (1, 1), 20, 18),
        (7, 7, (26, 29, 5, 0), (1, 1), 14, 283),
        (4, 4, (13, 20, 12, 5), (3, 2), 42, 116),
        (5, 14, (19, 9, 8, 0), (2, 1), 24, 52),
        (5, 8, (13, 26, 9, 5), (3, 2), 48, 181),
    ],
)
def test_the_greedy_idles_as_long_as_its_authors_program(
    d: int,
    m: int,
    times_us: tuple[int, int, int, int],
    kept: tuple[int, int],
    limit: int,
    idle_us: int,
) -> None:
    forward, backward, weight, lag = times_us
    costs = uniform_costs(
        2 * d,
        forward_us=forward,
        backward_input_us=backward,
        backward_weight_us=weight,
        saved_bytes=kept[0],
        saved_w_bytes=kept[1],
        links=Links(default=Link(latency_us=lag)),
    )
    programs = tuple(
        tuple(program) for program in released(averaged(costs_by_pass(costs, m)), limit // kept[0])
    )
    schedule = Schedule(placement("v", d), m, programs, "greedy", Buffering(6 * m, 6 * m))
    lowered, line = verify(schedule, costs)
    assert line.period_us - 2 * m * (forward + backward + weight) == idle_us
    assert max(peak_bytes(lowered)) <= limit


def test_a_run_says_up_to_which_limit_it_would_be_the_same() -> None:
    pass_costs = costs_by_pass(v_shaped.stages(8, (90, 120, 60), v_shaped.MEMORIES[1]), 12)
    for choices in ALL_CHOICES:
        for limit in range(24, 48):
            run = VGreedyRun(pass_costs, [limit] * 4, choices)
            run.run()
            same_until = 48 if run.short_bytes is None else limit + run.short_bytes
            for higher in range(limit, min(same_until, 48)):
                other = VGreedyRun(pass_costs, [higher] * 4, choices)
                other.run()
                assert other.programs == run.programs


def test_a_greedy_s_estimate_is_the_exact_period_where_buffers_hold_nothing_up() -> None:
    costs = v_shaped.stages(8, (90, 120, 60), v_shaped.MEMORIES[0])
    run = VGreedyRun(costs_by_pass(costs, 12), [20] * 4, ALL_CHOICES[0])
    assert run.run()
    programs = tuple(tuple(program) for program in run.ops())
    schedule = Schedule(placement("v", 4), 12, programs, "greedy", Buffering(72, 72))
    assert verify(schedule, costs)[1].period_us == run.period_us
    assert max(peak_activation_bytes(costs, program) for program in programs) <= 20


@pytest.mark.parametrize("cap", [8, 10])
def test_no_schedule_is_below_the_bound_that_the_solver_proves_without_families(cap: int) -> None:
    costs = v_shaped.stages(4, (90, 120, 60), v_shaped.MEMORIES[0])
    asked = Problem(costs, placement("v", 2), 2, (cap,) * 2, Objective.PERIOD)
    alone = solve(asked, replace(counted(), without=frozenset({Part.FAMILIES})))
    found = Case("small", 2, costs).period_us("zb-v-limit", cap)
    assert alone.value_us == alone.lower_bound_us
    assert found is not None and found >= alone.lower_bound_us


def test_more_memory_never_makes_the_first_answers_on_v_longer() -> None:
    case = next(case for case in v_limits.cases() if case.name == "1.5b 8,24 layers")
    case = replace(case, num_micro_batches=10)
    values = []
    for share in (0.6, 1, 1.5):
        caps = (int(share * case.released_peak_bytes(1)),) * 8
        asked = Problem(case.costs, placement("v", 8), 10, caps, Objective.PERIOD)
        now = SearchState(asked, counted())
        PublishedIncumbents(context_of(now)).run()
        assert now.best is not None
        values.append(now.best.value_us)
    assert values == sorted(values, reverse=True)


def test_caps_that_nothing_v_shaped_keeps_are_refused() -> None:
    costs = v_shaped.stages(8, (90, 120, 60), v_shaped.MEMORIES[0])
    with pytest.raises(SynthError, match="zb-v-limit found no schedule within the memory limits"):
        generate("zb-v-limit", 4, 8, costs=costs, caps_bytes=[3] * 4)
    with pytest.raises(SynthError, match="must hold 8 activations"):
        generate("zb-v-greedy", 4, 8, costs=costs, caps_bytes=[15] * 4)


def test_the_makespan_never_rises_with_more_memory_if_it_is_the_objective() -> None:
    case = realistic_case(30, "v")
    where = placement("v", case.num_ranks)
    sizes, *_ = equal_cuts(StageCostTable(case.profile), where.num_stages)
    costs = partition_costs(case.profile, sizes)

    def makespan_us(factor: float, objective: Objective) -> int:
        caps = [round(factor * cap) for cap in case.caps_bytes]
        made = generate(
            "zb-v-limit", where.num_ranks, 16, costs=costs, caps_bytes=caps, objective=objective
        )
        return verify(made, costs)[1].makespan_us

    less, more = (makespan_us(factor, Objective.MAKESPAN) for factor in (1.4, 1.8))
    assert more <= less
    # The schedule of the least period takes longer with more memory.
    assert less < makespan_us(1.8, Objective.PERIOD)
