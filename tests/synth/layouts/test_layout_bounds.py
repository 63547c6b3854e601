"""Bounds of layouts: never above what a schedule of the layout takes, and never a false refusal."""

import itertools
import random
import threading
from dataclasses import replace

import pytest

from synth.errors import SynthError
from synth.estimates.layout import Layout, Sharding
from synth.layouts.answer import Bounded
from synth.layouts.judge import LayoutJudge, judged_plan
from synth.layouts.layout_bounds import LayoutBounds, bounded_layouts
from synth.layouts.legal import alike_layouts, legal_layouts
from synth.layouts.pipeline_bound import PipelineBound, PipelineSize, least_of_fullest
from synth.layouts.question import LayoutQuestion, RunLayout
from synth.layouts.quick_bounds import QuickBounds, Waiting
from synth.op_kinds import OpKind
from synth.options.arguments.plan import LayoutArguments
from synth.options.layout_task import LayoutTask
from synth.options.memory_limit import MemoryLimit
from synth.plan.runtimes import Allowed, Runtime
from tests.sweep import sweep
from tests.synth.layouts.random_questions import random_question

# A share and microseconds by which sums of rounded times may differ.
_ROUNDING = 1e-9


def some_layouts(question: LayoutQuestion, seed: int, count: int) -> list[RunLayout]:
    every = list(legal_layouts(question))
    return random.Random(seed).sample(every, min(count, len(every)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", sweep(range(200), daily=60))
def test_no_judged_layout_is_below_its_bound(seed: int) -> None:
    question = random_question(seed)
    judge = LayoutJudge(question)
    for layout in some_layouts(question, seed, 4):
        bounds = LayoutBounds(question, layout.groups)
        bounded = bounds.of(layout)
        judged = judge.best(layout)
        if judged is None or not judged.fits:
            continue
        assert isinstance(bounded, Bounded), layout.words
        assert bounded.bound_us <= judged.us * (1 + _ROUNDING), layout.words


@pytest.mark.slow
@pytest.mark.parametrize("seed", sweep(range(40), daily=8))
def test_no_solved_layout_is_below_its_bound(seed: int) -> None:
    question = random_question(seed)
    task = LayoutTask(_arguments(question), question, MemoryLimit(None, ""), ())
    judge = LayoutJudge(question)
    for layout in some_layouts(question, seed, 2):
        judged = judge.best(layout)
        if judged is None or layout.ranks == 1:
            continue
        solved = task._solve(judged, 1.0, threading.Event())
        if solved is None or (question.cap_bytes or 2**62) < max(solved.peaks_bytes):
            continue
        bounds = LayoutBounds(question, layout.groups)
        bounded = bounds.of(layout)
        found = judged_plan(
            question, layout, bounds, solved.plan, "", judged.placement, solved.peaks_bytes
        )
        assert isinstance(bounded, Bounded), layout.words
        assert bounded.bound_us <= found.us * (1 + _ROUNDING), layout.words
        raised_us = bounds.step_bound_us(layout, solved.bound_us)
        assert raised_us <= found.us * (1 + _ROUNDING), layout.words


def _arguments(question: LayoutQuestion) -> LayoutArguments:
    return LayoutArguments(
        model=question.shape.name,
        device=question.device.name,
        gpus=question.gpus,
        global_batch=question.global_batch,
        runtime=question.allowed.runtime.value,
        workers=1,
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_optimizer_counts_once(ranks: int) -> None:
    question = random_question(1).within(None)
    layouts = (one for one in legal_layouts(question) if (one.ranks, one.rounds) == (ranks, 1))
    layout = next(one for one in layouts if one.groups.sharding is not Sharding.FSDP)
    judged = LayoutJudge(question).best(layout, name="1f1b")
    assert judged is not None
    makespan_us = judged.plan.claim.makespan_us
    assert judged.us == pytest.approx(makespan_us + judged.parts.data_us, rel=1e-9)
    assert judged.parts.step_us > 0
    bound_us = LayoutBounds(question, layout.groups).step_bound_us(layout, makespan_us)
    assert bound_us <= judged.us * (1 + _ROUNDING)
    if ranks == 1:
        assert judged.parts.idle_us == pytest.approx(0.0, abs=2 * layout.micro_batches)


def test_the_bound_of_one_rank_is_its_time() -> None:
    question = random_question(3).within(None)
    profile = question.estimator(Layout(seq_len=512)).profile()
    work_us = sum(profile.layer_profile(at).work_us() for at in range(len(profile.layers)))
    least = PipelineBound(profile).least_us(PipelineSize(1, 1, 12), None)
    step_us = sum(
        profile.layer_profile(at).time_us[OpKind.STEP].median_us
        for at in range(len(profile.layers))
    )
    assert least == pytest.approx(12 * work_us + step_us, abs=20)


def test_equal_stages_have_the_bound_of_1f1b_without_split_backward() -> None:
    """With many ranks whole layers count: four layers on three ranks are two on one of them."""
    question = random_question(3).within(None)
    profile = question.estimator(Layout(seq_len=512)).profile()
    bound = PipelineBound(profile)
    few, many = (bound.least_us(PipelineSize(ranks, 1, 64), None) for ranks in (2, 4))
    assert few is not None and many is not None
    assert many < few < 2.5 * many


@pytest.mark.parametrize("seed", range(6))
def test_less_memory_never_lowers_a_bound(seed: int) -> None:
    question = random_question(seed)
    for layout in some_layouts(question, seed, 2):
        bounds = [
            LayoutBounds(question.within(cap), layout.groups).of(layout)
            for cap in (None, 10**11, 10**10, 10**9)
        ]
        known = [one.bound_us if isinstance(one, Bounded) else float("inf") for one in bounds]
        assert known == sorted(known)


def test_layouts_use_all_devices_and_the_whole_batch() -> None:
    for seed in range(8):
        question = random_question(seed)
        every = list(legal_layouts(question))
        assert len({layout.words for layout in every}) == len(every)
        for layout in every:
            question.check(layout)
        bounded = list(bounded_layouts(question, every))
        assert len(bounded) == len(every)
        for layout, found in list(zip(every, bounded, strict=True))[::7]:
            assert found == LayoutBounds(question, layout.groups).of(layout)


@pytest.mark.parametrize("seed", sweep(range(40), daily=6))
def test_a_quick_bound_is_never_above_the_closer_one(seed: int) -> None:
    question = random_question(seed)
    quick = QuickBounds(question)
    for alike in random.Random(seed).sample(
        every := [*alike_layouts(question)], min(40, len(every))
    ):
        found, bounds = quick.of(alike), LayoutBounds(question, alike[0].groups)
        for layout in alike:
            closer = bounds.of(layout)
            if isinstance(closer, Bounded):
                assert isinstance(found, Waiting), layout.words
                assert found.bound_us <= closer.bound_us, layout.words
            elif not isinstance(found, Waiting):
                assert found[0].least_bytes <= closer.least_bytes * (1 + _ROUNDING), layout.words


@pytest.mark.parametrize("seed", range(30))
def test_the_fullest_bin_holds_no_less_than_in_the_best_of_all_packings(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 2, 5, 7, 11]) for _ in range(rng.randint(1, 7))]
    bins = rng.randint(1, 4)
    packings = itertools.product(range(bins), repeat=len(sizes))
    least = min(
        max(
            sum(size for size, at in zip(sizes, where, strict=True) if at == one)
            for one in range(bins)
        )
        for where in packings
    )
    assert least_of_fullest(sizes, bins) <= least
    assert least_of_fullest(sizes, bins) >= sum(sizes) / bins * (1 - 1e-5)


def test_whole_layers_decide_where_the_mean_would_fit() -> None:
    """Seven equal layers on three ranks: one rank has three of them."""
    assert least_of_fullest([10.0], 3, [7]) == pytest.approx(30.0, rel=1e-5)


def test_the_quick_guess_has_the_reduction_of_its_own_layout() -> None:
    """Passes are shared between layouts, and the exchanges of each are its own."""
    question = random_question(2).within(None)
    quick = QuickBounds(question)
    for groups in {alike[0].groups for alike in alike_layouts(question)}:
        estimator = question.estimator(groups)
        profile = estimator.profile()
        again = sum(tied.reduce_us for tied in profile.tied_parameters or ())
        layers = [profile.layer_profile(at).reduce_us for at in range(len(profile.layers))]
        expected = pytest.approx(sum(layers) - again, abs=0.01 * len(layers))
        assert quick._reduced(groups) == expected
        assert estimator.reduction_us() == expected


def test_megatron_interleaves_no_fewer_micro_batches_than_ranks() -> None:
    question = replace(random_question(4), allowed=Allowed(Runtime.MEGATRON)).within(None)
    every = list(legal_layouts(question))
    assert any(one.rounds > 1 for one in every)
    assert all(one.rounds == 1 or one.micro_batches >= one.ranks for one in every)
    few = [one for one in legal_layouts(replace(question, allowed=Allowed())) if one not in every]
    layout = next(one for one in few if one.rounds > 1 and one.micro_batches < one.ranks)
    with pytest.raises(SynthError, match="interleaves as many as there are ranks at least"):
        question.check(layout)
