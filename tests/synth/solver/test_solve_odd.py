"""Claims of the solver, against random valid schedules of unusual problems; and former bugs."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from synth.costs.costs import Costs
from synth.costs.stage_costs import StageCosts
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.search.outcome import StoppedBy
from synth.solver.bounds.closed_form import work_bound_us
from synth.solver.cpsat.run import decide, solve_briefly
from synth.solver.evaluate.evaluate import BUFFERINGS
from synth.solver.infeasibility import find_shortage
from synth.solver.instance.memory_models import relaxed_for_fusion, relaxed_memory, safe_memory
from synth.solver.instance.timing import order_of, timed
from synth.solver.modulo.least_memory import find
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.synth.effort import counted
from tests.synth.odd_problems import BW, STEP, B, F, RandomOrders, W, odd_costs
from tests.synth.solver.test_solve_exact import OBJECTIVES

NAMES = ["linear", "v", "looped:2", "wave:2", "bidirectional", "bidirectional-v"]


@settings(max_examples=400, deadline=None)
@given(
    st.integers(0, 10**9),
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.integers(2, 6),
    st.sampled_from([(1, 2), (0, 0), (0, 1), (1, 1), (9, 9)]),
    st.sampled_from(OBJECTIVES),
)
def test_no_claim_excludes_a_schedule_that_there_is(
    seed: int, name: str, num_ranks: int, m: int, sizes: tuple[int, int], objective: Objective
) -> None:
    rng = random.Random(seed)
    where = placement(name, num_ranks)
    costs = odd_costs(rng, where.num_stages, num_ranks)
    free = Problem(costs, where, m, None, objective)
    programs = RandomOrders(rng, free).programs()
    schedule = Schedule(where, m, programs, "random", Buffering(*sizes))
    try:
        lowered, timeline = verify(schedule, costs)
    except ScheduleError:  # buffers too small for this order
        return
    peaks = peak_bytes(lowered)
    problem = replace(free, caps_bytes=peaks)
    assert find_shortage(problem) is None
    assert work_bound_us(relaxed_for_fusion(problem), objective) <= objective.value_us(timeline)
    instance = relaxed_memory(problem)
    for rank, program in enumerate(programs):
        usage = 0
        for copy, kind in order_of(instance, program):
            assert instance.allows(copy, kind, usage), (rank, copy, kind)
            usage += instance[copy].delta_bytes[kind]


def stage(
    times: tuple[int, int, int],
    saved: int = 0,
    saved_w: int = 0,
    output: int = 0,
    output_until: OpKind = F,
    rises: tuple[int, int, int] = (0, 0, 0),
) -> StageCosts:
    """Durations of F, B, W; rises of F, W, BW."""
    return StageCosts(
        duration_us={F: times[0], B: times[1], W: times[2], BW: times[1] + times[2], STEP: 0},
        static_bytes=0,
        output_bytes=output,
        saved_bytes=saved,
        saved_w_bytes=saved_w,
        rise_bytes={F: rises[0], B: 0, W: rises[1], BW: rises[2], STEP: 0},
        input_until=OpKind.B if output else F,
        output_until=output_until,
        gradient_until=B,
    )


def test_memory_time_counts_a_local_boundary_only_while_it_lives() -> None:
    """A gradient between two stages of a rank dies at B of the upper one, not at a late W."""
    plain = stage((1, 1, 1)).replace(input_until=F)
    stages = [plain] * 8
    stages[3] = plain.replace(output_bytes=10, output_until=B)
    stages[4] = stage((1, 1, 100), saved=10).replace(input_until=F)
    stages[5] = stage((100, 1, 1)).replace(input_until=F)
    costs, where, m = Costs(stages=tuple(stages)), placement("wave:2", 2), 6
    programs: list[list[Op]] = [[], []]
    for j in range(m):
        names = "F0 F1 F2 F3 F4 F5 F6 F7 B7 W7 B6 W6 B5 W5 B4 B3 W3 B2 W2 B1 W1 B0 W0"
        for name in names.split():
            at = int(name[1:])
            programs[where.rank_of(at)].append(Op(OpKind(name[0]), at, j))
            if name == "F4" and j:
                programs[0].append(Op(W, 4, j - 1))
    programs[0].append(Op(W, 4, m - 1))
    schedule = Schedule(where, m, tuple(map(tuple, programs)), "late W", Buffering(0, 0))
    lowered, timeline = verify(schedule, costs)
    problem = Problem(costs, where, m, peak_bytes(lowered))
    bound = work_bound_us(relaxed_for_fusion(problem), Objective.MAKESPAN)
    assert bound <= timeline.makespan_us


def test_a_w_put_off_may_need_less_memory() -> None:
    costs = Costs(
        stages=(
            stage((1, 1, 1), saved=50, output=1, rises=(50, 0, 0)),
            stage((1, 1, 1), saved=10, saved_w=5, rises=(10, 100, 105)),
        )
    )
    where = placement("v", 1)
    order = "F0.0 F1.0 B1.0 B0.0 W1.0 W0.0"
    schedule = Schedule(where, 1, (tuple(map(Op.parse, order.split())),), "late", Buffering(0, 0))
    lowered, _ = verify(schedule, costs)
    caps = peak_bytes(lowered)
    result = solve(Problem(costs, where, 1, caps), counted(0.3))
    assert result.schedule is not None
    less = Problem(costs, where, 1, (caps[0] - 1,))
    assert find_shortage(less) is not None


@pytest.mark.parametrize("ranks", [(2, 1, 0), (1, 0, 2), (0, 1, 2)])
def test_the_period_does_not_depend_on_what_ranks_are_called(ranks: tuple[int, ...]) -> None:
    costs = Costs(stages=(stage((100, 1, 0)), stage((1, 1, 50)), stage((1, 1, 1))))
    problem = Problem(costs, Placement((ranks,)), 1, None, Objective.PERIOD)
    result = solve(problem, counted())
    assert (result.stopped_by, result.value_us, result.lower_bound_us) == (
        StoppedBy.OPTIMAL,
        105,
        105,
    )


def test_an_infeasible_model_is_survived_where_threads_take_turns() -> None:
    """OR-Tools 9.15 aborts the process on some when it interleaves without probing."""
    rng = random.Random(0)
    where = placement("v", 2)
    problem = Problem(odd_costs(rng, 4, 2), where, 6, (9, 9))
    options = counted(0.05, workers=2)
    for cap in range(4, 40, 6):
        solve(replace(problem, caps_bytes=(cap, cap)), options)
    model = cp_model.CpModel()
    start = model.new_int_var(0, 5, "")
    model.add_no_overlap(model.new_fixed_size_interval_var(start + k, 4, "") for k in range(3))
    assert solve_briefly(model, 1.0, seed=1, workers=2) is None


def test_a_small_model_that_is_hard_can_be_stopped() -> None:
    """A job shop of 30 jobs and 15 machines: left alone it would take hours."""
    rng, model = random.Random(0), cp_model.CpModel()
    machines: list[list[cp_model.IntervalVar]] = [[] for _ in range(15)]
    span = model.new_int_var(0, 50_000, "")
    for _ in range(30):
        free: cp_model.LinearExprT = 0
        for machine in rng.sample(machines, 15):
            start, duration = model.new_int_var(0, 50_000, ""), rng.randint(1, 99)
            machine.append(model.new_fixed_size_interval_var(start, duration, ""))
            model.add(start >= free)
            free = start + duration
        model.add(span >= free)
    for intervals in machines:
        model.add_no_overlap(intervals)
    model.minimize(span)
    polls = iter([False] * 10)
    decided = decide(model, 1e6, seed=1, should_stop=lambda: next(polls, True))
    assert next(polls, None) is None
    assert not decided.is_refuted
    assert 0 < decided.spent_s < 100
    with pytest.raises(KeyboardInterrupt):
        decide(model, 1e6, seed=1, should_stop=_interrupt)


def _interrupt() -> bool:
    raise KeyboardInterrupt


def test_patterns_with_ops_of_no_duration_can_be_run() -> None:
    found = 0
    for seed in range(25):
        costs = odd_costs(random.Random(seed), 4, 2)
        instance = safe_memory(Problem(costs, placement("v", 2), 4), BUFFERINGS[0])
        pattern = find(instance, 1.1, 0.1)
        if pattern is not None:
            orders = pattern.unrolled(instance).orders(instance)
            assert len(timed(orders, instance).starts) == instance.num_ops
            found += 1
    assert found > 10
