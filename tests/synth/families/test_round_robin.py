"""1F1B-RR: stages on several ranks, which take micro-batches in turn and are updated together."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import lcm

import pytest

from synth.cli.answer.show import version_lines
from synth.costs.costs import Costs, uniform_costs
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import family_placement, generate
from synth.families._lib.family import Setting
from synth.families._lib.updates import (
    admitted,
    admitted_to_stay_full,
    one_forward_one_backward,
    with_updates,
)
from synth.op_kinds import OpKind
from synth.plan.planners.pipedream import pipedream_partition
from synth.plan.reason import reason_of
from synth.profile.links import Link, Links
from synth.schedule.error import ScheduleError
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import round_robin
from synth.schedule.rank_memory import memory_usage, peak_bytes
from synth.schedule.simulate import simulate
from synth.schedule.steady_state import least_steady_us, steady_us
from synth.schedule.verify import lower_checked, verify
from synth.schedule.version_facts import version_facts
from synth.schedule.weight_versions import ForwardReads, WeightVersions
from tests.synth.layered import invented
from tests.synth.plan.test_planners import compositions, layer

F, BW, STEP = OpKind.F, OpKind.BW, OpKind.STEP


def costs(*works: int, links: Links | None = None) -> Costs:
    """F = 100 and BW = 200 times the work of each stage; an update takes nothing."""
    made = uniform_costs(
        len(works),
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        saved_bytes=1000,
        output_bytes=10,
        parameter_bytes=700,
        gradient_bytes=700,
        static_bytes=2800,
        links=links,
    )
    stages = [
        stage.replace(duration_us={kind: us * work for kind, us in stage.duration_us.items()})
        for stage, work in zip(made.stages, works, strict=True)
    ]
    return made.replace(stages=tuple(stages))


def test_the_figure_of_the_paper() -> None:
    """Two ranks of a first stage of twice the work; micro-batches alternate (figure 8)."""
    made = generate("pipedream:2-1", 3, 6, costs=costs(2, 1))
    assert [" ".join(map(str, program)) for program in made.programs] == [
        "F0.0 F0.2 BW0.0 STEP0 F0.4 BW0.2 STEP0.1 BW0.4 STEP0.2",
        "F0.1@1 F0.3@1 BW0.1@1 STEP0@1 F0.5@1 BW0.3@1 STEP0.1@1 BW0.5@1 STEP0.2@1",
        "F1.0 BW1.0 STEP1 F1.1@1 BW1.1@1 STEP1.1 F1.2 BW1.2 STEP1.2 "
        "F1.3@1 BW1.3@1 STEP1.3 F1.4 BW1.4 STEP1.4 F1.5@1 BW1.5@1 STEP1.5",
    ]


def replicated() -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ranks by stage, all of up to 5 of them, in turn with balanced and with other works."""
    draw = random.Random(0)
    for ranks in range(2, 6):
        for parts in range(2, min(ranks, 3) + 1):
            for replicas in compositions(ranks, parts):
                yield replicas, replicas
                yield replicas, tuple(draw.randint(1, 4) for _ in replicas)


@pytest.mark.parametrize(("replicas", "works"), list(replicated()))
def test_while_the_pipeline_is_full_a_micro_batch_takes_the_predicted_time(
    replicas: tuple[int, ...], works: tuple[int, ...]
) -> None:
    """Without transfers: max_s (F_s + B_s) / r_s. NOAM micro-batches may not keep it full."""
    expected = max(300 * work / count for work, count in zip(works, replicas, strict=True))
    where = round_robin(replicas)
    assert _long_run_us(where, works, admitted_to_stay_full(where)) == pytest.approx(expected)
    assert _long_run_us(where, works, admitted(where)) >= expected - 1e-9


def _long_run_us(where: Placement, works: tuple[int, ...], counts: list[int]) -> float:
    """The time of a micro-batch, over four repetitions after as many to settle."""
    replicas = [len(ranks) for ranks in where.holders]
    repetition = lcm(*replicas, counts[0] * replicas[0])
    setting = Setting.of(where, 9 * repetition, costs(*works))
    programs = with_updates(one_forward_one_backward(setting, counts), 1, where)
    waiting_for_none = Buffering(99 * repetition, 99 * repetition)
    schedule = Schedule(
        where,
        setting.num_micro_batches,
        tuple(map(tuple, programs)),
        buffering=waiting_for_none,
        versions=WeightVersions(),
    )
    line = simulate(lower_checked(schedule, setting.costs))
    predicted = max(300 * work / count for work, count in zip(works, replicas, strict=True))
    assert least_steady_us(line.lowered) == pytest.approx(
        max(predicted, *_round_trips_us(works, replicas, counts))
    )
    ends = {
        op.microbatch: line.end_us[node]
        for node, op in enumerate(op for program in schedule.programs for op in program)
        if op.kind == BW and op.stage == 0
    }
    return (ends[8 * repetition] - ends[4 * repetition]) / (4 * repetition)


