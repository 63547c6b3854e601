"""The published planners against brute force over all that they choose among."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.plan.planners.pipedream import pipedream_partition
from synth.plan.planners.replicated_pipeline import (
    Bottleneck,
    ReplicatedPipeline,
    ReplicatedStage,
    Term,
)
from synth.plan.planners.two_bw import TwoBwChoice, two_bw_configurations, two_bw_plan
from synth.plan.weight_passing.choice import even_stages
from synth.profile import Profile
from synth.profile.layer_profile import LayerProfile, Timing
from synth.profile.links import Link, Links, NodeLink, PairLink
from synth.schedule.model import Placement
from tests.sweep import sweep
from tests.synth.layered import invented

KINDS = (OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP)


def layer(
    forward_us: int,
    backward_us: int,
    weights: int,
    output: int,
    saved: int = 0,
    returned: int | None = None,
) -> LayerProfile:
    times = dict.fromkeys(KINDS, 0) | {OpKind.F: forward_us, OpKind.BW: backward_us}
    return LayerProfile(
        time_us={kind: Timing.exactly(us) for kind, us in times.items()},
        parameter_bytes=weights,
        gradient_bytes=weights,
        optimizer_bytes=2 * weights,
        output_bytes=output,
        output_gradient_bytes=returned,
        saved_bytes=saved,
        saved_w_bytes=saved,
        rise_bytes=dict.fromkeys(KINDS, 0),
        input_until=OpKind.F,
    )


def unequal(draw: random.Random, count: int, per_us: float, *nodes: NodeLink) -> Profile:
    """Layers like those of VGG: some with much work, others with many weights or a large output."""
    layers = [
        layer(
            draw.randint(1, 30),
            draw.randint(1, 60),
            draw.choice((0, 10, 400, 2000)),
            draw.choice((1, 50, 600)),
            draw.randint(0, 300),
            draw.choice((None, 0, 900)),
        )
        for _ in range(count)
    ]
    links = Links(default=Link(bandwidth_bytes_per_s=per_us * 1e6), nodes=nodes)
    return invented(layers).replace(links=links)


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def brute_us(
    profile: Profile,
    layers: range,
    ranks: int,
    per_us: float,
    inner: "dict[range, float] | None" = None,
    memory_bytes: float = float("inf"),
) -> float:
    """The least time over all divisions of layers and ranks, each computed plainly."""
    best = float("inf")
    for parts in range(1, min(len(layers), ranks) + 1):
        for sizes in compositions(len(layers), parts):
            edges = [layers.start]
            for size in sizes:
                edges.append(edges[-1] + size)
            runs = [range(*pair) for pair in pairwise(edges)]
            for replicas in compositions(ranks, parts):
                cost = _cost_us(profile, runs, replicas, per_us, inner, memory_bytes)
                best = min(best, cost)
    return best


def _cost_us(
    profile: Profile,
    runs: list[range],
    replicas: tuple[int, ...],
    per_us: float,
    inner: "dict[range, float] | None",
    memory_bytes: float,
) -> float:
    cost = 0.0
    for number, (run, r) in enumerate(zip(runs, replicas, strict=True)):
        each = [profile.layer_profile(i) for i in run]
        work = sum(e.time_us[kind].median_us for e in each for kind in (OpKind.F, OpKind.BW))
        work = work if inner is None else inner[run]
        weights = sum(e.parameter_bytes for e in each)
        cost = max(cost, work / r, 4 * (r - 1) * weights / (r * per_us) / r)
        before = profile.layer_profile(run.start - 1).output_bytes if run.start else 0
        if number:
            back = profile.layer_profile(run.start - 1).returned_bytes
            cost = max(cost, (before + back) / per_us)
        in_flight = -(-sum(replicas[number:]) // r)
        # Nothing that a layer saves is its output, and its input is held by no later op.
        flight = weights + before + sum(e.saved_bytes for e in each)
        if in_flight * flight + 3 * weights > memory_bytes:
            return float("inf")
    return cost


@pytest.mark.parametrize("seed", sweep(range(12), daily=6))
def test_the_least_time_is_that_of_all_divisions(seed: int) -> None:
    draw = random.Random(seed)
    count, ranks, per_us = draw.randint(1, 6), draw.randint(1, 5), draw.choice((2, 20, 200))
    profile = unequal(draw, count, per_us)
    found = pipedream_partition(profile, ranks)
    assert found.time_us == pytest.approx(brute_us(profile, range(count), ranks, per_us))
    assert _recomputed_us(profile, found, per_us) == pytest.approx(found.time_us)
    assert found.num_ranks == ranks and sum(found.partition) == count


def _recomputed_us(profile: Profile, found: ReplicatedPipeline, per_us: float) -> float:
    runs = [stage.layers for stage in found.stages]
    return _cost_us(profile, runs, found.replicas, per_us, None, float("inf"))


@pytest.mark.parametrize("seed", range(8))
def test_with_two_levels_of_bandwidth_too(seed: int) -> None:
    """The upper level takes the best of a node for a layer's time."""
    draw = random.Random(seed)
    count, nodes, size = draw.randint(2, 5), draw.randint(2, 3), draw.randint(2, 3)
    slow = NodeLink(ranks_per_node=size, bandwidth_bytes_per_s=draw.choice((1, 5, 50)) * 1e6)
    profile = unequal(draw, count, 50, slow)
    inner = {
        run: brute_us(profile, run, size, 50)
        for first in range(count)
        for end in range(first + 1, count + 1)
        for run in (range(first, end),)
    }
    assert slow.bandwidth_bytes_per_s is not None
    per_us = slow.bandwidth_bytes_per_s / 1e6
    found = pipedream_partition(profile, nodes * size)
    expected = brute_us(profile, range(count), nodes, per_us, inner)
    assert found.time_us == pytest.approx(expected)
    held = sorted(rank for stage in found.stages for rank in stage.ranks)
    assert held == list(range(nodes * size))
    assert [i for stage in found.stages for i in stage.layers] == list(range(count))


