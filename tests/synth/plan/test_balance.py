"""The balanced partition: even as far as layers and memory allow."""

import random
from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.op_kinds import MEASURED, OpKind
from synth.plan.partition.balance import balance
from synth.plan.partition.rebalance import _Search, _State
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.profile import Profile, Provenance
from synth.profile.layer_profile import Layer, LayerProfile, Timing
from synth.profile.workload import Workload
from synth.profiles import find
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.schedule.verify import ScheduleError, verify
from synth.solver.infeasibility import Shortage, find_shortage, needed_bytes, serial_schedule
from synth.solver.problem import Problem


def profile_of(work_us: Sequence[float], parameter_bytes: list[int] | None = None) -> Profile:
    """A chain of layers with so much work each, all of it in F."""
    zero = Timing.exactly(0)
    profiles = {}
    for i, work in enumerate(work_us):
        profiles[f"p{i}"] = LayerProfile(
            time_us={**dict.fromkeys(MEASURED, zero), OpKind.F: Timing.exactly(work)},
            parameter_bytes=parameter_bytes[i] if parameter_bytes else 0,
            gradient_bytes=0,
            optimizer_bytes=0,
            output_bytes=0,
            saved_bytes=1,
            saved_w_bytes=0,
            rise_bytes={**dict.fromkeys(MEASURED, 0), OpKind.F: 1},
        )
    return Profile(
        name="test",
        provenance=Provenance(source="invented", device="none", date="2024-01-01"),
        workload=Workload(model="none", micro_batch_size=1, sequence_length=1),
        layer_profiles=profiles,
        layers=tuple(Layer(name=f"l{i}", profile=f"p{i}") for i in range(len(work_us))),
    )


def all_partitions(num_layers: int, num_stages: int) -> list[tuple[int, ...]]:
    """Every way to cut."""
    found = []
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        edges = (0, *cuts, num_layers)
        found.append(tuple(b - a for a, b in pairwise(edges)))
    return found


def score(profile: Profile, sizes: tuple[int, ...]) -> tuple[int, int]:
    """Largest work, then the sum of squares."""
    works = [stage.work_us for stage in partition_costs(profile, sizes).stages]
    return max(works), sum(work**2 for work in works)


def test_a_heavy_last_layer_gets_fewer_neighbours() -> None:
    assert balance(profile_of([1, 1, 1, 1, 1, 1, 3]), Placement.linear(3)) == (3, 3, 1)


def test_ties_are_broken_towards_even_stages() -> None:
    # The layer of 9 sets the maximum; the four others could lie 1 + 3, 2 + 2 or 3 + 1.
    assert balance(profile_of([9, 1, 1, 1, 1]), Placement.linear(3)) == (1, 2, 2)


@pytest.mark.parametrize("seed", range(5))
def test_balance_is_as_good_as_trying_every_cut(seed: int) -> None:
    rng = random.Random(seed)
    profile = profile_of([rng.randint(1, 9) for _ in range(9)])
    sizes = balance(profile, Placement.linear(4))
    assert score(profile, sizes) == min(score(profile, s) for s in all_partitions(9, 4))


def test_stages_that_exceed_the_cap_are_avoided() -> None:
    # By work alone (2, 2); but the first two layers weigh 20 together.
    profile = profile_of([1, 1, 1, 1], [10, 10, 1, 1])
    assert balance(profile, Placement.linear(2)) == (2, 2)
    assert balance(profile, Placement.linear(2), caps_bytes=(17, 17)) == (1, 3)
    # Few layers take a moment, which no time limit is too short for.
    assert balance(profile, Placement.linear(2), (17, 17), should_stop=lambda: True) == (1, 3)


def uneven_profile(seed: int, num_layers: int = 7) -> Profile:
    """Layers of different work, weights and workspace."""
    rng = random.Random(seed)
    works, weights = ([rng.randint(1, high) for _ in range(num_layers)] for high in (9, 40))
    profile = profile_of(works, weights)
    changed = {
        name: layer.replace(
            output_bytes=(size := rng.randint(0, 9)),
            saved_bytes=(saved := rng.randint(0, 20)),
            saved_w_bytes=(left := rng.randint(0, 20)),
            rise_bytes={
                **dict.fromkeys(MEASURED, left + 10),
                OpKind.F: saved + size + rng.randint(0, 30),
            },
        )
        for name, layer in profile.layer_profiles.items()
    }
    return profile.replace(layer_profiles=changed)