def _round_trips_us(works: Sequence[int], replicas: list[int], counts: list[int]) -> list[float]:
    trips = [300 * sum(works[stage:]) for stage in range(len(works))]
    return [trip / (r * count) for trip, r, count in zip(trips, replicas, counts, strict=True)]


def test_three_stages_need_more_than_noam() -> None:
    """2-1-1: the ranks of the first stage wait for each other, and NOAM = 2 leaves a bubble."""
    where = round_robin((2, 1, 1))
    assert (admitted(where), admitted_to_stay_full(where)) == ([2, 2, 1], [3, 2, 1])
    assert _long_run_us(where, (2, 1, 1), admitted(where)) == 450
    assert _long_run_us(where, (2, 1, 1), admitted_to_stay_full(where)) == 300


def test_the_planner_s_choice_simulated_takes_its_time() -> None:
    """Layers like VGG's: much work first, many weights last; the weights synchronize for free."""
    profile = invented([layer(60, 120, 100, 0), layer(30, 60, 10**6, 0)])
    links = Links(default=Link(bandwidth_bytes_per_s=1e9))
    found = pipedream_partition(profile.replace(links=links), 3)
    assert (found.partition, found.replicas) == ((1, 1), (2, 1))
    assert found.placement == family_placement("pipedream:2-1", 3)
    given = partition_costs(profile, found.partition)
    made = generate("pipedream:2-1", 3, 24, costs=given, where=found.placement)
    assert steady_us(verify(made, given)[1]) == found.time_us == 90


# Meaning


@pytest.mark.parametrize("name", ["pipedream:2-1", "pipedream:1-2-1", "pipedream:3-2,full"])
def test_versions_are_those_of_a_replay(name: str) -> None:
    """F reads as many updates as its rank has run, and B what F read; ranks of a stage agree."""
    where = family_placement(name, sum(int(n) for n in re.findall(r"\d", name)))
    given = costs(*[1] * where.num_stages)
    schedule = generate(name, where.num_ranks, 24, costs=given)
    lowered, _ = verify(schedule, given)
    assert lowered.versions is not None
    read = lowered.versions.version.tolist()
    nodes = iter(range(len(read)))
    most_alive = [0] * where.num_stages
    for program in schedule.programs:
        updates, stashed = 0, {}
        for op in program:
            node = next(nodes)
            if op.kind == STEP:
                assert (op.microbatch, read[node]) == (updates, updates)
                updates += 1
            elif op.kind == F:
                stashed[op.microbatch] = updates
                assert read[node] == updates
            else:
                assert read[node] == stashed.pop(op.microbatch)
            held = {updates, *stashed.values()}
            most_alive[op.stage] = max(most_alive[op.stage], len(held))
        size = len(where.holders[program[0].stage])
        assert updates == 24 // size
    assert [facts.alive for facts in version_facts(lowered)] == most_alive


def test_an_update_waits_for_the_gradients_of_all_ranks_of_its_stage() -> None:
    """Each STEP is behind an all-reduce, which is behind the last backward of each rank."""
    given = costs(2, 1, links=Links(default=Link(latency_us=7, bandwidth_bytes_per_s=1e9)))
    lowered, line = verify(generate("pipedream:2-1", 3, 8, costs=given), given)
    assert [(c.stage, c.ranks, c.number) for c in lowered.collectives] == [
        (0, (0, 1), number) for number in range(4)
    ]
    ends = {
        (op, rank): line.end_us[lowered.first_node[rank] + place]
        for rank, program in enumerate(lowered.ops)
        for place, op in enumerate(program)
    }
    for number in range(4):
        last_us = max(ends[Op(BW, 0, 2 * number + rank, rank), rank] for rank in (0, 1))
        for rank in (0, 1):
            expected = last_us + given.reduction_us(0, (0, 1))
            assert ends[Op(STEP, 0, number, rank), rank] >= expected