def test_micro_batches_alternate_between_nodes_that_are_replicas() -> None:
    """Within a node they are dealt out in turn once more."""
    slow = NodeLink(ranks_per_node=2, bandwidth_bytes_per_s=1e4)
    profile = invented([layer(10, 20, 100, 1000)] * 2).replace(links=Links(nodes=(slow,)))
    (stage,) = pipedream_partition(profile, 4).stages
    assert stage == (range(2), (0, 2, 1, 3))


@pytest.mark.parametrize("seed", range(8))
def test_a_memory_limit_leaves_out_stages_that_hold_too_much(seed: int) -> None:
    draw = random.Random(seed)
    count, ranks = draw.randint(2, 5), draw.randint(2, 4)
    profile = unequal(draw, count, 20)
    limits = (800, 4000, 9000, 20000)
    for limit in limits:
        expected = brute_us(profile, range(count), ranks, 20, memory_bytes=limit)
        if expected == float("inf"):
            with pytest.raises(SynthError, match="no choice of stages and replicas on"):
                pipedream_partition(profile, ranks, memory_bytes=limit)
        else:
            found = pipedream_partition(profile, ranks, memory_bytes=limit)
            assert found.time_us == pytest.approx(expected)


def test_a_memory_limit_with_nodes_is_refused_where_one_rank_per_stage_would_fit() -> None:
    """A stage on a whole node is no stage on a rank, and its ranks share its memory."""
    links = Links(default=Link(bandwidth_bytes_per_s=5e7))
    flat = invented([layer(10, 20, 1000, 1, 10)] * 4).replace(links=links)
    assert pipedream_partition(flat, 4, memory_bytes=10_000).partition == (1, 1, 1, 1)
    node = NodeLink(ranks_per_node=2, bandwidth_bytes_per_s=5e7)
    nodes = flat.replace(links=links.replace(nodes=(node,)))
    with pytest.raises(SynthError, match="limit of 10 kB is given with links of 2 bandwidths"):
        pipedream_partition(nodes, 4, memory_bytes=10_000)
    assert pipedream_partition(nodes, 4).num_ranks == 4
    assert pipedream_partition(nodes, 2, memory_bytes=20_000).num_ranks == 2  # within one node


