"""The search for schedules with weight passing: against all schedules, and its lower bounds."""

import random
import threading
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.costs.costs import Costs, uniform_costs
from synth.costs.stage_costs import StageCosts
from synth.errors import SynthError
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.placements import everywhere
from synth.schedule.rank_memory import kept_bytes, peak_bytes
from synth.schedule.simulate import DeadlockError, simulate
from synth.schedule.verify import ScheduleError, verify
from synth.schedule.weight_flow import Sharded
from synth.search.outcome import StoppedBy
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result
from synth.solver.watch import SolveWatch
from synth.solver.weight_passing.bounds import prove_weight_passing
from synth.solver.weight_passing.compute_order import changed
from synth.solver.weight_passing.equal_ranks import on_two_ranks
from synth.solver.weight_passing.first_orders import first_orders, published
from synth.solver.weight_passing.problem import (
    WeightMovement,
    WeightPassingProblem,
    passes_from_rank_to_rank,
)
from synth.solver.weight_passing.programs import make_schedule
from synth.solver.weight_passing.search import WeightPassingSearch
from synth.solver.weight_passing.unshard_placement import OpNeeds
from synth.solver.weight_passing.visit_options import VisitOptions
from tests.sweep import sweep
from tests.synth.every_weight_schedule import (
    BUFFERINGS,
    gather_programs,
    least_us,
    on_all_ranks,
    ring_programs,
    value_us,
)

RING, GATHER = WeightMovement


def equal_costs(num_stages: int, *, latency_us: int = 0, saved: int = 0) -> Costs:
    return uniform_costs(
        num_stages,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        saved_bytes=saved,
        saved_w_bytes=saved // 2,
        parameter_bytes=100,
        gradient_bytes=100,
        static_bytes=400,
        links=Links(default=Link(latency_us=latency_us)),
    )


def unequal_costs(num_stages: int, rng: random.Random) -> Costs:
    """Stages of random times and bytes; transfers take up to as long as a few ops."""
    stages: list[StageCosts] = []
    for stage in uniform_costs(
        num_stages, forward_us=1, backward_input_us=1, backward_weight_us=1
    ).stages:
        f, b, w, step = (rng.randint(1, 60) for _ in range(4))
        saved, parameters, gradients = (rng.randint(1, 90) for _ in range(3))
        made = rng.randint(0, 20) if len(stages) < num_stages - 1 else 0
        times = {OpKind.F: f, OpKind.B: b, OpKind.W: w, OpKind.BW: b + w - rng.randint(0, 2)}
        rises = dict.fromkeys((OpKind.B, OpKind.W, OpKind.BW), rng.randint(0, 30))
        stages.append(
            stage.replace(
                duration_us=times | {OpKind.STEP: step},
                saved_bytes=saved,
                saved_w_bytes=rng.randint(0, saved),
                output_bytes=made,
                rise_bytes=rises | {OpKind.F: saved + made, OpKind.STEP: 0},
                parameter_bytes=parameters,
                gradient_bytes=gradients,
                early_gradient_bytes=gradients // 3,
                static_bytes=parameters + gradients + rng.randint(0, 100),
            )
        )
    links = Links(
        default=Link(
            latency_us=rng.choice([0, 5, 40]),
            bandwidth_bytes_per_s=rng.choice([None, 1e6, 4e6]),
        )
    )
    return Costs(stages=tuple(stages), links=links)


def with_slow_sums(costs: Costs, rng: random.Random) -> Costs:
    """The same with slower links, and stages of which B leaves more for W than F kept."""
    stages = (stage.replace(saved_w_bytes=rng.randint(0, 600)) for stage in costs.stages)
    links = Links(default=Link(latency_us=rng.choice([100, 400])))
    return costs.replace(stages=tuple(stages), links=links)


def weight_passing_problem(
    movement: WeightMovement,
    costs: Costs,
    num_ranks: int,
    rounds: int,
    headroom: int | None = None,
) -> WeightPassingProblem:
    """A problem; the headroom is what each rank may hold besides the static bytes of ZeRO-3."""
    where = everywhere(num_ranks, costs.num_stages)
    free = WeightPassingProblem(Problem(costs, where, num_ranks * rounds), movement)
    if headroom is None:
        return free
    flow = free.flow()
    kept = (kept_bytes(costs, where, flow, rank) for rank in range(num_ranks))
    caps = tuple(headroom + each for each in kept)
    return replace(free, problem=replace(free.problem, caps_bytes=caps))


