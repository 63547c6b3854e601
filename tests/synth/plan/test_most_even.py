"""The most even partition against every partition, and against the dynamic program over all runs.

`oracle` keeps, for every stage and end, all partitions that may still turn out best. It is slow,
and was what the two passes of `bottleneck` have replaced.
"""

import random
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import pytest

from synth.op_kinds import MEASURED, OpKind
from synth.plan.partition.layer_run_memory import RunNeeds
from synth.plan.partition.most_even import most_even, smallest_limit_bytes
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.profile import Profile
from synth.profile.layer_profile import Timing
from synth.profile.tied_parameters import TiedParameters
from tests.sweep import sweep
from tests.synth.plan.test_balance import uneven_profile

F, B, W, BW, R = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.R


class _Score(NamedTuple):
    largest_us: int
    sum_of_squares: int

    def plus(self, work_us: int) -> "_Score":
        return _Score(max(self.largest_us, work_us), self.sum_of_squares + work_us**2)


_Partial = tuple[_Score, tuple[int, ...]]


def oracle(
    table: StageCostTable, caps_bytes: Sequence[int | None], recompute: Collection[int]
) -> tuple[int, ...] | None:
    """The best partition of all that keep the caps, if there is one."""
    num_layers = table.num_layers
    best: list[list[_Partial]] = [[] for _ in range(num_layers + 1)]
    best[0] = [(_Score(0, 0), ())]
    for stage, cap in enumerate(caps_bytes):
        works = {
            (first, end): table.work_us(first, end, recompute=stage in recompute)
            for first, end in runs(num_layers)
            if best[first] and (cap is None or table.need_bytes(first, end) <= cap)
        }
        best = [_pareto(_extended(best, works, end)) for end in range(num_layers + 1)]
    return min(best[num_layers])[1] if best[num_layers] else None


def runs(num_layers: int) -> Iterator[tuple[int, int]]:
    for first in range(num_layers):
        for end in range(first + 1, num_layers + 1):
            yield first, end


def _extended(
    best: list[list[_Partial]], works: dict[tuple[int, int], int], end: int
) -> Iterator[_Partial]:
    for first in range(end):
        if (first, end) in works:
            for score, sizes in best[first]:
                yield score.plus(works[first, end]), (*sizes, end - first)


def _pareto(partials: Iterator[_Partial]) -> list[_Partial]:
    kept: list[_Partial] = []
    for partial in sorted(partials):
        if not any(all(a <= b for a, b in zip(k[0], partial[0], strict=True)) for k in kept):
            kept.append(partial)
    return kept


def least_largest_need(table: StageCostTable, num_stages: int) -> int:
    num_layers = table.num_layers
    needs = {run: table.need_bytes(*run) for run in runs(num_layers)}
    never = sum(needs.values()) + 1
    least = [0] + [never] * num_layers
    for _ in range(num_stages):
        least = [
            min((max(least[i], needs[i, end]) for i in range(end)), default=never)
            for end in range(num_layers + 1)
        ]
    return least[num_layers]


def odd_profile(rng: random.Random, num_layers: int) -> Profile:
    """Layers that may be alike, take no time, or keep their boundaries in any way."""
    profile = uneven_profile(rng.randrange(1000), num_layers)
    longest, unit = rng.choice([0, 1, 3, 9, 1000]), rng.choice([1.0, 1.0, 0.5, 1 / 3, 0.1])
    changed = {
        name: layer.replace(
            time_us={
                kind: Timing.exactly(rng.randint(0, longest) * unit)
                for kind in (*MEASURED, *([R] if rng.random() < 0.3 else []))
            },
            input_until=rng.choice([F, B, W]),
            output_until=rng.choice([F, B, W]),
            gradient_until=rng.choice([B, W]),
            rise_bytes={kind: rng.randint(20, 60) for kind in MEASURED},
            inner_rise_bytes={kind: rng.randint(0, 20) for kind in rng.choice([[], [B, W, BW]])},
            output_bytes=rng.randint(0, 30),
        )
        for name, layer in profile.layer_profiles.items()
    }
    if rng.random() < 0.4:
        changed = {name: rng.choice(list(changed.values())[:2]) for name in changed}
    return profile.replace(layer_profiles=changed, tied_parameters=_some_tied(rng, profile))


