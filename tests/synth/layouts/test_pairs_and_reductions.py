"""Reductions of gradients and F and BW at once in layouts: judged, bounded, and counted once."""

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, combinations, pairwise, product

import pytest

from synth.costs.partition_costs import partition_costs
from synth.costs.stage_costs import LAST_BUCKET
from synth.errors import SynthError
from synth.estimates.device import device_of
from synth.estimates.factors import software_of
from synth.estimates.layout import Layout, Sharding
from synth.estimates.model_config import model_of
from synth.layouts import judge as judge_module
from synth.layouts.answer import Bounded
from synth.layouts.judge import LayoutJudge
from synth.layouts.layout_bounds import LayoutBounds
from synth.layouts.legal import legal_layouts
from synth.layouts.named_layout import read_layout
from synth.layouts.pipeline_bound import PipelineBound, PipelineSize
from synth.layouts.question import LayoutQuestion
from synth.layouts.tuning import LayoutSearchTuning
from synth.op_kinds import OpKind
from synth.plan.runtimes import Allowed, Runtime
from synth.profile import Profile
from synth.profile.layer_profile import Timing
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.verify import ScheduleError, verify
from tests.sweep import sweep
from tests.synth.layouts.random_questions import random_question


def question_of(model: str, runtime: Runtime, gpus: int = 64) -> LayoutQuestion:
    return LayoutQuestion(
        shape=model_of(model),
        device=device_of("h100"),
        gpus=gpus,
        global_batch=4 * gpus,
        seq_len=2048,
        software=software_of("megatron-graphs"),
        allowed=Allowed(runtime),
    )


EXPERTS = question_of("mixtral-8x7b", Runtime.SYNTH)


@pytest.fixture(autouse=True)
def _first_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge each schedule on its first partition, so that no clock decides."""
    monkeypatch.setattr(judge_module, "LAYOUT_SEARCH", LayoutSearchTuning(cuts_s=0, family_s=0))


def rank_programs(count: int, stage: int) -> Iterator[tuple[tuple[Op, ...], tuple[Op, ...]]]:
    """Yield the orders of a rank with one stage, each with every set of F's paired with a BW."""
    forwards = [Op(OpKind.F, stage, number) for number in range(count)]
    backwards = [Op(OpKind.BW, stage, number) for number in range(count)]
    for at in combinations(range(2 * count), count):
        first, second = iter(forwards), iter(backwards)
        order = tuple(next(first if place in at else second) for place in range(2 * count))
        if any(order.index(f) > order.index(b) for f, b in zip(forwards, backwards, strict=True)):
            continue
        pairable = [
            one
            for one, other in pairwise(order)
            if (one.kind, other.kind) == (OpKind.F, OpKind.BW)
            and one.microbatch != other.microbatch
        ]
        for size in range(len(pairable) + 1):
            for chosen in combinations(pairable, size):
                yield order, chosen


def least_of_all_orders_us(profile: Profile, num_ranks: int, count: int) -> int:
    """The least makespan over all partitions, orders of F and BW, and pairs."""
    found = []
    cuts = combinations(range(1, len(profile.layers)), num_ranks - 1)
    for edges in ((0, *cut, len(profile.layers)) for cut in cuts):
        costs = partition_costs(profile, [end - first for first, end in pairwise(edges)])
        of_ranks = (list(rank_programs(count, rank)) for rank in range(num_ranks))
        for chosen in product(*of_ranks):
            programs, pairs = zip(*chosen, strict=True)
            overlapped = frozenset(chain.from_iterable(pairs))
            where = Placement.linear(num_ranks)
            schedule = Schedule(where, count, programs, "every order", overlapped=overlapped)
            with suppress(ScheduleError):
                found.append(verify(schedule, costs)[1].makespan_us)
    return min(found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sweep(range(30), daily=4))
