"""Bounds of Megatron-LM's two orders: against the best of all partitions and recomputed layers."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from synth.costs.costs import Costs
from synth.estimates.layout import Layout
from synth.families import family_placement, generate
from synth.layouts.own_order_bound import OwnOrderBound
from synth.layouts.pipeline_bound import PipelineBound, PipelineSize
from synth.layouts.question import LayoutQuestion
from synth.plan.published.variants import VariantCosts
from synth.plan.runtimes import Allowed, Runtime
from synth.profile import Profile
from synth.profile.model_parts import model_parts
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.recomputation_rules import MEGATRON
from synth.schedule.simulate import simulate
from tests.sweep import sweep
from tests.synth.layouts.random_questions import random_question

_RANKS, _MICRO_BATCHES = 2, 4


def of_megatron(seed: int) -> LayoutQuestion:
    """Return a question whose head is small, so that memory matters on each rank."""
    question = random_question(seed)
    shape = question.shape.replace(layers=min(question.shape.layers, 5), vocab=1024)
    return replace(question, shape=shape, allowed=Allowed(Runtime.MEGATRON))


def every_choice(profile: Profile, where: Placement, *, recomputes: bool) -> Iterator[Costs]:
    """All partitions, each with every choice of recomputed layers that Megatron-LM has, or none."""
    variants, count = VariantCosts(profile), len(profile.layers)
    parts = model_parts([layer.name for layer in profile.layers])
    for cuts in itertools.combinations(range(1, count), where.num_stages - 1):
        ends = (0, *cuts, count)
        sizes = tuple(end - begin for begin, end in itertools.pairwise(ends))
        for layers in MEGATRON.choices(sizes, where, parts) if recomputes else [()]:
            yield variants.of(sizes, layers)


def enumerated(profile: Profile, name: str) -> list[tuple[int, int]]:
    """The makespan of a published schedule and the peak of its fullest rank, by choice."""
    where = family_placement(name, _RANKS)
    found = []
    for costs in every_choice(profile, where, recomputes="overlap" not in name):
        lowered = lower(generate(name, _RANKS, _MICRO_BATCHES, costs=costs), costs)
        found.append((simulate(lowered).makespan_us, max(peak_bytes(lowered))))
    return found


def check(seed: int, rounds: int) -> None:
    """Compare under the limits that as good as no choice keeps, a tenth, and a half."""
    question = of_megatron(seed)
    expert = 1 if question.shape.experts is None else 2
    groups = Layout(seq_len=question.seq_len, expert=expert, data=2)
    profile = question.estimator(groups).profile()
    if _RANKS * rounds > len(profile.layers):
        return
    size = PipelineSize(_RANKS, rounds, _MICRO_BATCHES)
    for overlap in ("", ",overlap") if rounds > 1 and profile.has_pairs else ("",):
        choices = enumerated(profile, "1f1b" if rounds == 1 else f"interleaved:{rounds}{overlap}")
        peaks = sorted(peak for _, peak in choices)
        for cap in (peaks[0], peaks[len(peaks) // 10], peaks[len(peaks) // 2]):
            known_us = PipelineBound(profile, pairs=bool(overlap)).least_us(size, cap)
            assert known_us is not None
            bound = OwnOrderBound(profile, pairs=bool(overlap), recomputes=not overlap)
            bound_us = bound.least_us(size, cap, known_us, 1e18)
            least_us = min(makespan_us for makespan_us, peak in choices if peak <= cap)
            assert known_us <= bound_us <= least_us, (seed, rounds, overlap, cap)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rounds", [1, 2])
def test_no_partition_is_below_the_bound(seed: int, rounds: int) -> None:
    check(seed, rounds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sweep(range(4, 60), daily=12))
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_no_partition_of_more_models_is_below_the_bound(seed: int, rounds: int) -> None:
    check(seed, rounds)
