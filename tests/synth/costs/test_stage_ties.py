"""Tied parameters: what a stage, a rank and a search count once."""

import random
from collections import Counter

import pytest

import synth as api
from synth.costs.costs import Costs
from synth.costs.partition_costs import partition_costs
from synth.costs.stage_ties import StageTie
from synth.errors import SynthError
from synth.families import generate
from synth.layer_times import LayerTimes
from synth.op_kinds import MEASURED, OpKind
from synth.plan.recompute.layer_menu import menu
from synth.plan.weight_passing.data_parallel_plan import sharing_optimizer
from synth.profile import Profile
from synth.profile.tied_parameters import TiedParameters
from synth.schedule.files.check_against_profile import differences
from synth.schedule.files.plan_file import Plan
from synth.schedule.files.scaled import scaled
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes, static_bytes
from synth.schedule.simulate import simulate
from synth.solver.infeasibility import find_shortage, needed_bytes, smallest_limit_bytes
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.sweep import sweep
from tests.synth.costs.test_partition_costs import profile_of, random_layer
from tests.synth.effort import counted
from tests.synth.odd_problems import odd_costs

STEP = OpKind.STEP


def odd_profile(seed: int, tied: tuple[tuple[int, ...], ...], num_layers: int = 8) -> Profile:
    """Random layers, of which some share 100 bytes for each of these lists of layers."""
    rng = random.Random(seed)
    shared = Counter(layer for layers in tied for layer in layers)
    layers = [random_layer(rng) for _ in range(num_layers)]
    for place, count in shared.items():
        layer = layers[place]
        step = layer.time_us[STEP].median_us + 40 * count
        layers[place] = layer.replace(
            parameter_bytes=layer.parameter_bytes + 100 * count,
            gradient_bytes=layer.gradient_bytes + 100 * count,
            optimizer_bytes=layer.optimizer_bytes + 200 * count,
            time_us={
                **layer.time_us,
                STEP: {"median_us": step, "p10_us": step, "p90_us": step, "n": 1},
            },
        )
    ties = tuple(
        TiedParameters(
            layers=tuple(f"l{layer}" for layer in layers_of_tie),
            parameter_bytes=100,
            gradient_bytes=100,
            optimizer_bytes=200,
            step_us=40,
        )
        for layers_of_tie in tied
    )
    return profile_of(layers).replace(tied_parameters=ties)


def test_a_stage_counts_what_its_layers_share_once() -> None:
    profile = odd_profile(0, ((0, 3, 7),))
    apart, together = (partition_costs(profile, sizes) for sizes in ((1, 2, 1, 3, 1), (4, 4)))
    whole = sum(stage.static_bytes for stage in apart.stages)
    assert sum(stage.static_bytes for stage in together.stages) == whole - 400
    assert (
        together.stages[0].gradient_bytes
        == sum(profile.layer_profile(place).gradient_bytes for place in range(4)) - 100
    )
    assert together.ties == (StageTie(stages=(0, 1), static_bytes=400, step_us=40),)
    assert apart.ties == (StageTie(stages=(0, 2, 4), static_bytes=400, step_us=40),)
    assert partition_costs(profile, (8,)).ties == ()
    steps = [profile.layer_profile(place).time_us[STEP].median_us for place in range(8)]
    assert partition_costs(profile, (8,)).stages[0].duration_us[STEP] == round(sum(steps) - 80)


def test_a_rank_reduces_what_its_layers_share_once() -> None:
    # Embedding and head reduce in 40 and 50 µs, 30 of which are the table's; two blocks in 5 each.
    rng = random.Random(0)
    reduce_us = (40.0, 5.0, 5.0, 50.0)
    profile = profile_of([random_layer(rng).replace(reduce_us=us) for us in reduce_us])
    tied = TiedParameters(
        layers=("l0", "l3"), parameter_bytes=0, gradient_bytes=0, optimizer_bytes=0, reduce_us=30.0
    )
    profile = profile.replace(tied_parameters=(tied,))
    one = partition_costs(profile, (4,))
    assert one.stages[0].reduce_us == 40 + 5 + 5 + 50 - 30
    # On one rank of a V the first stage reduces the table, and the last one the rest of the head.
    costs = partition_costs(profile, (1, 1, 1, 1))
    assert [stage.reduce_us for stage in costs.stages] == [40, 5, 5, 50]
    where = placement("v", 2)
    assert [Problem(costs, where, 2).reduction_us(stage) for stage in range(4)] == [40, 5, 5, 20]
    lowered = lower(generate("zb-v", 2, 4), costs)
    found = sorted((each.stage, each.duration_us) for each in lowered.collectives)
    assert found == [(0, 40), (1, 5), (2, 5), (3, 20)]
    # On ranks of their own both reduce it.
    assert Problem(costs, placement("linear", 4), 2).reduction_us(3) == 50
    assert costs.without_reductions().ties[0].reduce_us == 0
    again = Profile.model_validate_json(profile.model_dump_json())
    assert again.tied_parameters == (tied,)