@pytest.mark.parametrize(("num_ranks", "count"), [(1, 4), (2, 3)])
def test_no_order_with_pairs_and_reductions_is_below_the_bound(
    num_ranks: int, count: int, seed: int
) -> None:
    """All partitions, orders and pairs, where pairs hide up to all of the shorter op."""
    rng = random.Random(seed)
    question = random_question(seed).within(None)
    profile = (
        replace(question, software=software_of("megatron"))
        .estimator(Layout(seq_len=512, data=4))
        .profile()
    )
    kinds = {
        name: layer.replace(
            pair_us=Timing.exactly(
                rng.uniform(1.0, 1.3)
                * max(layer.time_us[kind].median_us for kind in (OpKind.F, OpKind.BW))
            ),
            reduce_us=rng.choice([0.0, 0.5, 3.0]) * layer.time_us[OpKind.BW].median_us,
        )
        for name, layer in profile.layer_profiles.items()
    }
    profile = profile.replace(layer_profiles=kinds)
    bound_us = PipelineBound(profile, pairs=True).least_us(PipelineSize(num_ranks, 1, count), None)
    assert bound_us is not None
    assert 0 < bound_us <= least_of_all_orders_us(profile, num_ranks, count)


@pytest.mark.parametrize("sharding", [Sharding.ZERO1, Sharding.NONE])
def test_a_rank_alone_reduces_what_its_last_backward_does_not_hide(sharding: Sharding) -> None:
    question = question_of("llama3-8b", Runtime.SYNTH, gpus=8)
    layouts = (one for one in legal_layouts(question) if one.ranks == 1 and one.groups.data == 8)
    layout = next(one for one in layouts if one.groups.sharding is sharding)
    judged = LayoutJudge(question).best(layout, name="1f1b")
    assert judged is not None
    layers = [judged.profile.layer_profile(at) for at in range(len(judged.profile.layers))]
    whole_us = sum(layer.reduce_us for layer in layers)
    backward_us = sum(layer.time_us[OpKind.BW].median_us for layer in layers)
    seen_us = max(LAST_BUCKET * whole_us, whole_us - backward_us)
    assert judged.parts.reduce_us == pytest.approx(seen_us, abs=1)
    assert whole_us > 1000
    passes_us = sum(
        layer.time_us[kind].median_us for layer in layers for kind in (OpKind.F, OpKind.BW)
    )
    steps_us = sum(layer.time_us[OpKind.STEP].median_us for layer in layers)
    expected_us = layout.micro_batches * passes_us + steps_us + seen_us + judged.parts.data_us
    assert judged.us == pytest.approx(expected_us, abs=3 * layout.micro_batches)
    # Without sharding no parameters are gathered.
    assert (judged.parts.data_us == 0) == (sharding is Sharding.NONE)


def test_a_rank_alone_reduces_a_tied_table_once() -> None:
    question = question_of("gemma3-27b", Runtime.SYNTH, gpus=64)
    layout = read_layout("tp=8,pp=1", question).layout
    judged = LayoutJudge(question).best(layout, name="1f1b")
    assert judged is not None and judged.profile.tied_parameters is not None
    layers = [judged.profile.layer_profile(at) for at in range(len(judged.profile.layers))]
    table_us = judged.profile.tied_parameters[0].reduce_us
    whole_us = sum(layer.reduce_us for layer in layers) - table_us
    assert table_us == pytest.approx(layers[0].reduce_us, rel=1e-3) and table_us > 1000
    seen_us = whole_us - sum(layer.time_us[OpKind.BW].median_us for layer in layers)
    assert judged.parts.reduce_us == pytest.approx(max(LAST_BUCKET * whole_us, seen_us), abs=1)
    assert judged.bound_us <= judged.us


def test_the_plan_of_a_layout_has_its_reductions_and_counts_them_once() -> None:
    question = question_of("llama3-8b", Runtime.SYNTH)
    layout = read_layout("tp=2,pp=4", question).layout
    judged = LayoutJudge(question).best(layout, name="1f1b")
    assert judged is not None
    schedule, costs = judged.plan.schedule(), judged.plan.costs
    makespan_us = verify(schedule, costs)[1].makespan_us
    alone_us = verify(schedule, costs.without_reductions())[1].makespan_us
    assert judged.us == pytest.approx(makespan_us + judged.parts.data_us)
    assert judged.parts.reduce_us == makespan_us - alone_us > 0
    # Ranks behind the first one reduce while others still compute.
    assert judged.parts.reduce_us < max(stage.reduce_us for stage in costs.stages)
    own = partition_costs(judged.profile, judged.plan.partition)
    assert [stage.reduce_us for stage in own.stages] == [stage.reduce_us for stage in costs.stages]