def test_without_weights_or_transfers_it_is_data_parallelism() -> None:
    """All replicas in one stage: no other choice is better than the sum over the ranks."""
    layers = [layer(10, 20, 0, 0), layer(5, 5, 0, 0), layer(7, 13, 0, 0)]
    found = pipedream_partition(invented(layers), 4)
    assert (found.partition, found.replicas, found.in_flight) == ((3,), (4,), 1)
    assert found.time_us == 60 / 4
    assert found.bound_by == (Term.COMPUTE, range(3))


def test_with_heavy_weights_it_is_the_partition_with_the_least_bottleneck() -> None:
    """One replica each: synchronizing any stage would take longer than any one of them."""
    links = Links(default=Link(bandwidth_bytes_per_s=1e6))
    works = (30, 30, 60, 10, 20)
    layers = [layer(work // 3, work - work // 3, 10**6, 1) for work in works]
    found = pipedream_partition(invented(layers).replace(links=links), 3)
    assert (found.partition, found.replicas, found.in_flight) == ((2, 1, 2), (1, 1, 1), 3)
    assert (
        found.time_us
        == 60
        == min(
            max(sum(works[:a]), sum(works[a:b]), sum(works[b:]))
            for a in range(1, 4)
            for b in range(a + 1, 5)
        )
    )


def test_light_layers_with_much_work_are_replicated_as_vgg_s_convolutions() -> None:
    """NOAM is the ranks over those of the first stage, rounded up."""
    links = Links(default=Link(bandwidth_bytes_per_s=1e6))
    found = pipedream_partition(
        invented([layer(30, 60, 1, 1), layer(10, 20, 10**5, 1)]).replace(links=links), 4
    )
    assert (found.partition, found.replicas, found.in_flight) == ((1, 1), (3, 1), 2)
    assert found.time_us == 30
    assert str(found.bound_by) == "compute of layer 0"


def test_stages_whose_ranks_take_turns_over_too_many_copies_have_no_placement() -> None:
    """The least common multiple of 31 and 33 is 1023, and ops name at most 1000 copies."""
    stages = (
        ReplicatedStage(range(1), tuple(range(31))),
        ReplicatedStage(range(1, 2), tuple(range(31, 64))),
    )
    found = ReplicatedPipeline(stages, 1.0, Bottleneck(Term.COMPUTE, range(1)))
    with pytest.raises(SynthError, match=r"stages on 31-33 ranks, .* have 1,023 copies"):
        _ = found.placement
    fewer = replace(found, stages=(stages[0], ReplicatedStage(range(1, 2), (32, 31))))
    assert fewer.placement == Placement(tuple((c % 31, 32 - c % 2) for c in range(62)))


def test_links_that_are_no_levels_are_refused() -> None:
    profile = invented([layer(1, 1, 1, 1)] * 3)
    single = PairLink(source=0, target=1, latency_us=1)
    with pytest.raises(SynthError, match="links of single pairs"):
        pipedream_partition(profile.replace(links=Links(pairs=(single,))), 2)
    with pytest.raises(SynthError, match="3 ranks are no whole number of nodes of 2"):
        pipedream_partition(profile.replace(links=Links(nodes=(NodeLink(ranks_per_node=2),))), 3)
    with pytest.raises(SynthError, match="at least one rank, given 0"):
        pipedream_partition(profile, 0)


# PipeDream-2BW


def sized(size: int, forward_us: int, saved: int) -> Profile:
    """Six equal layers and a larger last one, measured with some size of a micro-batch."""
    layers = [layer(forward_us, 2 * forward_us, 1000, 8 * size, saved)] * 6
    layers.append(layer(2 * forward_us, 4 * forward_us, 3000, 0, saved))
    made = invented(layers).replace(links=Links(default=Link(bandwidth_bytes_per_s=5e6)))
    return made.replace(workload=made.workload.replace(micro_batch_size=size))


PROFILES = [sized(1, 10, 100), sized(2, 16, 200), sized(4, 28, 400)]


@cache
def _sizes(micro_batch_size: int, depth: int) -> tuple[int, ...]:
    """Stages of equally many layers, as nearly as the larger last one lets them."""
    profile = next(p for p in PROFILES if p.workload.micro_batch_size == micro_batch_size)
    return even_stages(profile, depth)


def _brute(
    profiles: list[Profile], num_ranks: int, batch: int, limit: float
) -> tuple[float, int, int, int, bool] | None:
    """The configuration of the largest throughput, by the paper's formulas written out anew."""
    best = None
    for w in range(1, num_ranks + 1):
        for d in range(1, num_ranks // w + 1):
            for profile in profiles:
                b = profile.workload.micro_batch_size
                m = batch / (w * b)
                if m != int(m) or m < d or d > len(profile.layers):
                    continue
                sizes = _sizes(b, d)
                for r in (False, True):
                    t, memory = _printed(profile, sizes, w, m, r)
                    row = (b * w / t, w, d, b, r)
                    if memory <= limit and (best is None or row[0] > best[0]):
                        best = row
    return best


def _printed(
    profile: Profile, sizes: tuple[int, ...], w: int, m: float, r: bool
) -> tuple[float, float]:
    """Time and memory, from the layers."""
    d, first, t, boundary = len(sizes), 0, 0.0, []
    for size in sizes[:-1]:
        first += size
        boundary.append(profile.layer_profile(first - 1).output_bytes)
    first = 0
    for i, size in enumerate(sizes):
        layers = [profile.layer_profile(k) for k in range(first, first + size)]
        first += size
        compute = sum(e.time_us[OpKind.F].median_us for e in layers) * (4 if r else 3)
        transfers = sum(round(n / 5) for n in (*boundary[i - 1 : i], *boundary[i : i + 1]))
        sync = round(2 * (w - 1) * sum(e.gradient_bytes for e in layers) / w / 5)
        t = max(t, compute + transfers, sync / m)
    each = [profile.layer_profile(k) for k in range(len(profile.layers))]
    weights, saved = (sum(e.parameter_bytes for e in each), sum(e.saved_bytes for e in each))
    inputs = max(boundary, default=0)
    printed = 2 * weights / d + (saved / d if r else d * saved / d) + d * inputs
    return t, printed + 3 * weights / d


@pytest.mark.parametrize("num_ranks", [1, 4, 6])
@pytest.mark.parametrize("limit", [None, 50_000, 18_000, 13_000, 9_000, 3_000])
def test_the_planner_of_2bw_finds_the_best_of_its_enumeration(
    num_ranks: int, limit: int | None
) -> None:
    expected = _brute(PROFILES, num_ranks, 24, float("inf") if limit is None else limit)
    if expected is None:
        with pytest.raises(SynthError, match="no configuration of PipeDream-2BW"):
            two_bw_plan(PROFILES, num_ranks, 24, memory_bytes=limit)
        return
    found = two_bw_plan(PROFILES, num_ranks, 24, memory_bytes=limit)
    assert found.samples_per_s == pytest.approx(1e6 * expected[0])
    assert limit is None or sum(found.memory) <= limit


def _one(width: int, depth: int, recompute: bool) -> TwoBwChoice:
    found = two_bw_configurations(PROFILES[:1], width * depth, 24)
    return next(c for c in found if (c.width, c.depth, c.recompute) == (width, depth, recompute))


def test_memory_is_the_printed_formula() -> None:
    """2 W / d + d A / d + d A_in, and 2 W / d + A / d + d A_in with recomputation."""
    for depth in (1, 2, 3):
        plain, rebuilt = _one(2, depth, False).memory, _one(2, depth, True).memory
        inputs = depth * 8 if depth > 1 else 0
        assert sum(plain[:3]) == pytest.approx(2 * 9000 / depth + 700 + inputs)
        assert sum(rebuilt[:3]) == pytest.approx(2 * 9000 / depth + 700 / depth + inputs)
        assert plain.others == pytest.approx(3 * 9000 / depth)


def test_recomputation_takes_a_third_more_where_b_takes_twice_f() -> None:
    assert _one(1, 1, True).time_us / _one(1, 1, False).time_us == pytest.approx(4 / 3)


def test_the_name_of_a_configuration_is_that_of_its_schedule() -> None:
    assert _one(1, 3, False).family == "2bw:every=24"
    assert _one(2, 3, True).family == "2bw:2,recompute,every=12"


def test_a_batch_of_no_whole_micro_batches_is_refused() -> None:
    with pytest.raises(SynthError, match="batch of 5 samples is no whole number"):
        two_bw_plan(PROFILES[2:], 4, 5)