def solved(passing: WeightPassingProblem, target_us: int, seconds: float = 20.0) -> Result:
    """The result of a search that ends once it has reached a value."""
    stop = threading.Event()

    def listen(found: Incumbent) -> None:
        if found.value_us <= target_us:
            stop.set()

    return WeightPassingSearch(
        passing, SolveOptions(time_limit_s=seconds), SolveWatch(listen, stop)
    ).run()


# Against all schedules


@pytest.mark.parametrize("movement", WeightMovement)
@pytest.mark.parametrize("seed", sweep(range(2), daily=1))
def test_no_schedule_of_a_tiny_problem_is_faster_than_the_one_found(
    movement: WeightMovement, seed: int
) -> None:
    rng = random.Random(seed)
    costs = unequal_costs(2, rng)
    free = weight_passing_problem(movement, costs, 2, 1)
    tight = weight_passing_problem(movement, costs, 2, 1, rng.randint(250, 450))
    for passing in (free, tight):
        best_us, bound_us = least_us(passing), prove_weight_passing(passing).bound_us
        if best_us is None:
            continue
        assert bound_us <= best_us
        found = solved(passing, best_us)
        assert found.value_us is not None and bound_us <= found.value_us <= best_us


def test_no_order_of_two_micro_batches_on_each_rank_is_faster_than_the_one_found() -> None:
    """All orders with BW and all cuts into visits, which without a limit begin as early as may be.

    The search may also split BW, and so find something faster.
    """
    passing = weight_passing_problem(RING, unequal_costs(2, random.Random(7)), 2, 2)
    every = [ring_programs(passing, rank, splits=False, early=True) for rank in range(2)]
    values = (value_us(passing, list(pair), BUFFERINGS[-1]) for pair in product(*every))
    best_us = min(us for us in values if us is not None)
    assert prove_weight_passing(passing).bound_us <= best_us
    found = solved(passing, best_us)
    assert found.value_us is not None and found.value_us <= best_us


def test_no_pair_of_programs_beats_one_for_all_ranks() -> None:
    """The lemma of `equal_ranks`, on random pairs of programs with the same collectives."""
    rng = random.Random(1)
    passing = weight_passing_problem(GATHER, unequal_costs(2, rng), 2, 1)
    programs = rng.sample(gather_programs(passing), 60)
    alone: list[int] = []
    for one in programs:
        alone_us = value_us(passing, on_all_ranks(passing, one), BUFFERINGS[-1])
        assert alone_us is not None  # without limits each of them runs
        alone.append(alone_us)
    pairs = 0
    for k, one in enumerate(programs):
        for i in range(k):
            mixed = [on_all_ranks(passing, one)[0], on_all_ranks(passing, programs[i])[1]]
            us = value_us(passing, mixed, BUFFERINGS[-1])
            if us is not None:
                pairs += 1
                assert us >= max(alone[k], alone[i])
    assert pairs > 100


# Bounds


def random_schedule(passing: WeightPassingProblem, rng: random.Random, moves: int = 30) -> Schedule:
    """A schedule of a random order and random choices for its visits."""
    orders = list(first_orders(passing))
    count = 1 if passing.movement == GATHER or rng.random() < 0.5 else passing.num_ranks
    chosen = [rng.choice(orders)] * count
    for _ in range(moves):
        rank = rng.randrange(count)
        chosen[rank] = changed(chosen[rank], rng, 6) or chosen[rank]
    visit_options = VisitOptions(
        ahead=rng.randint(0, 4),
        most_open=rng.choice([None, 1, 2, 3]),
        scatter_every=rng.randint(1, passing.rounds),
        gathers_first=rng.random() < 0.5,
        buffering=Buffering(rng.randint(0, 4), rng.choice([0, 2, 8, 99])),
        sharded=rng.choice(passing.levels),
    )
    return make_schedule(
        OpNeeds(passing), chosen, visit_options, passing.headrooms(visit_options.sharded)
    )


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_no_schedule_is_faster_than_the_bound_for_its_own_peaks(seed: int) -> None:
    rng = random.Random(seed)
    p, rounds = rng.choice([2, 3, 4]), rng.randint(1, 3)
    movement = rng.choice([RING, GATHER])
    num_stages = rng.choice([1, p, p] if movement == RING else [2, p, 2 * p])
    costs = unequal_costs(num_stages, rng)
    if rng.random() < 0.5:
        costs = with_slow_sums(costs, rng)
    passing = weight_passing_problem(movement, costs, p, rounds)
    schedule = random_schedule(passing, rng)
    try:
        lowered, timeline = verify(schedule, passing.problem.costs)
    except ScheduleError as error:
        assert "deadlock" in str(error)  # any other fault would be one of the moves
        return
    if not passes_from_rank_to_rank(lowered):
        return
    problem = replace(passing.problem, caps_bytes=peak_bytes(lowered))
    bound_us = prove_weight_passing(replace(passing, problem=problem)).bound_us
    assert bound_us <= timeline.makespan_us
    # Every rank begins at once, so the bound is one of the period too.
    assert timeline.period_us == timeline.makespan_us