@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_reductions_behind_the_pipeline_are_no_gathering(sharding: str) -> None:
    """A program that does not overlap them: they are all that follows the makespan."""
    question = question_of("llama3-8b", Runtime.MEGATRON, gpus=16)
    question = replace(question, software=software_of("megatron-2021"))
    layout = read_layout(f"tp=1,pp=2,dp=8,sharding={sharding}", question).layout
    judged = LayoutJudge(question).best(layout, name="1f1b")
    assert judged is not None
    makespan_us = verify(judged.plan.schedule(), judged.plan.costs)[1].makespan_us
    reduce_us, gather_us = judged.parts.reduce_us, judged.parts.data_us
    assert reduce_us + gather_us == pytest.approx(judged.us - makespan_us)
    # Gradients of 4 bytes are summed, or scattered as sums; parameters of 2 bytes are gathered.
    reduced_bytes, gathered_bytes = (8, 0) if sharding == "none" else (4, 2)
    assert gather_us / reduce_us == pytest.approx(gathered_bytes / reduced_bytes, abs=0.02)


def test_several_stages_per_rank_hide_more_of_the_reduction() -> None:
    """A rank begins to reduce when the first of its stages has its gradients."""
    question = question_of("llama3-8b", Runtime.MEGATRON)
    device = question.device.replace(nic_bytes_per_s=question.device.nic_bytes_per_s / 8)
    question = replace(question, device=device)
    shown = []
    for rounds in (1, 4):
        layout = read_layout(f"tp=1,pp=4,vp={rounds}", question).layout
        judged = LayoutJudge(question).best(layout)
        assert judged is not None
        shown.append(judged.parts.reduce_us / judged.us)
    assert shown[0] > 1.5 * shown[1] > 0


@pytest.mark.parametrize(
    ("runtime", "sizes", "has_pairs"),
    [
        (Runtime.SYNTH, "ep=8,pp=4,vp=4", True),
        (Runtime.SYNTH, "ep=8,pp=4", False),
        (Runtime.SYNTH, "ep=1,pp=4,vp=4", False),
        (Runtime.MEGATRON, "ep=8,pp=4,vp=4", True),
        (Runtime.MEGATRON, "ep=8,pp=4", False),
        (Runtime.MEGATRON, "ep=8,pp=4,vp=4,recompute=full", False),
        (Runtime.TORCHTITAN, "ep=8,pp=4,vp=4", False),
    ],
)
def test_layouts_with_experts_are_judged_with_pairs_where_the_program_runs_them(
    runtime: Runtime, sizes: str, has_pairs: bool
) -> None:
    question = question_of("mixtral-8x7b", runtime)
    layout = read_layout(sizes, question).layout
    judged = LayoutJudge(question).best(layout)
    assert judged is not None
    assert bool(judged.plan.schedule().overlapped) == has_pairs
    assert judged.schedule.endswith("overlap") == has_pairs
    assert sum(judged.parts) == pytest.approx(judged.us)
    bounded = LayoutBounds(question, layout.groups).of(layout)
    assert isinstance(bounded, Bounded) and bounded.bound_us <= judged.us


def test_pairs_are_chosen_because_they_hide_exchanges_of_experts() -> None:
    layout = read_layout("ep=8,pp=4,vp=4", EXPERTS).layout
    judge = LayoutJudge(EXPERTS)
    paired, apart = judge.best(layout), judge.best(layout, name="interleaved:4")
    assert paired is not None and apart is not None
    assert paired.us < apart.us
    assert paired.parts.communication_us < apart.parts.communication_us
    assert paired.parts.matmul_us == apart.parts.matmul_us


def test_pairs_that_a_program_does_not_run_are_refused() -> None:
    question = question_of("mixtral-8x7b", Runtime.MEGATRON)
    needs = "does not run F and BW at once, which needs"
    with pytest.raises(SynthError, match=f"{needs} ep > 1; give another"):
        read_layout("pp=4,vp=2,schedule=interleaved:2,overlap", question)
    with pytest.raises(SynthError, match=f"{needs} ep > 1 and another recompute than full; give"):
        read_layout("pp=4,vp=2,recompute=full,schedule=interleaved:2,overlap", question)
    read_layout("pp=4,vp=2,ep=8,schedule=interleaved:2,overlap", question)
