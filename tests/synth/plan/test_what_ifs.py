"""What changes of a plan's conditions would give."""

from collections.abc import Iterable

import pytest

import synth
from synth.plan.explain.explanation import explain
from synth.plan.explain.new_searches import ANEW, GB_LESS, GB_MORE, ONE_MORE, NewSearches
from synth.plan.explain.same_order import SameOrder
from synth.plan.explain.what_if import How, WhatIf
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
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


@pytest.mark.parametrize("name", ["2bw", "zero3", "bpipe"])
def test_what_no_search_is_made_for_is_said(name: str) -> None:
    plan = synth.simulate(name, PROFILE, ranks=4, micro_batches=8)
    found = explain(plan, plan.check()[1], SHORT)
    assert {one.how for one in found.what_ifs} == {How.SAME_ORDER}
    assert any("no order is searched for, because" in note for note in found.notes)