def test_a_backward_holds_the_sum_of_gradients_between_the_layers_that_share() -> None:
    profile = odd_profile(1, ((2, 5),))
    alone = profile.replace(tied_parameters=None)
    found, without = (partition_costs(p, (8,)).stages[0] for p in (profile, alone))
    assert found.rise_bytes[OpKind.B] == without.rise_bytes[OpKind.B]
    for kind, most in ((OpKind.BW, 200), (OpKind.W, 100)):
        assert 0 <= found.rise_bytes[kind] - without.rise_bytes[kind] <= most
    # Where the layer itself takes the most, its gradient, the sum and the new sum are there.
    layer = profile.layer_profiles["p2"]
    rises = {**layer.rise_bytes, OpKind.BW: 10_000, OpKind.W: 10_000}
    high = {**profile.layer_profiles, "p2": layer.replace(rise_bytes=rises, inner_rise_bytes={})}
    found, without = (
        partition_costs(p.replace(layer_profiles=high), (8,)).stages[0] for p in (profile, alone)
    )
    assert found.rise_bytes[OpKind.BW] - without.rise_bytes[OpKind.BW] == 200
    assert found.rise_bytes[OpKind.W] - without.rise_bytes[OpKind.W] == 100


def resolved(costs: Costs, where: Placement) -> Costs:
    """The same without ties, for a placement on which each stage has the same stages beside it."""
    stages = list(costs.stages)
    for held in where.held:
        seen: set[int] = set()
        for stage, _ in held:
            for tie in costs.ties:
                if stage in tie.stages and seen.intersection(tie.stages):
                    own = stages[stage]
                    stages[stage] = own.replace(
                        static_bytes=costs.stages[stage].static_bytes - tie.static_bytes,
                        duration_us={
                            **own.duration_us,
                            STEP: costs.stages[stage].duration_us[STEP] - tie.step_us,
                        },
                        reduce_us=costs.stages[stage].reduce_us - tie.reduce_us,
                    )
            seen.add(stage)
    return Costs(stages=tuple(stages), links=costs.links)


def tied_costs(rng: random.Random, where: Placement) -> Costs:
    """Odd costs whose first and last stage share 50 bytes, and 3 and 7 µs."""
    costs = odd_costs(rng, where.num_stages, where.num_ranks)
    last = where.num_stages - 1
    stages = list(costs.stages)
    for place in (0, last):
        own = stages[place]
        stages[place] = own.replace(
            static_bytes=own.static_bytes + 50,
            duration_us={**own.duration_us, STEP: own.duration_us[STEP] + 3},
            reduce_us=own.reduce_us + 7,
        )
    tie = StageTie(stages=(0, last), static_bytes=50, step_us=3, reduce_us=7)
    return Costs(stages=tuple(stages), links=costs.links, ties=(tie,))


PLACEMENTS = ["v", "bidirectional", "looped:2", "linear"]


