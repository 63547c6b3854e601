"""Models of a few ranks that hold several stages: never above a schedule, and not trivial."""

import random
from dataclasses import replace

import pytest

from synth.costs.costs import uniform_costs
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering, Schedule
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.solver.bounds import destructive, rank_subsets
from synth.solver.bounds.bound import BoundSetting, LowerBound, ProofState, Reference
from synth.solver.bounds.bound_policy import BoundPolicy
from synth.solver.bounds.closed_form import rank_bound
from synth.solver.bounds.destructive import Decision
from synth.solver.bounds.rank_subsets import RankSubsets
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import Part
from synth.solver.order_pool import split_timing
from synth.solver.problem import Problem
from synth.solver.solver import solve
from synth.solver.tuning import DESTRUCTIVE
from tests.sweep import sweep
from tests.synth.effort import counted, exact_alone
from tests.synth.odd_problems import RandomOrders, odd_costs
from tests.synth.solver.test_forward_spacing import any_placement
from tests.synth.solver.test_solve_exact import OBJECTIVES
from tests.synth.solver.test_solve_placements import random_problem
from tests.synth.tight_problems import optimum_us, tight_problem

NAMES = ["v", "looped:2", "wave:2", "looped:3", "bidirectional", "odd"]


def setting_of(problem: Problem, value_us: int) -> BoundSetting:
    """All that is known is a value."""
    return BoundSetting(
        relaxed_for_fusion(problem),
        problem.objective,
        counted(1),
        lambda: Reference(value_us, None),
        ProofState(),
        lambda: False,
    )


def best_bound(problem: Problem, value_us: int, seconds: float) -> int:
    """The best bound of single ranks and of growing sets, each within some effort."""
    bounds = RankSubsets.of(setting_of(problem, value_us))
    proven = [*bounds.one_by_one(seconds), *bounds.prove(seconds)]
    return max(one.bound_us for one in proven)