def test_with_one_round_no_sum_passes_the_last_link() -> None:
    """Two ranks, one stage, F = B = 10, W = 100: the schedule's last W follows no transfer."""
    costs = uniform_costs(
        1,
        forward_us=10,
        backward_input_us=10,
        backward_weight_us=100,
        saved_bytes=1,
        saved_w_bytes=1,
        parameter_bytes=1000,
        gradient_bytes=1,
        static_bytes=2000,
        links=Links(default=Link(bandwidth_bytes_per_s=1e6)),
    )
    passing = weight_passing_problem(RING, costs, 2, 1)
    visit_options = VisitOptions(ahead=1, buffering=Buffering(9, 9))
    schedule = make_schedule(
        OpNeeds(passing), (next(iter(first_orders(passing))),), visit_options, None
    )
    _, timeline = verify(schedule, costs)
    assert prove_weight_passing(passing).bound_us <= timeline.makespan_us == 1121


def test_the_tail_of_a_ring_is_the_sum_that_passes_all_later_micro_batches() -> None:
    """Ranks 8, rounds 4, F = B = W: after rank 0's last W come those of seven other ranks."""
    passing = weight_passing_problem(RING, equal_costs(8), 8, 4)
    assert prove_weight_passing(passing).bound_us == 4 * 8 * 300 + 7 * 100
    fastest = simulate(lower(generate("weipipe:wzb2", 8, 32), passing.problem.costs))
    assert fastest.makespan_us == prove_weight_passing(passing).bound_us


def test_on_slow_links_a_ring_waits_for_the_sum_that_passes_all_micro_batches() -> None:
    """Two ranks, two rounds, F = 100, BW = 200, transfers of 900 µs; B leaves 9000 bytes for W.

    Rank 0 is at home of stage 0, and gets stage 1 at 900. F0.0, F1.0 and BW1.0 end at 1200. Three
    times the sum of stage 1 goes to the other rank, which adds 200: 4500. Then BW0.3 ends at 4700,
    and its sum is at home at 5600.
    """
    costs = equal_costs(2, latency_us=900, saved=100)
    stages = tuple(stage.replace(saved_w_bytes=9000) for stage in costs.stages)
    costs = costs.replace(stages=stages)
    tight, free = (
        weight_passing_problem(RING, costs, 2, 2, 8000),
        weight_passing_problem(RING, costs, 2, 2),
    )
    assert prove_weight_passing(tight).bound_us == 5600
    # B1.0 and BW0.0 end at 1300, W0.3 after three hops at 4300, its sum is at home at 5200.
    assert prove_weight_passing(free).bound_us == 5200


def test_under_a_limit_stages_are_gathered_more_than_once() -> None:
    """Four stages, three rounds; weights and activations of a stage take 100 bytes each.

    500 bytes hold stage 3 with its weights and a micro-batch's activations, so no other forward is
    paired. Then stage 2 has a visit for each round, and one of stage 1 serves two rounds at most:
    with stages 0 and 3 that is 1 + 3/2 + 3 + 1 visits, and each stage is scattered once.
    """
    costs = equal_costs(4, latency_us=900, saved=100)
    free, tight = (
        weight_passing_problem(GATHER, costs, 2, 3),
        weight_passing_problem(GATHER, costs, 2, 3, 500),
    )
    # Without a limit: four gathers, the forwards of stage 3, its backwards, four scatters.
    assert prove_weight_passing(free).bound_us == 4 * 900 + 3 * 100 + 3 * 200 + 4 * 900
    assert prove_weight_passing(tight).bound_us == (1 + 1.5 + 3 + 1) * 900 + 4 * 900


