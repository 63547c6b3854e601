"""Bounds and least needs whichever layers are recomputed, and whichever stages besides.

What a rank implies for the whole depends on its own stages and on how long the others take at
least, which is where nothing is recomputed. So the least over the choices for a rank's own stages,
and of those the most over all ranks, bounds every choice of all. A stage with an R is the choice
that keeps nothing, and whose rank has R's work besides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from synth.costs.stage_costs import StageCosts
from synth.objective import Spans
from synth.plan.recompute.layer_choice import applies, without_layers
from synth.plan.recompute.layer_menu import menus
from synth.plan.recompute.menu_search import problems_on_menu
from synth.plan.recompute.mixed_choices import apart, bounds_of_mixtures
from synth.plan.recompute.stage_choices import (
    StageChoice,
    instance_with,
    least_costs,
    merged_to,
    stage_choices,
)
from synth.plan.recompute.stages import (
    bounds,
    bounds_of_any_choice,
    bounds_of_links,
    have_fixed_places,
    held_stages,
    relaxed,
)
from synth.plan.tuning import RECOMPUTE_BOUNDS
from synth.solver.bounds.closed_form import rank_bound, rank_bounds, work_bounds
from synth.solver.infeasibility import may_fit, needed_bytes
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.problem import Problem


def bounds_of_every_choice(problem: Problem) -> Spans:
    """Return lower bounds of makespan and period over all choices of layers and stages.

    If the problem's layers are not known, over all choices of stages. With a menu, over the
    choices on it: each has a bound of its own, and the least of them holds for all.
    """
    if not applies(problem):
        return Spans.most([bounds_of_any_choice(problem), bounds_of_mixtures(problem)])
    if problem.layer_menu is not None:
        on_menu = problems_on_menu(without_layers(problem))
        possible = [one for one in on_menu if may_fit(one)]
        return Spans.least(bounds(one, ()) for one in possible or on_menu)
    base = without_layers(problem)
    most_held = max(map(len, held_stages(base)))
    each = int(RECOMPUTE_BOUNDS.most_choices_of_rank ** (1 / most_held))
    if each < 2 or base.caps_bytes is None:
        of_work = work_bounds(relaxed_for_fusion(replace(base, caps_bytes=None)))
        return Spans.most([of_work, bounds_of_mixtures(base)])
    own = [
        merged_to(each, choices if len(choices) <= each else [apart(base, s, c) for c in choices])
        for s, choices in enumerate(stage_choices(base))
    ]
    num_looks = base.num_ranks * max(map(len, own)) ** most_held
    if num_looks <= RECOMPUTE_BOUNDS.most_rank_by_rank or not have_fixed_places(base):
        found = [_of_rank(base, own, rank) for rank in range(base.num_ranks)]
    else:
        found = [*_of_all_ranks(base, own)]
    return Spans.most([*found, bounds_of_mixtures(base), bounds_of_links(base)])


def needed_whatever_is_recomputed(problem: Problem) -> tuple[int, ...]:
    """Return the least memory of each rank with one micro-batch alone, over all choices.

    If ranks hold several stages, each counts with the least of every figure.
    """
    base = without_layers(problem)
    if base.layer_menu is not None:
        return tuple(map(min, zip(*map(needed_bytes, problems_on_menu(base)), strict=True)))
    stages = [_relaxed_at(base, place) for place in range(max(map(len, _floors(base))))]
    if max(map(len, held_stages(base))) > 1:
        stages = [tuple(least_costs(each) for each in zip(*stages, strict=True))]
    found = (
        needed_bytes(replace(base, costs=base.costs.replace(stages=each)), recomputing=True)
        for each in stages
    )
    return tuple(map(min, zip(*found, strict=True)))


def _floors(base: Problem) -> list[tuple[StageCosts, ...]]:
    assert base.profile is not None and base.partition is not None
    return [menu.floors for menu in menus(base.profile, base.partition)]


def _relaxed_at(base: Problem, place: int) -> tuple[StageCosts, ...]:
    """Return the costs of every stage for the choice at a place of its menu, or R before its B."""
    stages = tuple(floors[min(place, len(floors) - 1)] for floors in _floors(base))
    seen = replace(base, costs=base.costs.replace(stages=stages))
    return relaxed(seen, range(base.costs.num_stages)).costs.stages


def _of_rank(base: Problem, own: Sequence[Sequence[StageChoice]], rank: int) -> Spans:
    """Return a rank's least bound over its own choices, all other stages at their least times."""
    held = held_stages(base)[rank]
    return Spans.least(
        rank_bound(instance_with(base, dict(zip(held, chosen, strict=True))), rank)
        for chosen in product(*(own[stage] for stage in held))
    )


def _of_all_ranks(base: Problem, own: Sequence[Sequence[StageChoice]]) -> Iterator[Spans]:
    """Yield the bounds of all ranks' choices at once; recomputation may run at any time."""
    found = []
    held = held_stages(base)
    for places in product(range(max(map(len, own))), repeat=max(map(len, held))):
        chosen = {
            stage: apart(base, stage, own[stage][min(place, len(own[stage]) - 1)])
            for stages in held
            for stage, place in zip(stages, places, strict=False)
        }
        found.append(rank_bounds(instance_with(base, chosen)))
    return (Spans.least(of_rank) for of_rank in zip(*found, strict=True))
