"""The idle time of ranks by cause."""

import pytest

import synth
from synth.costs.costs import Costs, uniform_costs
from synth.errors import SynthError
from synth.families import families, family_placement, generate
from synth.objective import Objective
from synth.plan.explain.eager_order import eager_timelines
from synth.plan.explain.idle_causes import RankIdle, idle_causes, span_us
from synth.plan.explain.path_summary import critical_path_of
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.verify import verify

F_US, B_US, W_US = 10, 12, 8
COSTS = uniform_costs(
    4,
    forward_us=F_US,
    backward_input_us=B_US,
    backward_weight_us=W_US,
    saved_bytes=100,
    saved_w_bytes=60,
)


def timed(name: str, costs: Costs = COSTS, num_micro_batches: int = 8) -> Timeline:
    schedule = generate(name, costs.num_stages, num_micro_batches, costs=costs)
    return verify(schedule, costs)[1]


def causes_of(one: RankIdle) -> dict[str, int]:
    return {cause: us for cause, us in one.causes_us.items() if us}


def test_1f1b_on_equal_stages_is_idle_in_warm_up_and_drain_alone() -> None:
    # Rank r waits r F's for its first op and 3 − r BW's for its first BW, and the reverse at the
    # end: r BW's after its last op and 3 − r F's between its last BW's.
    timeline = timed("1f1b")
    for rank, one in enumerate(idle_causes(timeline, Objective.MAKESPAN)):
        after = 3 - rank
        backward_us = B_US + W_US
        assert one.warm_up_us == rank * F_US + after * backward_us
        assert one.drain_us == rank * backward_us + after * F_US
        assert one.idle_us == 3 * (F_US + backward_us) == one.warm_up_us + one.drain_us


def test_memory_is_no_cause_where_no_order_gains_by_more_of_it() -> None:
    # Fused backwards leave no order faster than 1F1B.
    timeline = timed("1f1b")
    caps = peak_bytes(timeline.lowered)
    without = idle_causes(timeline, Objective.MAKESPAN)
    assert idle_causes(timeline, Objective.MAKESPAN, caps) == without


def test_a_limit_of_one_micro_batch_is_the_cause_of_waits() -> None:
    # Two stages run one micro-batch after the other: rank 0 has a second F, and no room for it.
    costs = uniform_costs(
        2, forward_us=10, backward_input_us=10, backward_weight_us=10, saved_bytes=100
    )
    programs = [
        [Op.parse(f"{kind}{stage}.{j}") for j in range(4) for kind in ("F", "BW")]
        for stage in range(2)
    ]
    timeline = verify(Schedule.linear("serial", 4, programs), costs)[1]
    # F0 F1 BW1 BW0 takes 60 µs, four of them 240; rank 0 waits 30 of each 60 between F and BW.
    first, _ = idle_causes(timeline, Objective.MAKESPAN, (100, 100))
    assert (first.idle_us, first.memory_us) == (4 * 30, 3 * 30)
    # After the last F no other waits for room.
    assert causes_of(first) == {"memory": 90, "drain": 30}
    free, _ = idle_causes(timeline, Objective.MAKESPAN)
    assert free.memory_us == 0
    roomy, _ = idle_causes(timeline, Objective.MAKESPAN, (10**6, 100))
    assert roomy.memory_us == 0


def test_the_period_of_zb_h1_is_held_back_by_memory_and_that_of_zb_h2_by_nothing() -> None:
    equal = uniform_costs(
        4,
        forward_us=10,
        backward_input_us=10,
        backward_weight_us=10,
        saved_bytes=100,
        saved_w_bytes=100,
    )
    for name, memory_us in (("zb-h1", 30), ("zb-h2", 0)):
        timeline = timed(name, equal)
        caps = peak_bytes(timeline.lowered)
        assert timeline.period_us == 240 + memory_us
        first = idle_causes(timeline, Objective.PERIOD, caps)[0]
        assert (first.idle_us, first.memory_us) == (memory_us, memory_us)


def test_a_slow_link_is_the_cause_of_waits_that_no_link_is_without_it() -> None:
    slow = COSTS.replace(links=Links(default=Link(latency_us=40)))
    assert all(one.links_us == 0 for one in idle_causes(timed("1f1b"), Objective.MAKESPAN))
    first = idle_causes(timed("1f1b", slow), Objective.MAKESPAN)[0]
    assert first.links_us >= 40
    # One micro-batch on two ranks: F, 40 µs, F BW, 40 µs, BW. Rank 0 waits for all between its
    # ops; the time before the gradient is on its way is that until its first backward.
    two = slow.replace(stages=slow.stages[:2])
    timeline = timed("1f1b", two, num_micro_batches=1)
    before, after = idle_causes(timeline, Objective.MAKESPAN)
    backward_us = B_US + W_US
    assert causes_of(before) == {"warm_up": 40 + F_US + backward_us, "links": 40}
    assert causes_of(after) == {"warm_up": F_US + 40, "drain": 40 + backward_us}