# Visits


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**9))
def test_visits_that_begin_early_keep_the_limit(seed: int) -> None:
    """They count relayed weights, sums in flight, and receives that a link needs earlier.

    They do not count the sum that ends at a rank's own home.
    """
    rng = random.Random(seed)
    p, rounds = rng.choice([2, 3, 4]), rng.randint(1, 3)
    passing = weight_passing_problem(RING, unequal_costs(p, rng), p, rounds, rng.randint(300, 1200))
    order = rng.choice(list(first_orders(passing)))
    for _ in range(20):
        order = changed(order, rng, 6) or order
    late = VisitOptions(ahead=0, buffering=Buffering(rng.randint(0, 3), rng.choice([0, 1, 2, 5])))
    peaks: list[list[int]] = []
    for visit_options in (late, replace(late, ahead=rng.randint(1, 9))):
        table, headrooms = OpNeeds(passing), passing.headrooms(Sharded.WEIGHTS)
        schedule = make_schedule(table, (order,), visit_options, headrooms)
        peaks.append(list(peak_bytes(lower(schedule, passing.problem.costs))))
    caps = passing.problem.caps_bytes
    assert caps is not None
    allowed = max(0, *map(int.__sub__, peaks[0], caps))
    for rank, (peak, cap) in enumerate(zip(peaks[1], caps, strict=True)):
        # The sum that ends at its home arrives there without being counted.
        homes = enumerate(passing.flow().homes)
        ended = sum(passing.stages[stage].gradient_bytes for stage, at in homes if rank in at)
        assert peak - cap <= allowed + ended


# Two ranks that stand for all


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_two_ranks_have_the_times_and_the_memory_of_all(seed: int) -> None:
    rng = random.Random(seed)
    p = rng.choice([3, 4, 8])
    passing = weight_passing_problem(
        GATHER, unequal_costs(rng.choice([2, 3]), rng), p, rng.randint(1, 2)
    )
    small = {level: on_two_ranks(passing, level) for level in Sharded}
    schedule = random_schedule(passing, random.Random(seed))
    assert schedule.weights is not None
    level = schedule.weights.sharded
    on_small = random_schedule(small[level], random.Random(seed))
    both = []
    for of, made in ((passing, schedule), (small[level], on_small)):
        lowered = lower(made, of.problem.costs)
        kept = kept_bytes(of.problem.costs, of.problem.placement, of.flow(level), 0)
        both.append((simulate(lowered), peak_bytes(lowered)[0] - kept))
    (whole, whole_bytes), (part, part_bytes) = both
    assert part_bytes == whole_bytes
    # Collectives are rounded to whole microseconds.
    assert abs(part.makespan_us - whole.makespan_us) <= len(whole.lowered.collectives)


# The search


@pytest.mark.parametrize("movement", WeightMovement)
def test_the_answer_keeps_its_limits_and_no_published_schedule_that_fits_is_faster(
    movement: WeightMovement,
) -> None:
    costs = equal_costs(4, latency_us=20, saved=60)
    for headroom in (700, 1200):
        passing = weight_passing_problem(movement, costs, 4, 2, headroom)
        found = WeightPassingSearch(passing, SolveOptions(time_limit_s=0.5)).run()
        if found.schedule is None:
            continue
        caps = passing.problem.caps_bytes
        assert verify(found.schedule, costs, caps)[1].makespan_us == found.value_us
        for _, schedule in published(passing):
            try:
                lowered, line = verify(schedule, costs, caps)
            except ScheduleError:
                continue
            assert passes_from_rank_to_rank(lowered)
            assert found.value_us is not None and line.makespan_us >= found.value_us


def test_more_buffers_buy_a_smaller_bubble_down_to_the_tail_of_the_ring() -> None:
    """In lock-step the interleaved order has a bubble of 3/11 on four ranks in two rounds.

    A flow is one of the forward weights, the backward weights and the gradients, 100 bytes each.
    """
    lock_step = 3 / 11
    rates = []
    for buffers in (1, 2, 3):
        passing = weight_passing_problem(RING, equal_costs(4), 4, 2, 3 * 100 * buffers)
        found = solved(passing, 2400 + 300)
        assert found.value_us is not None
        rates.append(1 - 2400 / found.value_us)
    assert rates == sorted(rates, reverse=True)
    assert rates[1] < 0.6 * lock_step and rates[2] == pytest.approx(1 / 9)