def _some_tied(rng: random.Random, profile: Profile) -> tuple[TiedParameters, ...] | None:
    """Of some layers, a part of what each has; the parts of two ties are less than a layer."""
    names = [layer.name for layer in profile.layers]
    if len(names) < 2 or rng.random() < 0.5:
        return None
    least = min(layer.parameter_bytes for layer in profile.layer_profiles.values())
    return tuple(
        TiedParameters(
            layers=tuple(names[i] for i in sorted(rng.sample(range(len(names)), count))),
            parameter_bytes=rng.randint(0, least // 2),
            gradient_bytes=0,
            optimizer_bytes=0,
        )
        for count in [rng.randint(2, len(names)) for _ in range(rng.randint(1, 2))]
    )


@pytest.mark.parametrize("seed", sweep(range(120), daily=40))
def test_both_passes_find_what_the_program_over_all_runs_finds(seed: int) -> None:
    rng = random.Random(seed)
    num_layers = rng.randint(1, 12)
    num_stages = rng.randint(1, min(num_layers, 5))
    table = StageCostTable(odd_profile(rng, num_layers))
    recompute = [stage for stage in range(num_stages) if rng.random() < 0.2]
    free = [None] * num_stages
    assert most_even(table, free, recompute) == oracle(table, free, recompute)
    limit = smallest_limit_bytes(table, num_stages)
    assert limit == least_largest_need(table, num_stages)
    for caps in (
        [limit] * num_stages,
        [limit - 1] * num_stages,
        [round(limit * rng.uniform(0.9, 2)) for _ in range(num_stages)],
        [limit if rng.random() < 0.5 else None for _ in range(num_stages)],
    ):
        assert most_even(table, caps, recompute) == oracle(table, caps, recompute)


@pytest.mark.parametrize("seed", sweep(range(60), daily=24))
def test_the_needs_of_all_runs_at_once_are_those_of_each_run_alone(seed: int) -> None:
    rng = random.Random(seed)
    profile = odd_profile(rng, rng.randint(1, 9))
    table, needs = StageCostTable(profile), RunNeeds(StageCostTable(profile))
    for first in reversed(range(table.num_layers)):
        ends = range(first + 1, table.num_layers + 1)
        alone = [table.need_bytes(first, end) for end in ends]
        assert needs.of_next(table.num_layers).tolist() == alone


def test_the_squares_of_very_long_stages_are_added_up_exactly() -> None:
    # Two stages of 2^39 µs and more: their squares do not fit in 64 bits.
    profile = uneven_profile(0, 4)
    changed = {
        name: layer.replace(
            time_us={**dict.fromkeys(MEASURED, Timing.exactly(0)), F: Timing.exactly(2**39 + size)}
        )
        for size, (name, layer) in enumerate(profile.layer_profiles.items())
    }
    table = StageCostTable(profile.replace(layer_profiles=changed))
    assert most_even(table, [None] * 3, ()) == oracle(table, [None] * 3, ())


def test_many_layers_need_few_runs() -> None:
    # 2,000 equal layers in 8 stages: only runs near 250 layers are looked at, not all 2,000,000.
    profile = uneven_profile(0, 1)
    layer = profile.layers[0]
    layers = tuple(layer.replace(name=f"l{i}") for i in range(2000))
    table = StageCostTable(profile.replace(layers=layers))
    asked = 0
    works_us = table.works_us

    def counting(first: int, stop: int, *, recompute: bool = False):  # type: ignore[no-untyped-def]
        nonlocal asked
        asked += 1
        return works_us(first, stop, recompute=recompute)

    table.works_us = counting  # type: ignore[method-assign]
    assert most_even(table, [None] * 8, ()) == (250,) * 8
    assert asked < 500
    edges = [0, *accumulate((250,) * 8)]
    assert len({table.work_us(*run) for run in pairwise(edges)}) == 1
