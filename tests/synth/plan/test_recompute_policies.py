"""Choosing a policy of recomputation for each layer, against all choices of small problems."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from operator import le

import pytest

from synth.costs.partition_costs import partition_costs
from synth.costs.recomputation import FULL, Recomputation
from synth.costs.recomputed_layers import recomputing
from synth.errors import SynthError
from synth.plan.recompute.choice_proof import ChoiceProof
from synth.plan.recompute.choice_search import solve_choosing
from synth.plan.recompute.given_stages import solve_recomputing
from synth.plan.recompute.layer_bounds import bounds_of_every_choice, needed_whatever_is_recomputed
from synth.plan.recompute.layer_choice import with_layers
from synth.plan.recompute.layer_menu import figures, menu
from synth.plan.recompute.menu_search import problems_on_menu
from synth.profile import Profile
from synth.profile.layer_profile import VARIED, LayerVariant, Timing
from synth.schedule.files.check_against_profile import differences
from synth.schedule.files.plan_file import Plan
from synth.schedule.recomputation_rules import MEGATRON, TORCHTITAN
from synth.schedule.recomputed_stages import BACKWARDS
from synth.schedule.verify import verify
from synth.solver.infeasibility import needed_bytes
from synth.solver.options import Part
from synth.solver.problem import Problem
from synth.solver.result import Result
from synth.solver.solver import solve
from tests.sweep import sweep
from tests.synth.effort import counted, exact_alone
from tests.synth.layered import block, invented, problem_of, random_layer, with_variant

# The exact model and what is quick: it decides problems of this size.
EXACT = replace(
    counted(0.1),
    without=frozenset(Part) - {Part.EXACT, Part.FAMILIES, Part.LIST_SCHEDULING, Part.CLOSED_FORMS},
)

POLICIES = (FULL, "ops", "model.py:mine")


def every_choice(layers: range, policies: tuple[str, ...] = POLICIES) -> Iterator[Recomputation]:
    for chosen in product((None, *policies), repeat=len(layers)):
        both = zip(layers, chosen, strict=True)
        yield Recomputation({layer: how for layer, how in both if how is not None})


@pytest.mark.parametrize("policies", [POLICIES[:2], POLICIES])
@pytest.mark.parametrize("seed", sweep(range(16), daily=8))
def test_no_choice_of_policies_is_better_than_all_on_the_menu(
    seed: int, policies: tuple[str, ...]
) -> None:
    draw = random.Random(seed)
    layers = [with_variant(draw, random_layer(draw), *policies[1:]) for _ in range(4)]
    profile = invented(layers)
    stage, sizes = draw.choice([(0, [3, 1]), (1, [1, 3]), (1, [1, 2, 1]), (0, [4])])
    first = sum(sizes[:stage])
    found = menu(profile, first, sizes[stage])
    options = [option.costs for option in found.options]
    for option in found.options:
        true = partition_costs(recomputing(profile, option.layers), sizes).stages[stage]
        assert option.costs == true
    # Of three policies there are too many choices to list all that are not dominated.
    for listed in (found.floors, options) if policies == POLICIES[:2] else (found.floors,):
        for chosen in every_choice(range(first, first + sizes[stage]), policies):
            true = partition_costs(recomputing(profile, chosen), sizes).stages[stage]
            assert any(all(map(le, figures(one), figures(true))) for one in listed), chosen


def tight(seed: int, sizes: tuple[int, ...], num_micro_batches: int) -> Problem:
    """A problem whose cap not every choice keeps."""
    draw = random.Random(seed)
    make = random_layer if seed % 2 else block
    profile = invented([with_variant(draw, make(draw), "ops") for _ in range(sum(sizes))])
    problem = problem_of(profile, sizes, num_micro_batches, 1)
    choices = every_choice(range(sum(sizes)), POLICIES[:2])
    needs = [max(needed_bytes(with_layers(problem, layers))) for layers in choices]
    cap = draw.randint(min(needs) + 2, max(needs) + 10)
    return replace(problem, caps_bytes=(cap,) * problem.num_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sweep([2, 0, 4, 6, 8, 10], daily=1))
def test_the_policies_found_are_the_best_of_all_and_bounds_are_below_every_one(seed: int) -> None:
    problem = tight(seed, (1, 1), 3)
    solved = [
        solve(with_layers(problem, layers), EXACT).value_us
        for layers in every_choice(range(2), POLICIES[:2])
    ]
    rebuilt = (solve_recomputing(problem, stages, EXACT) for stages in ((0,), (1,), (0, 1)))
    values = [us for us in (*solved, *(one.value_us for one in rebuilt)) if us is not None]
    best_us = min(values)
    chosen = solve_choosing(problem, counted(4))
    assert chosen.schedule is not None and chosen.value_us == best_us
    assert chosen.lower_bound_us <= best_us
    layers = chosen.problem.recomputed_layers
    assert chosen.problem.costs == with_layers(problem, layers).costs
    assert verify(chosen.schedule, chosen.problem.costs, problem.caps_bytes)
    assert problem.objective.value_us(bounds_of_every_choice(problem)) <= best_us
    proof = ChoiceProof(problem, counted(1), lambda: 2 * best_us, lambda: False)
    for _ in proof.prove(1):
        pass
    assert proof.bound_us <= best_us


@pytest.mark.parametrize("seed", range(6))
def test_no_policy_needs_less_than_what_is_said_to_be_needed(seed: int) -> None:
    problem = tight(seed, (2, 2), 2)
    least = needed_whatever_is_recomputed(problem)
    for layers in every_choice(range(4), POLICIES[:2]):
        assert all(map(le, least, needed_bytes(with_layers(problem, layers))))


def part_is_better() -> tuple[Profile, Problem]:
    """Stages of which to recompute a part is better than all or nothing: it frees much cheaply."""
    whole = block(random.Random(3))
    longer = {
        kind: us.replace(median_us=us.median_us + 1, p90_us=us.p90_us + 1)
        for kind, us in whole.time_us.items()
    }
    part = LayerVariant(
        time_us={
            kind: longer[kind] if kind in BACKWARDS else whole.time_us[kind] for kind in VARIED
        },
        saved_bytes=whole.saved_bytes // 4,
        saved_w_bytes=whole.saved_w_bytes,
        rise_bytes={
            kind: whole.rise_bytes[kind] + 3 * whole.saved_bytes // 4 * (kind in BACKWARDS)
            for kind in VARIED
        },
    )
    profile = invented([whole.replace(variants={"ops": part})] * 4)
    free = problem_of(profile, (2, 2), 4, 1)
    least, most = (max(needed_bytes(with_layers(free, range(count)))) for count in (4, 0))
    return profile, replace(free, caps_bytes=((least + most) // 2 + 20,) * 2)


def plan_of(profile: Profile, found: Result) -> Plan:
    """The plan of a result, with its limits and the layers that it recomputes."""
    problem, schedule = found.problem, found.schedule
    assert schedule is not None
    layers = problem.recomputed_layers
    return Plan.of(
        profile, (2, 2), schedule, caps_bytes=problem.caps_bytes, recomputed_layers=layers
    )


@cache
def plan_with_policies() -> tuple[Profile, Plan]:
    """A plan that recomputes a part of some layers, which are given and not searched."""
    profile, problem = part_is_better()
    given = with_layers(problem, Recomputation(dict.fromkeys(range(3), "ops")))
    return profile, plan_of(profile, solve(given, exact_alone()))


def test_a_search_recomputes_a_part_where_that_is_better() -> None:
    profile, problem = part_is_better()
    plan = plan_of(profile, solve_choosing(problem, counted(1)))
    assert plan.recompute_policies == {"ops": plan.recomputed_layers}


def test_a_plan_lists_the_layers_of_each_policy_and_is_checked_against_the_profile() -> None:
    profile, plan = plan_with_policies()
    assert plan.recompute_policies == {"ops": plan.recomputed_layers}
    read = Plan.from_json(plan.to_json())
    assert read == plan and read.recomputation == Recomputation(
        dict.fromkeys(plan.recomputed_layers or (), "ops")
    )
    read.check()
    assert not list(differences(read, profile))
    whole = plan.replace(recompute_policies=None)
    assert any("stage" in line for line in differences(whole, profile))


@pytest.mark.parametrize(
    ("policies", "why"),
    [
        ({"ops": [0, 9]}, "one policy each"),
        ({"ops": [0], "mine": [0]}, "one policy each"),
        ({FULL: [0]}, "must not name 'full'"),
    ],
)
def test_a_plan_with_policies_of_no_recomputed_layers_is_refused(
    policies: dict[str, list[int]], why: str
) -> None:
    data = json.loads(plan_with_policies()[1].to_json()) | {"recompute_policies": policies}
    with pytest.raises(SynthError, match=why):
        Plan.from_json(json.dumps(data))


def test_files_of_earlier_versions_have_no_policies() -> None:
    profile, plan = plan_with_policies()
    for record, earlier, key in ((plan, 11, "recompute_policies"), (profile, 6, "variants")):
        data = record.to_data() | {"schema_version": earlier}
        with pytest.raises(SynthError, match=f"{key} came with schema_version {earlier + 1}"):
            type(record).from_json(json.dumps(data))
    assert "variants" not in invented([block(random.Random(1))]).to_json()


def test_no_op_counts_as_shorter_than_where_everything_is_kept() -> None:
    layer = with_variant(random.Random(1), block(random.Random(1)), "ops")
    variant = layer.variants["ops"]
    quick = {kind: Timing.exactly(0) for kind in variant.time_us}
    under = layer.replace(variants={"ops": variant.replace(time_us=quick)}).under("ops")
    assert under.time_us == layer.time_us and under.saved_bytes == variant.saved_bytes


def test_a_policy_that_was_not_measured_is_refused() -> None:
    profile = invented([block(random.Random(1))])
    with pytest.raises(SynthError, match="not measured under the policy 'ops'; it has full: "):
        recomputing(profile, Recomputation({0: "ops"}))


def test_a_frameworks_policy_is_on_its_menu_if_every_layer_has_it() -> None:
    draw = random.Random(2)
    layers = [with_variant(draw, block(draw), "ops", "selective") for _ in range(4)]
    for menu_of, policy in ((TORCHTITAN, "ops"), (MEGATRON, "selective")):
        problem = replace(problem_of(invented(layers), (2, 2), 2, 10**6), layer_menu=menu_of)
        listed = [one.recomputed_layers for one in problems_on_menu(problem)]
        every = Recomputation(dict.fromkeys(range(4), policy))
        assert [one for one in listed if one.of_policies] == [every]
        profile = invented([*layers[:3], block(draw)])
        lacking = replace(problem, profile=profile, costs=partition_costs(profile, (2, 2)))
        assert not any(one.recomputed_layers.of_policies for one in problems_on_menu(lacking))