def test_waits_for_reductions_within_a_rank_are_no_waits_for_links() -> None:
    # Rank 0 ends with its last BW, and its STEP waits for all that 45 µs have left beyond that.
    within = COSTS.replace(stages=tuple(one.replace(reduce_us=45) for one in COSTS.stages))
    timeline = timed("1f1b", within)
    lasts_us = within.reduction_us(0, [0], is_alone=True)
    first, *others = idle_causes(timeline, Objective.MAKESPAN)
    assert (first.links_us, first.reductions_us) == (0, lasts_us) == (0, 45 - B_US - W_US)
    assert all((one.links_us, one.reductions_us) == (0, 45) for one in others)
    assert all(sum(one.causes_us.values()) == one.idle_us for one in (first, *others))
    path = critical_path_of(timeline)
    assert (path.transfers_us, path.reductions_us) == (0, lasts_us)


def test_a_reduction_behind_a_slow_link_has_its_own_part_of_the_wait() -> None:
    # One micro-batch, one op a rank: rank 0 waits 40 µs for the gradient, and 25 µs for STEP.
    slow = COSTS.replace(
        links=Links(default=Link(latency_us=40)),
        stages=tuple(one.replace(reduce_us=45) for one in COSTS.stages[:2]),
    )
    before, after = idle_causes(timed("1f1b", slow, num_micro_batches=1), Objective.MAKESPAN)
    assert (before.links_us, before.reductions_us) == (40, 25)
    assert (after.links_us, after.reductions_us) == (0, 45)


def test_a_rank_with_less_work_is_idle_by_imbalance() -> None:
    # The last of two stages takes three times as long; rank 0 waits for it between its BW's.
    fast, slow = (
        uniform_costs(1, forward_us=us, backward_input_us=us, backward_weight_us=us).stages[0]
        for us in (10, 30)
    )
    timeline = timed("1f1b", Costs(stages=(fast, slow)))
    light, heavy = idle_causes(timeline, Objective.MAKESPAN)
    assert heavy.imbalance_us == 0
    assert light.work_us == heavy.work_us / 3
    assert 0 < light.imbalance_us <= heavy.work_us - light.work_us
    assert light.imbalance_us > light.idle_us / 2


OVERLAPPING = ("dualpipe:overlap", "dualpipe-v:overlap", "interleaved:2,overlap")


def with_pairs(name: str, hidden_us: int, num_micro_batches: int = 8) -> Timeline:
    """Simulate a family whose F and BW run at once on four ranks of equal stages."""
    num_stages = family_placement(name, 4).num_stages
    stage = COSTS.stages[0].replace(hidden_us=hidden_us)
    costs = COSTS.replace(stages=(stage,) * num_stages)
    return verify(generate(name, 4, num_micro_batches, costs=costs), costs)[1]


@pytest.mark.parametrize("name", OVERLAPPING)
@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.PERIOD])
def test_ranks_of_equal_stages_have_no_imbalance_however_many_pairs_they_have(
    name: str, objective: Objective
) -> None:
    timeline = with_pairs(name, hidden_us=6)
    assert len(set(timeline.work_us)) > 1 and len(set(timeline.apart_us)) == 1
    span = span_us(timeline, objective)
    for caps in (None, peak_bytes(timeline.lowered)):
        for one in idle_causes(timeline, objective, caps):
            assert one.idle_us == span - one.work_us == sum(one.causes_us.values())
            assert min(one.causes_us.values()) >= 0 == one.imbalance_us


@pytest.mark.parametrize("name", OVERLAPPING)
@pytest.mark.parametrize("hidden_us", [2, 6, 10])
def test_eager_orders_keep_the_pairs(name: str, hidden_us: int) -> None:
    timeline = with_pairs(name, hidden_us)
    schedule = timeline.lowered.schedule
    for one in eager_timelines(timeline.lowered):
        assert one.lowered.schedule.overlapped == schedule.overlapped
        assert list(map(sorted, one.lowered.ops)) == list(map(sorted, timeline.lowered.ops))
        # What pairs save is saved in every order; apart the same ops take longer.
        assert one.work_us == timeline.work_us < timeline.apart_us


def simulated(name: str, profile: Profile, count: int) -> Plan:
    """Return a plan of a family; one that needs memory limits, or more micro-batches, gets them."""
    try:
        return synth.simulate(name, profile, ranks=4, micro_batches=count)
    except SynthError:
        return synth.simulate(name, profile, ranks=4, micro_batches=8, mem_limit="200MB")


