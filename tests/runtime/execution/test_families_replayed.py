"""Every published schedule that is registered, replayed: gradients are autograd's."""

from typing import Any

import pytest

from synth.costs.costs import uniform_costs
from synth.families import families, family_placement, generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Schedule
from tests.runtime.rank_threads import RankThreads
from tests.runtime.replaying import replay
from tests.synth.family_variants import family_variants

KEPT_BYTES = 100
OVERLAPPING = ["dualpipe:overlap", "dualpipe-v:overlap", "interleaved:2,overlap"]
# Besides every way that a family is compared in.
OTHER_WAYS = [
    "bitpipe:1,early,late-sync",
    "bitpipe:2",
    "interleaved:3,group=5",
    *OVERLAPPING,
    "pipeoffload:1,full",
    "pipeoffload:3,uniform",
]


def made(name: str, num_ranks: int) -> Schedule:
    """With a link to the host, and caps of one micro-batch more than as many as there are ranks."""
    where = family_placement(name, num_ranks)
    costs = uniform_costs(
        where.num_stages,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        saved_bytes=KEPT_BYTES,
        saved_w_bytes=KEPT_BYTES,
        links=Links(host=Link(latency_us=10)),
    )
    costs = costs.replace(
        stages=tuple(stage.replace(hidden_us=50) for stage in costs.stages)  # if F and BW overlap
    )
    whole_bytes = where.num_stages // num_ranks * KEPT_BYTES
    caps = [(num_ranks + 1) * whole_bytes] * num_ranks
    return generate(name, num_ranks, 2 * num_ranks, costs=costs, caps_bytes=caps)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_every_family_is_replayed_to_autograds_gradients(num_ranks: int) -> None:
    staying = {name for name, family in families().items() if family.orders_chains}
    names = [name for name in family_variants() if name.split(":")[0] in staying]
    schedules = [made(name, num_ranks) for name in [*names, *OTHER_WAYS]]
    assert {schedule.name.split(":")[0] for schedule in schedules} == staying
    by_rank = RankThreads().run(replay, num_ranks, schedules)
    for schedule, *found in zip(schedules, *by_rank, strict=True):
        assert [(wrong, left) for _, wrong, left in found] == [(set(), 0)] * num_ranks, (
            schedule.name
        )
        held = set.union(*(stages for stages, *_ in found))
        assert held == set(range(schedule.placement.num_stages))


@pytest.mark.parametrize(
    "name",
    [
        "bpipe",
        "pipeoffload:2",
        "pipeoffload:2,full",
        "pipeoffload:2,uniform",
        "pipeoffload:2,full,uniform",
    ],
)
def test_what_is_replayed_of_families_that_move_activations_moves_them(name: str) -> None:
    schedule = made(name, 4)
    assert any(op.kind == OpKind.OFFLOAD for program in schedule.programs for op in program)


def replay_one(rank: int, size: int, name: str) -> tuple[set[int], set[int], int]:
    return replay(rank, size, [made(name, size)])[0]


@pytest.mark.parametrize("name", OVERLAPPING)
def test_pairs_are_replayed_by_processes_to_autograds_gradients(pool: Any, name: str) -> None:
    assert made(name, 2).overlapped
    found = pool.run(replay_one, 2, name)
    assert [(wrong, left) for _, wrong, left in found] == [(set(), 0)] * 2