def fits(profile: Profile, sizes: tuple[int, ...], caps_bytes: tuple[int, ...]) -> bool:
    """True if the serial schedule keeps the limits, by the verifier, not by the closed form."""
    problem = Problem.linear(partition_costs(profile, sizes), 2)
    try:
        verify(serial_schedule(problem), problem.costs, caps_bytes)
    except ScheduleError:
        return False
    return True


def shortage_of(profile: Profile, caps_bytes: tuple[int, ...]) -> Shortage | None:
    """The shortage of the partition that is chosen for these memory limits."""
    placement = Placement.linear(len(caps_bytes))
    sizes = balance(profile, placement, caps_bytes)
    return find_shortage(
        Problem(partition_costs(profile, sizes), placement, 2, caps_bytes, partition=sizes)
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_smallest_limit_is_that_of_trying_every_cut(seed: int) -> None:
    profile = uneven_profile(seed)
    shortage = shortage_of(profile, (1,) * 3)
    assert shortage is not None and shortage.partition is not None
    least = shortage.smallest_cap_bytes
    assert fits(profile, shortage.partition, (least,) * 3)
    assert shortage_of(profile, (least,) * 3) is None
    below = (least - 1,) * 3
    assert not any(fits(profile, sizes, below) for sizes in all_partitions(7, 3))
    assert shortage_of(profile, below) is not None


@pytest.mark.parametrize("seed", range(10))
def test_each_stage_is_held_against_the_cap_of_its_own_rank(seed: int) -> None:
    profile, rng = uneven_profile(seed), random.Random(seed)
    caps = tuple(rng.randint(60, 260) for _ in range(3))
    fitting = [sizes for sizes in all_partitions(7, 3) if fits(profile, sizes, caps)]
    sizes = balance(profile, Placement.linear(3), caps)
    assert (sizes in fitting) == bool(fitting)
    if fitting:
        assert score(profile, sizes) == min(score(profile, s) for s in fitting)


def test_two_sizes_that_read_alike_are_told_apart_to_the_byte() -> None:
    profile = profile_of([1, 1], [10**9, 10**9])
    needed = shortage_of(profile, (1, 1))
    assert needed is not None
    just_below = needed.smallest_cap_bytes - 1
    message = str(shortage_of(profile, (just_below, just_below)))
    assert f"{just_below:,} bytes" in message and f"{just_below + 1:,} bytes" in message


def test_fewer_layers_than_stages_is_an_error_with_the_way_out() -> None:
    with pytest.raises(SynthError, match="1 to 2 ranks"):
        balance(profile_of([1, 1]), Placement.linear(3))


# Several stages per rank, and replicas: local search, held against every partition.


def rank_works(profile: Profile, where: Placement, sizes: tuple[int, ...], m: int) -> list[int]:
    """The work of each rank: its stages, as often as micro-batches pass its replica."""
    stages = partition_costs(profile, sizes).stages
    problem = Problem(partition_costs(profile, sizes), where, m)
    return [
        sum(stages[stage].work_us * problem.share(replica)[1] for stage, replica in held)
        for held in where.held
    ]


def keeps(
    profile: Profile, where: Placement, sizes: tuple[int, ...], caps_bytes: tuple[int, ...]
) -> bool:
    """True if each rank can hold one micro-batch of its stages."""
    needs = needed_bytes(Problem(partition_costs(profile, sizes), where, len(where.ranks)))
    return all(need <= cap for need, cap in zip(needs, caps_bytes, strict=True))


@pytest.mark.parametrize("name", ["v", "looped:2", "bidirectional", "bidirectional-v", "wave:2"])
@pytest.mark.parametrize("seed", range(4))
def test_stages_are_the_most_even_of_those_that_leave_the_busiest_rank_as_little(
    name: str, seed: int
) -> None:
    where, m, rng = placement(name, 2), 5, random.Random(seed)
    profile = profile_of(
        [*(rng.randint(4_000, 6_000) for _ in range(9)), rng.randint(5_000, 15_000)]
    )
    every = all_partitions(10, where.num_stages)
    most = {sizes: max(rank_works(profile, where, sizes, m)) for sizes in every}
    allowed = 1.01 * min(most.values())  # the noise of measured times
    least = min(score(profile, sizes)[1] for sizes in every if most[sizes] <= allowed)
    sizes = balance(profile, where, None, m)
    assert most[sizes] <= allowed and score(profile, sizes)[1] == least


@pytest.mark.parametrize("name", ["v", "looped:2", "bidirectional"])
@pytest.mark.parametrize("seed", range(8))
def test_caps_are_kept_where_any_partition_keeps_them(name: str, seed: int) -> None:
    where, rng = placement(name, 2), random.Random(seed)
    profile = uneven_profile(seed, 9)
    caps = tuple(rng.randint(150, 330) for _ in range(2))
    every = all_partitions(9, where.num_stages)
    fitting = [sizes for sizes in every if keeps(profile, where, sizes, caps)]
    sizes = balance(profile, where, caps)
    assert (sizes in fitting) == bool(fitting)
    if fitting:
        least = min(max(rank_works(profile, where, s, 2)) for s in fitting)
        assert max(rank_works(profile, where, sizes, 2)) <= 1.01 * least


@pytest.mark.parametrize(
    "name", ["v", "looped:2", "looped:3", "wave:2", "bidirectional", "bidirectional-v"]
)
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("unit_us", [7429.5, 100.3, 0.4])  # whose sums are rounded
def test_equal_layers_give_equal_stages(name: str, num_ranks: int, unit_us: float) -> None:
    if name.startswith("bidirectional"):
        num_ranks += num_ranks % 2
    where = placement(name, num_ranks)
    stages = where.num_stages
    for num_layers in (stages, stages + 1, 2 * stages - 1, 2 * stages, 3 * stages + stages // 2):
        sizes = balance(profile_of([unit_us] * num_layers), where, None, 2 * num_ranks + 1)
        assert max(sizes) - min(sizes) == (num_layers % stages > 0)


@pytest.mark.parametrize("name", ["v", "looped:2"])
def test_half_a_microsecond_of_rounding_does_not_make_stages_unequal(name: str) -> None:
    # 3 and 1 layers of a rank take 1 µs less than 2 and 2: 59,316 + 19,773 < 2 × 39,545.
    profile = Profile.load(find("zb-6.2b-p8-m24"))
    assert balance(profile, placement(name, 8), (45 * 10**9,) * 8, 24) == (2,) * 16


def test_sixteen_ranks_of_two_unequal_stages_take_hundreds_of_steps_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, take = [0], _Search._better_neighbour

    def counting(search: _Search, state: _State) -> _State | None:
        steps[0] += 1
        return take(search, state)

    monkeypatch.setattr(_Search, "_better_neighbour", counting)
    rng = random.Random(1)
    profile, where = profile_of([rng.randint(50, 200) for _ in range(100)]), placement("v", 16)
    sizes = balance(profile, where)
    assert 30 < steps[0] < 1000  # each scores all moves at once
    works = rank_works(profile, where, sizes, 1)
    assert max(works) < 1.1 * sum(works) / 16


def test_more_stages_than_layers_is_an_error_with_the_way_out() -> None:
    with pytest.raises(SynthError, match=r"8 stages asked for.*7 layers.*fewer ranks or rounds"):
        balance(profile_of([1] * 7), placement("v", 4))


@pytest.mark.parametrize("seed", range(6))
def test_memory_is_ample_only_where_every_rank_fits(seed: int) -> None:
    """Layers keep little but their boundaries, as convolutions do."""
    rng = random.Random(seed)
    until = [OpKind.F, OpKind.B, OpKind.W]
    profile = uneven_profile(seed, 16)
    changed = {
        name: layer.replace(
            output_bytes=rng.randint(50, 99),
            saved_bytes=0,
            saved_w_bytes=0,
            rise_bytes=dict.fromkeys(MEASURED, 99),
            input_until=rng.choice(until),
            output_until=rng.choice(until),
            gradient_until=rng.choice(until[1:]),
        )
        for name, layer in profile.layer_profiles.items()
    }
    profile, where = profile.replace(layer_profiles=changed), placement("v", 2)
    for sizes in rng.sample(all_partitions(16, 4), 20):
        needs = needed_bytes(Problem(partition_costs(profile, sizes), where, 1))
        edges = np.concatenate(([0], np.cumsum(sizes)))
        for cap in range(min(needs), max(needs) + 200, 20):
            search = _Search(StageCostTable(profile), where, (cap, cap), None, ())
            assert (search._needs(edges) <= cap).tolist() == [need <= cap for need in needs]