def test_memory_counts_a_stage_once_on_each_of_its_ranks() -> None:
    """Rank 2 has both copies of stage 1: one set of weights, one version, one in flight."""
    given = costs(2, 1)
    lowered, _ = verify(generate("pipedream:2-1", 3, 8, costs=given), given)
    for rank, (versions, in_flight) in enumerate(((2, 2), (2, 2), (1, 1))):
        held = 2800 + (versions - 1) * 700 + in_flight * 1000
        assert held <= peak_bytes(lowered)[rank] <= held + 60
        assert memory_usage(lowered, rank).peak_bytes == peak_bytes(lowered)[rank]


def test_pipelines_side_by_side_are_updated_together() -> None:
    """2BW of width 2: a version takes k micro-batches of each pipeline, and is one update old."""
    given = costs(1, 1, 1)
    lowered, line = verify(generate("2bw:2,every=3", 6, 36, costs=given), given)
    assert lowered.versions is not None
    ops = [op for program in lowered.ops for op in program]
    for op, version in zip(ops, lowered.versions.version.tolist(), strict=True):
        if op.kind != STEP:
            assert version == max(0, op.microbatch // 6 - 1)
    assert steady_us(line) == 150
    assert [tuple(facts) for facts in version_facts(lowered)] == [(1, 1, 0, 2)] * 3


def test_recomputation_reads_the_version_of_the_forward() -> None:
    given = costs(1, 1)
    lowered, _ = verify(generate("2bw:recompute,every=2", 2, 12, costs=given), given)
    assert lowered.versions is not None
    ops = [op for program in lowered.ops for op in program]
    read = dict(zip(ops, lowered.versions.version.tolist(), strict=True))
    for j in range(12):
        assert len({read[Op(kind, s, j)] for kind in (F, OpKind.R, BW) for s in (0, 1)}) == 1


# Refusals


def _made() -> Schedule:
    return generate("pipedream:2-1", 3, 4, costs=costs(1, 1))


def _without(schedule: Schedule, rank: int, op: Op) -> Schedule:
    programs = [
        tuple(o for o in p if (r, o) != (rank, op)) for r, p in enumerate(schedule.programs)
    ]
    return replace(schedule, programs=tuple(programs))


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (_without(_made(), 1, Op(STEP, 0, 1, 1)), "rank 1: of stage 0 there must be 2 updates"),
        (_without(_made(), 2, Op(STEP, 1, 2)), "after 2 of them STEP1.3 stands there"),
        (_without(_made(), 1, Op(BW, 0, 3, 1)), "BW0.3.* is missing|B0.3.* is missing"),
        (replace(_made(), versions=WeightVersions(3)), "every 6 micro-batches does not divide 4"),
        (
            replace(_made(), versions=WeightVersions(1, ForwardReads.VERTICAL)),
            "stages are on 2, 1 ranks",
        ),
    ],
)
def test_a_damaged_schedule_is_refused(damaged: Schedule, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        verify(damaged, costs(1, 1))


def test_an_update_under_the_name_of_another_copy_is_refused() -> None:
    """Copies of a stage on a rank share its weights, so that an update has one name."""
    made = _made()
    renamed = [op._replace(replica=1) if op.kind == STEP else op for op in made.programs[2]]
    with pytest.raises(ScheduleError, match=r"rank 2: .*STEP1 to STEP1.3.*STEP1@1 stands there"):
        verify(replace(made, programs=(*made.programs[:2], tuple(renamed))), costs(1, 1))


def test_numbers_that_do_not_fit_are_refused() -> None:
    for name, ranks, count, message in (
        ("pipedream:2-1", 4, 4, "is for 3 ranks, given 4"),
        ("pipedream:2", 3, 4, "is for multiples of 2 ranks, given 3"),
        ("pipedream:2-1", 3, 5, "a multiple of 2 of them; given 5"),
        ("2bw:2,every=3", 4, 8, "every 3 micro-batches does not divide 4"),
        ("pipedream:0-1", 1, 4, "is not understood; pipedream takes the number of ranks of each"),
    ):
        with pytest.raises(SynthError, match=message):
            generate(name, ranks, count)


def test_a_plan_file_keeps_the_ranks_of_each_stage() -> None:
    profile = invented([layer(10, 20, 100, 4)] * 3)
    made = generate("pipedream:2-1,full", 3, 8, costs=partition_costs(profile, (2, 1)))
    plan = Plan.from_json(Plan.of(profile, (2, 1), made).to_json())
    assert plan.schedule() == made
    lowered, line = plan.check()
    assert "it updates a stage up to 8 times" in reason_of(plan, lowered, line)
    assert "weights: an update every 2 1 by stage, F reads newest" in next(version_lines(line))
