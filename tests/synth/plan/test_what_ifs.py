"""What changes of a plan's conditions would give."""

from collections.abc import Iterable
from itertools import pairwise

import pytest

import synth
from synth.costs.partition_costs import partition_costs
from synth.costs.recomputed_layers import recomputing
from synth.layer_times import LayerTimes
from synth.plan.explain.explanation import explain
from synth.plan.explain.new_searches import ANEW, GB_LESS, GB_MORE, ONE_MORE, NewSearches
from synth.plan.explain.same_order import SameOrder
from synth.plan.explain.what_if import How, WhatIf
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
from synth.schedule.verify import verify
from synth.solver.options import SolveOptions

PROFILE = Profile.load(find("zb-1.5b-p8-m24"))
SHORT = SolveOptions(time_limit_s=6, workers=1)


def simulated(name: str, mem_limit: str = "none", link: str | None = None) -> Plan:
    return synth.simulate(name, PROFILE, ranks=4, micro_batches=6, mem_limit=mem_limit, link=link)


def by_change(found: Iterable[WhatIf]) -> dict[str, WhatIf]:
    return {one.change: one for one in found}


def in_same_order(plan: Plan) -> SameOrder:
    return SameOrder(plan, plan.check()[1], lambda: False)


def searched(plan: Plan) -> dict[str, WhatIf]:
    return by_change(NewSearches(plan, SHORT.clock(), SHORT).run())


def test_the_same_order_is_simulated_on_the_changed_costs() -> None:
    plan = simulated("1f1b", link="1ms,10GB/s")
    found = by_change(in_same_order(plan).of_hardware())
    twice = simulated("1f1b", link="500us,20GB/s").claim.makespan_us
    free = simulated("1f1b", link="0us").claim.makespan_us
    one = found["every link twice as fast"]
    assert (one.how, one.value_us) == (How.SAME_ORDER, twice)
    assert one.change_share == pytest.approx(twice / plan.claim.makespan_us - 1)
    assert found["transfers that take no time"].value_us == free < twice < plan.claim.makespan_us


def test_reductions_within_ranks_are_no_transfers() -> None:
    plan = simulated("1f1b", link="0us")
    stages = tuple(stage.replace(reduce_us=10**6) for stage in plan.costs.stages)
    reducing = verify(plan.schedule(), plan.costs.replace(stages=stages))[1]
    changed = plan.replace(costs=plan.costs.replace(stages=stages))
    found = by_change(SameOrder(changed, reducing, lambda: False).of_hardware())
    assert "every link twice as fast" not in found
    one = found["reductions that take no time"]
    assert one.value_us == plan.claim.makespan_us < reducing.makespan_us
    assert one.change_share == pytest.approx(one.value_us / reducing.makespan_us - 1)
    without = in_same_order(simulated("1f1b", link="1ms,10GB/s")).of_hardware()
    assert "reductions that take no time" not in by_change(without)


def test_the_best_move_of_a_layer_is_that_of_all_neighbouring_partitions() -> None:
    plan = simulated("1f1b")
    values = []
    for stage in range(3):
        for source, target in ((stage, stage + 1), (stage + 1, stage)):
            sizes = list(plan.partition)
            sizes[source] -= 1
            sizes[target] += 1
            moved = synth.simulate("1f1b", PROFILE, ranks=4, micro_batches=6, partition=[*sizes])
            values.append(moved.claim.makespan_us)
    found = by_change(in_same_order(plan).of_layers(PROFILE))
    assert found["one layer moved"].value_us == min(values)


def test_a_move_that_exceeds_the_limit_is_no_gain() -> None:
    plan = simulated("1f1b")
    full = plan.replace(caps_bytes=plan.claim.peak_bytes)
    one = by_change(in_same_order(full).of_layers(PROFILE))["one layer moved"]
    assert one.value_us is None and one.note == "exceeds a memory limit"


def test_a_layer_more_or_less_recomputed_takes_time_or_memory() -> None:
    recomputed = synth.solve(
        PROFILE,
        ranks=2,
        micro_batches=2,
        mem_limit="60GB",
        placement="linear",
        partition="even",
        recompute="layers:0-3",
        time_limit=1,
        workers=1,
    )
    found = by_change(in_same_order(recomputed).of_layers(PROFILE))
    less = found["one layer less recomputed"].change_share
    more = next(one for change, one in found.items() if change.startswith("one layer more"))
    assert less is not None and less < 0
    assert more.change_share is not None and more.change_share >= 0