@pytest.fixture
def refuting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether models of any size are asked for values; then down to 2 % of the value."""
    if request.param:
        tuning = replace(DESTRUCTIVE, fewest_ops=0, tolerance=0.02)
        for module in (rank_subsets, destructive):
            monkeypatch.setattr(module, "DESTRUCTIVE", tuning)
    return bool(request.param)


both_ways = pytest.mark.parametrize("refuting", [False, True], indirect=True)


@both_ways
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", sweep([1, 2, 0, *range(3, 120)], daily=2))
def test_no_bound_is_above_a_schedule_of_an_odd_problem(
    name: str, seed: int, refuting: bool
) -> None:
    """Links, limits that the schedule just keeps, BW cheaper than B and W, any objective."""
    tight = tight_problem(seed, name, most_micro_batches=6, slow_links=0.5, objectives=OBJECTIVES)
    if tight is not None:
        value_us = tight.problem.objective.value_us(tight.timeline)
        assert best_bound(tight.problem, 3 * value_us + 10, 0.02) <= value_us


@both_ways
@pytest.mark.parametrize("seed", sweep(range(60), daily=2))
@pytest.mark.parametrize(("name", "num_ranks", "m"), [("v", 2, 3), ("wave:2", 2, 2), ("v", 3, 3)])
def test_no_bound_is_above_the_optimum(
    name: str, num_ranks: int, m: int, seed: int, refuting: bool
) -> None:
    problem = random_problem(seed + 4_000, name, num_ranks, m)
    if (least_us := optimum_us(problem)) is not None:
        assert best_bound(problem, 2 * least_us, 0.2) <= least_us


@pytest.mark.parametrize("seed", sweep(range(120), daily=12))
def test_what_ranks_attain_in_a_known_order_is_between_their_least_and_its_value(seed: int) -> None:
    rng = random.Random(seed)
    name, m = rng.choice(["v", "looped:2", "wave:2"]), rng.randint(2, 4)
    where = any_placement(rng, name, 2)
    free = Problem(odd_costs(rng, where.num_stages, where.num_ranks), where, m)
    programs = RandomOrders(rng, free).programs()
    try:
        lowered, _ = verify(Schedule(where, m, programs, "random", Buffering(9, 9)), free.costs)
    except ScheduleError:  # buffers too small for this order
        return
    problem = replace(free, caps_bytes=peak_bytes(lowered))
    setting = setting_of(problem, 0)
    timing = split_timing(programs, setting.instance)
    assert timing is not None
    value_us = timing.value_us(setting.instance, problem.objective)
    for rank in range(where.num_ranks):
        known = replace(setting, reference=lambda: Reference(value_us, timing), known=ProofState())
        bounds = RankSubsets.of(known)
        bounds._attain_in_order((rank,))
        copies = [bounds.instance[copy] for copy in bounds.instance.held[rank]]
        has_more = any(copy.again_us or copy.reduce_us for copy in copies)
        assert ((rank,) in bounds.attained_us) == (not has_more)
        attained_us = bounds.attained_us.get((rank,), value_us)
        assert bounds.alone(rank, 1.0).bound_us <= attained_us <= value_us


@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.PERIOD])
def test_where_starts_vary_a_known_order_says_nothing_of_the_period(objective: Objective) -> None:
    """With two copies of the model either one may be the first that a rank runs."""
    costs = uniform_costs(2, forward_us=3, backward_input_us=4, backward_weight_us=2)
    problem = Problem(costs, placement("bidirectional", 2), 4, None, objective)
    programs = RandomOrders(random.Random(0), problem).programs()
    setting = setting_of(problem, 0)
    timing = split_timing(programs, setting.instance)
    assert timing is not None
    bounds = RankSubsets.of(replace(setting, reference=lambda: Reference(1_000, timing)))
    bounds._attain_in_order((0,))
    assert ((0,) in bounds.attained_us) == (objective == Objective.MAKESPAN)


def test_a_rank_alone_waits_for_its_own_later_stage() -> None:
    """Rank 0 of a V holds the first and the last stage, and its memory four activations.

    F = B = W = 100 and 300 between ranks: F of the last stage starts at 900 or later. Until then
    rank 0 runs F's of the first stage, and no fourth one, which would leave no memory for the last
    stage. So it idles for 600, besides 2,400 of work, and again behind its last F; its closed form
    is of what memory holds then.
    """
    problem = v_of_two(m=4, held=2)
    instance = relaxed_for_fusion(problem)
    outcome = RankSubsets.of(setting_of(problem, 20_000)).alone(0, 1.0)
    assert rank_bound(instance, 0).makespan_us == 3_300
    assert outcome.bound_us == 3_600
    best = solve(problem, exact_alone())
    assert best.value_us is not None and outcome.bound_us <= best.value_us


def v_of_two(m: int, held: int) -> Problem:
    """Two ranks, each with memory for some micro-batches on both of its stages."""
    costs = uniform_costs(
        4,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        links=Links(default=Link(latency_us=300)),
        saved_bytes=2,
        saved_w_bytes=1,
    )
    return Problem(costs, placement("v", 2), m, (4 * held,) * 2, Objective.MAKESPAN)


@pytest.mark.parametrize("refuting", [True], indirect=True)
def test_the_rank_that_alone_proves_most_is_found(
    monkeypatch: pytest.MonkeyPatch, refuting: bool
) -> None:
    """The one with the largest closed form is asked first; the other one cannot refute more."""
    costs = v_of_two(4, 2).costs
    heavy = costs.stages[1].model_copy(
        update={"duration_us": {**costs.stages[1].duration_us, OpKind.F: 900}}
    )
    stages = (costs.stages[0], heavy, *costs.stages[2:])
    problem = replace(v_of_two(4, 2), costs=costs.replace(stages=stages))
    bounds = RankSubsets.of(setting_of(problem, 50_000))
    asked: list[tuple[int, ...]] = []
    decide = bounds.decide

    def noted(ranks: tuple[int, ...], value_us: int, effort_s: float) -> Decision:
        asked.append(ranks)
        return decide(ranks, value_us, effort_s)

    monkeypatch.setattr(bounds, "decide", noted)
    proven = list(bounds.one_by_one(5.0))
    assert asked[0] == (1,) and set(asked) == {(0,), (1,)}
    assert {one.certificate.ranks for one in proven} == {(1,)}
    least_us = [RankSubsets.of(setting_of(problem, 50_000)).alone(rank, 1.0) for rank in (0, 1)]
    assert least_us[0].bound_us < proven[-1].bound_us <= least_us[1].bound_us


@pytest.mark.parametrize("refuting", [True], indirect=True)
def test_two_copies_are_bounded_by_both_ranks_of_a_stage(refuting: bool) -> None:
    """Memory is for one micro-batch of one copy: the next one waits, and on the other rank, too.

    With durations and bytes of stages far apart, ranks 1 and 2 together prove more than any rank
    alone can. The bound is not above the least value of all four.
    """
    rows = ((6, 8, 3, 4, 3), (19, 28, 11, 15, 10), (6, 7, 3, 4, 3), (15, 15, 15, 13, 5))
    stages = [
        uniform_costs(
            1,
            forward_us=f,
            backward_input_us=b,
            backward_weight_us=w,
            saved_bytes=saved,
            saved_w_bytes=saved_w,
        ).stages[0]
        for f, b, w, saved, saved_w in rows
    ]
    links = Links(default=Link(latency_us=4))
    base = uniform_costs(4, forward_us=1, backward_input_us=1, backward_weight_us=1, links=links)
    costs = base.replace(stages=tuple(stages))
    problem = Problem(costs, placement("bidirectional", 4), 6, (15,) * 4)
    best_us = solve(problem, exact_alone()).value_us
    assert best_us is not None
    bounds = RankSubsets.of(setting_of(problem, best_us))
    proven = max(bounds.one_by_one(20.0), key=lambda one: one.bound_us)
    alone = (RankSubsets.of(setting_of(problem, best_us)).alone(rank, 5.0) for rank in range(4))
    assert proven.certificate.ranks == (1, 2)
    assert max(one.bound_us for one in alone) < proven.bound_us <= best_us


@pytest.mark.parametrize("refuting", [True], indirect=True)
def test_of_two_ranks_with_two_copies_each_is_asked_alone_and_both_again(refuting: bool) -> None:
    """Both hold all stages, so that no larger set could follow them."""
    costs = uniform_costs(2, forward_us=5, backward_input_us=6, backward_weight_us=4, saved_bytes=2)
    setting = setting_of(Problem(costs, placement("bidirectional", 2), 6), 900)
    asked = {one.certificate.ranks for one in RankSubsets.of(setting).one_by_one(1.0)}
    assert asked and asked <= {(0,), (1,)}
    setting.known.proven_by.clear()
    for _ in range(2):
        proven = list(RankSubsets.of(setting).prove(1.0))
        assert (0, 1) in {one.certificate.ranks for one in proven}


@pytest.mark.parametrize(("m", "part"), [(8, Part.RANK_SUBSETS), (40, Part.IDLE_TIME)])
def test_idle_times_of_single_ranks_replace_models_of_many_ops(m: int, part: Part) -> None:
    """Two stages of 8 micro-batches are 48 ops of a rank, of 40 they are 240."""
    reported: list[Part] = []
    setting = setting_of(v_of_two(m, 2), 100_000)
    options = replace(setting.options, on_part=reported.append)
    next(BoundPolicy(replace(setting, options=options)).one_by_one())
    assert reported == [part]


def test_proofs_begin_with_the_best_closed_form() -> None:
    setting = setting_of(v_of_two(4, 2), 50_000)
    policy = BoundPolicy(setting)
    (closed,) = policy.closed_forms()
    assert setting.known.bound_us == closed.bound_us
    subsets: LowerBound = RankSubsets.of(setting)
    assert subsets.bound_us == closed.bound_us