def test_the_search_is_below_the_bubbles_of_the_interleaved_order_on_eight_ranks() -> None:
    """4 rounds, F = B = W, a flow as in the test before; activations take no memory.

    The interleaved order has 7/39 = 17.9 % in lock-step. With data flow it has 13.5 % with two
    buffers for each flow, and 8.6 % with three.
    """
    costs, work = equal_costs(8), 4 * 8 * 300
    for buffers, bubble in ((1, 7 / 39), (2, 0.135), (3, 0.086)):
        found = solved(
            weight_passing_problem(RING, costs, 8, 4, 3 * 100 * buffers), int(work / (1 - bubble))
        )
        assert found.value_us is not None and 1 - work / found.value_us <= bubble


def test_on_eight_ranks_two_buffers_more_than_the_published_order_reach_the_optimum() -> None:
    """The figures of notes/solver.md: 8 ranks, 4 rounds, F = B = W, activations of 1000 bytes."""
    costs, work = equal_costs(8, saved=1000), 4 * 8 * 300
    published_order = generate("weipipe", 8, 32)
    unlimited = replace(published_order, buffering=Buffering(99, 999))
    times = [verify(one, costs)[1].makespan_us for one in (published_order, unlimited)]
    assert [round(1 - work / us, 3) for us in times] == [0.165, 0.127]
    peak = max(peak_bytes(lower(published_order, costs)))
    passing = weight_passing_problem(RING, costs, 8, 4, peak - 400 + 2 * 3 * 100)
    found = solved(passing, work + 7 * 100)
    assert found.value_us == found.lower_bound_us == work + 700
    assert round(1 - work / found.value_us, 3) == 0.068


def test_a_limit_below_the_state_that_is_kept_is_infeasible() -> None:
    passing = weight_passing_problem(RING, equal_costs(2), 2, 1, -1)
    found = WeightPassingSearch(passing, SolveOptions(time_limit_s=1)).run()
    assert found.schedule is None and found.stopped_by == StoppedBy.INFEASIBLE
    assert found.message is not None and "§mem_limit 500B" in found.message


def test_the_same_seed_gives_the_same_schedule() -> None:
    passing = weight_passing_problem(GATHER, equal_costs(2, latency_us=90, saved=50), 2, 2, 420)
    options = SolveOptions(time_limit_s=0.02, deterministic=True, seed=3)
    one, other = (WeightPassingSearch(passing, options).run() for _ in range(2))
    assert one.schedule is not None and one.schedule == other.schedule


@pytest.mark.parametrize(
    ("where", "count", "match"),
    [
        (Placement.linear(2), 4, "needs a copy of all stages on each rank"),
        (everywhere(2, 2), 3, "give a multiple of 2"),
        (everywhere(1, 2), 2, "needs at least two ranks, given 1"),
    ],
)
def test_problems_whose_weights_cannot_be_passed_are_refused(
    where: Placement, count: int, match: str
) -> None:
    with pytest.raises(SynthError, match=match):
        WeightPassingProblem(Problem(equal_costs(2), where, count), RING)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_moves_keep_schedules_complete_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    passing = weight_passing_problem(rng.choice([RING, GATHER]), equal_costs(3), 3, 2)
    schedule = random_schedule(passing, rng, moves=60)
    lowered = lower(schedule, passing.problem.costs)
    try:
        simulate(lowered)
    except DeadlockError:
        return
    verify(schedule, passing.problem.costs)


@pytest.mark.slow
def test_on_a_small_ring_ranks_place_visits_for_themselves() -> None:
    """An independent local search over programs takes 664; one rule for all visits takes 686."""
    rng = random.Random(3)
    passing = weight_passing_problem(RING, unequal_costs(2, rng), 2, 2, rng.randint(150, 400))
    options = SolveOptions(time_limit_s=1.0, gap=0.0, deterministic=True, workers=1)
    found = WeightPassingSearch(passing, options).run()
    assert found.value_us is not None and found.value_us <= 664
