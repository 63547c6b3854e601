"""Cuts and list schedules where links are slow and memory is tight."""

import random
from collections.abc import Collection, Sequence

import numpy as np
import pytest

from synth.costs.partition_costs import partition_costs
from synth.families import generate_for
from synth.op_kinds import OpKind
from synth.plan.choose.candidates import Candidate, Partitioning, Trial
from synth.plan.choose.list_schedule_trials import ListScheduleTrials
from synth.plan.choose.race_state import RaceState
from synth.plan.partition.balance import balance, starting_cuts
from synth.plan.partition.lifetime_cut import LifetimeCuts
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.profile import Profile
from synth.profile.links import Link, Links, NodeLink
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.verify import verify
from synth.solver.evaluate.evaluate import never
from synth.solver.problem import Problem
from tests.synth.plan.test_recompute import profile_that_saves_much

RANKS, MICRO_BATCHES = 4, 8
APART = NodeLink(latency_us=400, bandwidth_bytes_per_s=1e6, ranks_per_node=2)


def profile_of_two_sites(num_layers: int = 16) -> Profile:
    """Equal layers, and a slow link after the second rank."""
    profile = profile_that_saves_much()
    layers = tuple(profile.layers[0].replace(name=f"l{i}") for i in range(num_layers))
    links = Links(default=Link(latency_us=1), nodes=(APART,))
    return profile.replace(layers=layers).model_copy(update={"links": links})


PROFILE = profile_of_two_sites()
TABLE = StageCostTable(PROFILE)


def caps_of(share: float) -> tuple[int, ...]:
    """Static memory of equal stages, and a share of the activations that 1F1B holds."""
    each = len(PROFILE.layers) // RANKS
    static, saved = TABLE.static_up_to[each], TABLE.saved_up_to[each]
    return (int(static + (RANKS * share + 1) * saved),) * RANKS


def problem_on(where: Placement, sizes: Sequence[int], caps: tuple[int, ...]) -> Problem:
    costs = partition_costs(PROFILE, sizes)
    return Problem(costs, where, MICRO_BATCHES, caps, partition=tuple(sizes))


def time_of_rank(rank: int, where: Placement, sizes: Sequence[int], cap: int) -> float:
    """The larger of a rank's work and its bytes times lifetime over its room, stage by stage."""
    costs, (ranks,) = partition_costs(PROFILE, sizes), where.ranks
    first = [sum(sizes[:stage]) for stage in range(len(sizes))]
    work, needed, room = 0.0, 0.0, float(cap)
    for stage, holder in enumerate(ranks):
        if holder != rank:
            continue
        lifetime = 0.0
        for below in range(stage, len(ranks)):
            times = costs.stages[below].duration_us
            lifetime += times[OpKind.F] + times[OpKind.B]
            if below + 1 < len(ranks) and ranks[below] != ranks[below + 1]:
                lifetime += costs.boundary_us(below, ranks[below], ranks[below + 1])
                lifetime += costs.return_us(below, ranks[below + 1], ranks[below])
        end = first[stage] + sizes[stage]
        room -= TABLE.static_up_to[end] - TABLE.static_up_to[first[stage]]
        needed += lifetime * (TABLE.saved_up_to[end] - TABLE.saved_up_to[first[stage]])
        work += sum(costs.stages[stage].duration_us[k] for k in (OpKind.F, OpKind.B, OpKind.W))
    return max(work, needed / room)


@pytest.mark.parametrize("name", ["linear", "v", "looped:2"])
@pytest.mark.parametrize("seed", range(4))
def test_the_times_are_those_of_each_rank_and_stage(name: str, seed: int) -> None:
    where, caps = placement(name, RANKS), caps_of(2)
    inner = random.Random(seed).sample(range(1, len(PROFILE.layers)), where.num_stages - 1)
    edges = [0, *sorted(inner), len(PROFILE.layers)]
    cuts = LifetimeCuts.of(TABLE, where, caps)
    assert cuts is not None
    (found,) = cuts.times_us(np.array([edges]))
    sizes = np.diff(edges).tolist()
    expected = [time_of_rank(rank, where, sizes, caps[rank]) for rank in range(RANKS)]
    # Transfers are whole microseconds in costs.
    assert found.tolist() == pytest.approx(expected, rel=0.01)


def test_with_slow_links_and_tight_memory_the_first_stages_are_smaller() -> None:
    where = placement("linear", RANKS)
    (cut,) = {*starting_cuts(TABLE, where, caps_of(0.5))} - {*starting_cuts(TABLE, where)}
    assert cut[0] < cut[-1] and sorted(cut) == list(cut)


def test_without_limits_or_with_copies_there_is_no_such_cut() -> None:
    assert LifetimeCuts.of(TABLE, placement("linear", RANKS), None) is None
    assert LifetimeCuts.of(TABLE, placement("bidirectional", RANKS), caps_of(1)) is None


def test_list_schedules_show_what_a_placement_can_do_where_no_family_does() -> None:
    caps = caps_of(0.3)
    placements = {name: placement(name, RANKS) for name in ("v", "linear")}
    candidates = [
        Candidate(name, problem_on(where, balance(PROFILE, where, caps), caps))
        for name, where in placements.items()
    ]
    race = RaceState(candidates, Partitioning.SEARCHED, 0.0)
    trials = ListScheduleTrials(PROFILE, race, lambda where: starting_cuts(TABLE, where, caps))
    found = list(trials.all(never, lambda _: None))
    assert found
    for trial in found:
        assert trial.found is not None and trial.found.schedule is not None
        lowered, line = verify(trial.found.schedule, trial.problem.costs)
        assert line.makespan_us == trial.value_us
        assert not exceeds_caps(peak_bytes(lowered), caps)
    assert min(map(value_of, found)) < best_published(placements.values(), caps)


def value_of(trial: Trial) -> int:
    assert trial.value_us is not None
    return trial.value_us


def best_published(placements: Collection[Placement], caps: tuple[int, ...]) -> int:
    """The least time of a published schedule that fits on its balanced cut."""
    times = [1 << 60]
    for where in placements:
        costs = partition_costs(PROFILE, balance(PROFILE, where, caps))
        for _, schedule in generate_for(where, MICRO_BATCHES, costs, caps):
            lowered, line = verify(schedule, costs)
            if not exceeds_caps(peak_bytes(lowered), caps) and schedule.keeps_saved:
                times.append(line.makespan_us)
    return min(times)