@pytest.mark.parametrize("name", PLACEMENTS)
def test_the_needs_of_ranks_count_what_they_share_once(name: str) -> None:
    where = placement(name, 2)
    for seed in range(10):
        costs = tied_costs(random.Random(seed), where)
        alone = resolved(costs, where)
        assert (alone.stages != costs.stages) == (name in ("v", "bidirectional"))
        problem, other = (Problem(each, where, 2) for each in (costs, alone))
        assert relaxed_memory(problem) == relaxed_memory(other)
        assert needed_bytes(problem) == needed_bytes(other)
        assert smallest_limit_bytes(problem) == smallest_limit_bytes(other)
        caps = needed_bytes(other)
        for over in (0, 1):
            asked = Problem(costs, where, 2, tuple(cap - over for cap in caps))
            assert (find_shortage(asked) is None) == (over == 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("seed", range(2))
def test_a_search_finds_and_proves_the_same_as_on_costs_without_what_is_shared(
    name: str, seed: int
) -> None:
    where = placement(name, 2)
    costs = tied_costs(random.Random(seed), where)
    caps = (smallest_limit_bytes(Problem(costs, where, 2)),) * where.num_ranks
    found, expected = (
        solve(Problem(each, where, 2, caps), counted(0.1))
        for each in (costs, resolved(costs, where))
    )
    assert found.schedule == expected.schedule and found.schedule is not None
    assert (found.value_us, found.lower_bound_us) == (expected.value_us, expected.lower_bound_us)
    assert found.peak_bytes == expected.peak_bytes


@pytest.mark.parametrize("name", ["v-half", "chimera", "interleaved:2", "1f1b"])
def test_memory_and_times_count_what_a_rank_shares_once(name: str) -> None:
    schedule = generate(name, 4, 8)
    costs = tied_costs(random.Random(7), schedule.placement)
    lowered, other = (
        lower(schedule, each) for each in (costs, resolved(costs, schedule.placement))
    )
    assert peak_bytes(lowered) == peak_bytes(other)
    assert simulate(lowered).makespan_us == simulate(other).makespan_us


@pytest.mark.parametrize("name", ["weipipe", "zero1:1"])
def test_with_weight_passing_each_stage_has_parameters_of_its_own(name: str) -> None:
    profile = odd_profile(3, ((0, 7),))
    schedule = generate(name, 2, 4)
    num_stages = schedule.placement.num_stages
    sizes = (8 - num_stages + 1, *(1 for _ in range(num_stages - 1)))
    costs = partition_costs(profile, sizes)
    assert costs.ties
    for rank in range(2):
        found = static_bytes(lower(schedule, costs), rank)
        assert found == static_bytes(lower(schedule, costs.untied()), rank)


def test_a_plan_has_its_ties_and_is_checked_against_the_profile() -> None:
    profile = odd_profile(4, ((0, 7), (1, 2)))
    schedule = generate("v-half", 2, 4)
    plan = Plan.of(profile, (2, 2, 2, 2), schedule)
    assert "ties" in plan.to_data()["costs"]
    read = Plan.from_json(plan.to_json())
    assert read == plan
    read.check()
    assert list(differences(plan, profile)) == []
    assert any("ties" in each for each in differences(plan, profile.replace(tied_parameters=None)))
    assert [tie.static_bytes for tie in scaled(plan, sizes=0.5).costs.ties] == [200, 200]
    untied = Plan.of(profile.replace(tied_parameters=None), (2, 2, 2, 2), schedule)
    assert "ties" not in untied.to_data()["costs"]
    assert untied.claim.peak_bytes[0] >= plan.claim.peak_bytes[0] + 400


def test_a_tie_names_stages_that_have_its_bytes() -> None:
    costs = odd_costs(random.Random(0), 4, 2)
    for stages, num_bytes, message in (
        ((0, 4), 1, "a tie names the stages 0, 4 of 4"),
        ((2, 1), 1, "name each once, in forward order"),
        ((0, 1), 99, "stage 0 has .* static bytes, a tie of it 99"),
    ):
        tie = StageTie(stages=stages, static_bytes=num_bytes)
        with pytest.raises(ValueError, match=message):
            costs.replace(ties=(tie,))


@pytest.mark.parametrize("seed", sweep(range(20), daily=8))
@pytest.mark.parametrize("count", [2, 3, 8])
def test_shares_of_layers_are_at_most_the_share_of_their_stage(seed: int, count: int) -> None:
    rng = random.Random(seed)
    layers = tuple(sorted(rng.sample(range(8), rng.randint(2, 8))))
    check_shares(odd_profile(seed, (layers, (1, 2), (2, 5))), count)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("own_bytes", [0, 1, 5])
@pytest.mark.parametrize(
    "layers",
    [((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 1), (0, 1), (2, 3)), ((0, 7), (0, 3), (3, 7))],
)
def test_layers_of_one_profile_count_their_own_ties(
    layers: tuple[tuple[int, int], ...], own_bytes: int, count: int
) -> None:
    tied_bytes, most = 7, max(Counter(place for pair in layers for place in pair).values())
    block = LayerTimes(
        name="block",
        count=8,
        forward_us=100,
        backward_us=200,
        parameter_bytes=10,
        optimizer_bytes=own_bytes + most * tied_bytes,
        output_bytes=1,
        saved_bytes=1,
    )
    profile = Profile.from_times("blocks", [block])
    names = [layer.name for layer in profile.layers]
    ties = tuple(
        TiedParameters(
            layers=tuple(names[place] for place in pair),
            parameter_bytes=1,
            gradient_bytes=1,
            optimizer_bytes=tied_bytes,
        )
        for pair in layers
    )
    check_shares(profile.replace(tied_parameters=ties), count)


@pytest.mark.slow
def test_with_ties_the_bound_for_all_partitions_holds_for_each() -> None:
    layers = [
        LayerTimes(
            name=name,
            count=count,
            forward_us=forward_us,
            backward_us=2 * forward_us,
            step_us=10,
            parameter_bytes=1000,
            output_bytes=100,
            saved_bytes=100,
        )
        for name, count, forward_us in (("block", 8, 100), ("thin", 16, 10))
    ]
    profile = Profile.from_times("thin-blocks", layers)
    names = [layer.name for layer in profile.layers]
    one = TiedParameters(
        layers=names[:2],
        parameter_bytes=1000,
        gradient_bytes=1000,
        optimizer_bytes=2000,
        step_us=10,
    )
    ties = (one.replace(layers=tuple(names[at : at + 2])) for at in range(8, 24, 2))
    profile = profile.replace(tied_parameters=tuple(ties))
    found, given = (
        api.solve(
            profile,
            ranks=2,
            micro_batches=4,
            data_parallel=4,
            mem_limit=34_000,
            placement="linear",
            recompute="none",
            partition=partition,
            time_limit=1,
            workers=1,
        )
        for partition in ("auto", (5, 19))
    )
    assert found.claim.lower_bound_us is not None
    assert found.claim.lower_bound_us <= given.claim.makespan_us
    # A search in which each layer counts the ties of all layers of its profile is 69 % slower.
    assert found.claim.makespan_us <= 1.2 * given.claim.makespan_us


def check_shares(profile: Profile, count: int) -> None:
    """Check that the shares of layers bound each stage's share from below, but for rounding."""
    shared = sharing_optimizer(profile, count)
    for first in range(8):
        for end in range(first + 1, 9):
            sizes = [size for size in (first, end - first, 8 - end) if size]
            stage = int(first > 0)
            whole = partition_costs(profile, sizes).stages[stage]
            kept = whole.parameter_bytes + whole.gradient_bytes
            share = -(-(whole.static_bytes - kept) // count)
            found = partition_costs(shared, sizes).stages[stage].static_bytes - kept
            num_parts = end - first + len(profile.tied_parameters or ())
            assert share - num_parts <= found <= share


@pytest.mark.parametrize("seed", range(10))
def test_the_menu_of_recomputed_layers_counts_them_once(seed: int) -> None:
    profile = odd_profile(seed, ((1, 3),))
    plain = partition_costs(profile, (1, 4, 3)).stages[1]
    found = menu(profile, 1, 4)
    for costs in (*(option.costs for option in found.options), *found.floors):
        assert costs.static_bytes == plain.static_bytes
        assert costs.duration_us[STEP] == plain.duration_us[STEP]
    assert found.options[0].costs == plain
    for kind in MEASURED:
        least = min(option.costs.rise_bytes[kind] for option in found.options)
        assert min(floor.rise_bytes[kind] for floor in found.floors) <= least


def test_tied_parameters_are_a_part_of_layers_that_exist() -> None:
    profile = odd_profile(0, ((0, 3),))
    assert profile.tied_parameters is not None
    (tied,) = profile.tied_parameters
    for change, message in (
        ({"layers": ("l0", "head")}, "tied parameters name layer 'head'"),
        ({"layers": ("l3", "l0")}, "name each once, in the order of the model"),
        ({"parameter_bytes": 999}, "999 of them tied"),
    ):
        with pytest.raises(ValueError, match=message):
            profile.replace(tied_parameters=(tied.replace(**change),))
    data = profile.to_data() | {"schema_version": 4}
    with pytest.raises(SynthError, match="tied_parameters came with schema_version 5"):
        Profile.model_validate_file(data, "old.json")
    assert profile.fingerprint() != profile.replace(tied_parameters=None).fingerprint()