def test_a_value_within_the_gap_is_no_gain_of_the_change() -> None:
    # The bound of 1F1B is the work of a rank, below which no order is, whatever its memory.
    plan = synth.simulate("1f1b", PROFILE, ranks=2, micro_batches=2, mem_limit="60GB")
    found = searched(plan)
    one = found[GB_MORE]
    assert one.how == How.SEARCH and one.value_us is not None
    assert plan.claim.lower_bound_us <= one.value_us <= plan.claim.makespan_us
    assert one.change_share == 0 and (one.note or one.value_us == plan.claim.makespan_us)
    anew = found[ANEW]
    assert anew.change_share is not None and anew.change_share <= 0
    assert found[ONE_MORE].value_us is not None


def test_less_memory_than_any_schedule_needs_is_proven_infeasible() -> None:
    least = synth.simulate("1f1b", PROFILE, ranks=4, micro_batches=1)
    plan = least.replace(caps_bytes=least.claim.peak_bytes)
    assert searched(plan)[GB_LESS].note == "no schedule fits (proven)"


def block(forward_us: float, backward_us: float, pair_us: float) -> LayerTimes:
    return LayerTimes(
        name="block",
        count=8,
        forward_us=forward_us,
        backward_us=backward_us,
        pair_us=pair_us,
        parameter_bytes=1000,
        saved_bytes=1000,
        output_bytes=10,
    )


# F and BW at once take 2200 µs, apart 3000.
PAIRED = Profile.from_times("moe", [block(1000, 2000, 2200)])


def paired(name: str, profile: Profile = PAIRED, number: int = 6) -> Plan:
    return synth.simulate(name, profile, ranks=2, micro_batches=number, partition="even")


def test_a_faster_stage_hides_less_time() -> None:
    # One rank: all of its stage takes nine tenths, also F and BW at once.
    plan = paired("dualpipe-v:overlap")
    found = by_change(in_same_order(plan).of_hardware())
    ((change, one),) = [each for each in found.items() if each[0].startswith("stage")]
    stage = int(change.split()[1])
    costs = plan.costs.stages
    assert len(costs) == 4 and costs[stage].hidden_us == 2 * 800
    slow = costs[stage]
    faster = slow.replace(
        duration_us={kind: us * 9 // 10 for kind, us in slow.duration_us.items()},
        hidden_us=slow.hidden_us * 9 // 10,
    )
    stages = (*costs[:stage], faster, *costs[stage + 1 :])
    again = verify(plan.schedule(), plan.costs.replace(stages=stages))[1]
    assert one.value_us == again.makespan_us


def test_what_hides_nothing_more_runs_one_after_the_other() -> None:
    # With all layers of a stage recomputed nothing is hidden there, and a pair only delays F's.
    plan = paired("interleaved:2,overlap", number=8)
    recomputed = partition_costs(recomputing(PAIRED, [0, 1]), plan.partition)
    assert recomputed.stages[0].hidden_us == 0 < recomputed.stages[1].hidden_us
    schedule = in_same_order(plan).schedule_on(recomputed)
    assert {op.stage for op in schedule.overlapped} < {
        op.stage for op in plan.schedule().overlapped
    }
    for program in schedule.programs:
        for op, after in pairwise(program):
            assert op not in schedule.overlapped or 0 not in (op.stage, after.stage)
    kept = verify(plan.schedule(), recomputed)[1].makespan_us
    assert verify(schedule, recomputed)[1].makespan_us <= kept


@pytest.mark.parametrize("name", ["dualpipe-v:overlap", "interleaved:2,overlap"])
def test_orders_with_pairs_are_found_under_changed_conditions(name: str) -> None:
    plan = paired(name, number=8)
    found = searched(plan.replace(caps_bytes=tuple(2 * each for each in plan.claim.peak_bytes)))
    for change in (GB_MORE, ANEW):
        value_us = found[change].value_us
        assert value_us is not None and value_us <= plan.claim.makespan_us
    one_more_us = found[ONE_MORE].value_us
    assert one_more_us is not None
    assert one_more_us <= paired(name, number=9).claim.makespan_us


@pytest.mark.parametrize("name", ["2bw", "zero3", "bpipe"])
def test_what_no_search_is_made_for_is_said(name: str) -> None:
    plan = synth.simulate(name, PROFILE, ranks=4, micro_batches=8)
    found = explain(plan, plan.check()[1], SHORT)
    assert {one.how for one in found.what_ifs} == {How.SAME_ORDER}
    assert any("no order is searched for, because" in note for note in found.notes)
