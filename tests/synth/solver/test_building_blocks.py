"""Building blocks repeat within times, links and memory, and are as short as an exact model's."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest

from benchmarks.realistic_profiles import realistic_case
from benchmarks.realistic_suite import candidate_of
from synth.costs.costs import uniform_costs
from synth.families import generate
from synth.profile.links import Link, Links
from synth.schedule.lowering.lower import lower
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.solver.cpsat.run import decide_by_relaxation
from synth.solver.evaluate.evaluate import BUFFERINGS
from synth.solver.instance.instance import B, F, Instance, OpIndex, W
from synth.solver.instance.memory_models import relaxed_memory, safe_memory
from synth.solver.instance.timing import keeps_caps, number
from synth.solver.modulo import building_blocks
from synth.solver.modulo.building_blocks import BuildingBlocks
from synth.solver.modulo.cyclic_ops import CyclicSchedule
from synth.solver.modulo.least_memory import busiest_us
from synth.solver.modulo.recurrent_job_shop import RecurrentJobShop, latest_start
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve
from synth.solver.tuning import BUILDING_BLOCKS

_NAMES = ("v", "looped:2", "wave:2", "looped:3", "linear", "bidirectional")


def tight_problem(seed: int) -> Problem:
    """A problem whose ranks hold as much as one to two micro-batches of all their stages."""
    rng = random.Random(seed)
    where = placement(_NAMES[seed % len(_NAMES)], rng.choice([2, 4]))
    saved = rng.randint(20, 40)
    costs = uniform_costs(
        where.num_stages,
        forward_us=rng.randint(5, 15),
        backward_input_us=rng.randint(5, 15),
        backward_weight_us=rng.randint(3, 12),
        links=Links(default=Link(latency_us=rng.randint(0, 6))),
        saved_bytes=saved,
        saved_w_bytes=rng.randint(5, 20),
        output_bytes=rng.randint(0, 3),
    )
    cap = round(len(where.held[0]) * saved * rng.uniform(1.5, 2.5)) + 12
    return Problem(costs, where, 12, caps_bytes=(cap,) * where.num_ranks)


def blocks(instance: Instance, size: int, most_us: float) -> Iterator[CyclicSchedule]:
    return BuildingBlocks(instance, size, 0, lambda _: None, lambda: False).run(0, most_us)


def serial_us(instance: Instance) -> int:
    """The time of a micro-batch of each replica alone."""
    return sum(copy.work_us + copy.down_us + copy.up_us for copy in instance.copies)


@pytest.mark.parametrize("seed", range(12))
def test_blocks_repeat_without_overlap_and_within_memory(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    little = replace(BUILDING_BLOCKS, moves_per_pair=1)
    monkeypatch.setattr(building_blocks, "BUILDING_BLOCKS", little)
    problem = tight_problem(seed)
    instance = safe_memory(problem, BUFFERINGS[0])
    found = list(blocks(instance, 1 + seed % 2, serial_us(instance)))
    assert found
    for schedule in found:
        assert_repeats(instance, schedule)
        orders = schedule.unrolled(instance).orders(instance)
        assert keeps_caps(tuple(number(instance, order) for order in orders), instance)
    assert found[-1].interval < found[0].interval


@pytest.mark.parametrize("seed", range(6))
def test_a_block_of_two_begins_from_that_of_one_repeated(seed: int) -> None:
    instance = safe_memory(tight_problem(seed), BUFFERINGS[0])
    one, two = (BuildingBlocks(instance, size, 0, lambda _: None, lambda: False) for size in (1, 2))
    assert one.shortest is None
    *_, _ = one.run(0, serial_us(instance))
    assert one.shortest is not None
    two.repeat(one.shortest)
    assert two.shortest is not None
    assert_repeats(instance, two.shortest)
    orders = two.shortest.unrolled(instance).orders(instance)
    assert keeps_caps(tuple(number(instance, order) for order in orders), instance)
    assert two.shortest.interval == 2 * one.shortest.interval
    found = list(two.run(0, one.shortest.rate))
    assert all(block.rate < one.shortest.rate for block in found)
    assert two.shortest.rate <= one.shortest.rate


def assert_repeats(instance: Instance, schedule: CyclicSchedule) -> None:
    """Ops of a rank share no moment of the circle, and every input arrives before it is read."""
    starts, interval = schedule.starts, schedule.interval
    for held in instance.held:
        ops = [node for node in starts if node[0] in held]
        for (one, a), (other, b) in combinations([(n, starts[n]) for n in ops], 2):
            after = (b - a) % interval
            assert after >= instance[one[0]].duration_us[one[1].kind]
            assert (interval - after) % interval >= instance[other[0]].duration_us[other[1].kind]
    for (index, (kind, k)), at in starts.items():
        copy, end = instance[index], at + instance[index].duration_us[kind]
        if kind == F and copy.below is not None:
            assert starts[copy.below, OpIndex(F, k)] >= end + copy.down_us
        if kind == B:
            assert starts[index, OpIndex(W, k)] >= end
            if copy.above is not None:
                assert starts[copy.above, OpIndex(B, k)] >= end + instance[copy.above].up_us


@pytest.mark.slow
def test_intervals_are_near_the_least_of_the_exact_model_and_never_below() -> None:
    ratios = []
    for seed in range(0, 36, 2):
        instance = safe_memory(tight_problem(seed), BUFFERINGS[0])
        *_, last = blocks(instance, 1, serial_us(instance))
        least = least_interval_us(instance, last.interval)
        assert last.interval >= least
        ratios.append(last.interval / least)
    assert sum(ratio == 1 for ratio in ratios) >= len(ratios) / 2
    assert max(ratios) < 1.1


def least_interval_us(instance: Instance, most_us: int) -> int:
    """The least interval for which the exact model has a schedule, by trying each."""
    for interval in range(busiest_us(instance), most_us):
        shop = RecurrentJobShop(instance, interval, latest_start(instance, interval))
        for held, headroom in zip(instance.held, instance.headroom_bytes, strict=True):
            assert headroom is not None
            shop.add_memory(held, headroom)
        answer = decide_by_relaxation(shop.cp, 20, 0)
        assert answer.found is not None or answer.is_refuted
        if answer.found is not None:
            return interval
    return most_us


@pytest.mark.parametrize("num_ranks", [2, 4, 6])
def test_v_half_has_no_bubble_between_its_ends(num_ranks: int) -> None:
    # Qi et al. 2024, section 3.3: with equal times V-Half repeats without idle time.
    where = placement("v", num_ranks)
    costs = uniform_costs(
        where.num_stages,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        saved_bytes=10,
    )
    peaks = peak_bytes(lower(generate("v-half", num_ranks, 4 * num_ranks), costs))
    problem = Problem(costs, where, 4 * num_ranks, caps_bytes=(max(peaks),) * num_ranks)
    instance = relaxed_memory(problem)
    *_, last = blocks(instance, 1, 1.5 * busiest_us(instance))
    assert last.interval == busiest_us(instance)


@pytest.mark.slow
def test_a_search_takes_what_blocks_find() -> None:
    sizes = (2, 2, 1, 2, 1, 2, 1, 2, 3, 3, 3, 3, 3, 3, 2, 1)
    problem = candidate_of(realistic_case(81), sizes).problem
    only = frozenset(Part) - {Part.FAMILIES}
    without = SolveOptions(40, deterministic=True, without=only)
    plain = solve(problem, without)
    better = solve(problem, replace(without, without=only - {Part.MODULO}))
    assert plain.value_us is not None and better.value_us is not None
    assert better.value_us < plain.value_us and better.found_by == "modulo scheduling"