@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.PERIOD])
@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize("name", sorted(families()))
def test_causes_add_up_to_idle_time_and_the_path_to_the_makespan(
    name: str, count: int, objective: Objective
) -> None:
    profile = Profile.load(find("gpt-bytes-cpu"))
    profile = profile.replace(links=profile.links.replace(host=Link(latency_us=50)))
    plan = simulated(name, profile, count)
    timeline = plan.check()[1]
    span = span_us(timeline, objective)
    for caps in (None, plan.claim.peak_bytes):
        for one in idle_causes(timeline, objective, caps):
            assert one.idle_us == span - one.work_us == sum(one.causes_us.values())
            assert min(one.causes_us.values()) >= 0
    path = critical_path_of(timeline)
    assert path.length_us == timeline.makespan_us
    assert path.length_us == sum(path.stages_us) + path.transfers_us + path.reductions_us
    assert path.length_us == sum(path.kinds_us.values()) + path.transfers_us + path.reductions_us
    assert sum(run.work_us for run in path.runs) == sum(path.stages_us)


def test_f_and_bw_at_once_are_one_op_of_the_critical_path() -> None:
    # 10 for F0.0, 10 + 20 − 6 for the pair, 20 for BW0.1, all on one rank.
    stage = COSTS.stages[0].replace(hidden_us=6)
    ops = [Op.parse(text) for text in ("F0.0", "F0.1", "BW0.0", "BW0.1")]
    schedule = Schedule(Placement.linear(1), 2, (tuple(ops),), overlapped=frozenset(ops[1:2]))
    path = critical_path_of(verify(schedule, Costs(stages=(stage,)))[1])
    assert path.kinds_us == {"F&BW": 24, "BW": 20, "F": 10}
    assert path.length_us == sum(path.stages_us) == 54
    (run,) = path.runs
    assert (run.first, run.last, run.num_ops) == ("F0.0", "BW0.1", 3)


def test_the_path_runs_through_pairs_of_both_ranks() -> None:
    stage = COSTS.stages[0].replace(hidden_us=4)
    texts = (
        "F0.0 F0.1 F0.2 BW0.0 BW0.1 BW0.2",
        "F1.0 F1.1 BW1.0 F1.2 BW1.1 BW1.2",
    )
    programs = tuple(tuple(map(Op.parse, text.split())) for text in texts)
    pairs = frozenset(map(Op.parse, ("F0.2", "F1.1", "F1.2")))
    schedule = Schedule(Placement.linear(2), 3, programs, overlapped=pairs)
    timeline = verify(schedule, Costs(stages=(stage, stage)))[1]
    path = critical_path_of(timeline)
    # F0.0 10, F1.0 10, F1.1&BW1.0 26, whose gradient F0.2&BW0.0 26 waits for, whose output
    # F1.2&BW1.1 26 waits for; then BW0.1 20 and BW0.2 20.
    assert path.kinds_us == {"F&BW": 3 * 26, "BW": 40, "F": 20}
    assert path.length_us == timeline.makespan_us == 138
    assert [(run.first, run.last, run.first_rank) for run in path.runs] == [
        ("F0.0", "F0.0", 0),
        ("F1.0", "F1.1&BW1.0", 1),
        ("F0.2&BW0.0", "F1.2&BW1.1", 0),
        ("BW0.1", "BW0.2", 0),
    ]


def test_pairs_of_several_ranks_are_a_run_if_they_pass_a_micro_batch_on() -> None:
    path = critical_path_of(with_pairs("dualpipe-v:overlap", hidden_us=6))
    passing = [run for run in path.runs if "&" in run.first and run.first_rank != run.last_rank]
    assert passing
    for run in passing:
        numbers = [
            {(op.kind, op.microbatch) for op in map(Op.parse, text.split("&"))}
            for text in (run.first, run.last)
        ]
        assert numbers[0] & numbers[1]


@pytest.mark.parametrize("name", OVERLAPPING)
def test_no_pair_is_cut_by_the_path_or_by_idle_time(name: str) -> None:
    timeline = with_pairs(name, hidden_us=6)
    for node in timeline.lowered.arrays.overlapped.tolist():
        assert timeline.end_us[node] == timeline.start_us[node + 1]
        assert timeline.lowered.predecessors[node + 1] == [node]
    path = critical_path_of(timeline)
    assert path.length_us == timeline.makespan_us == sum(path.kinds_us.values())
    pair_us = F_US + B_US + W_US - 6
    assert path.kinds_us["F&BW"] % pair_us == 0
