"""Bounds and least needs whichever layers are recomputed, and whichever stages besides.

What a rank implies for the whole depends on its own stages and on how long the others take at
least, which is where nothing is recomputed. So the least over the choices for a rank's own stages,
and of those the most over all ranks, bounds every choice of all. A stage with an R is the choice
that keeps nothing, and whose rank has R's work besides.
"""

from dataclasses import replace

from synth.costs.stage_costs import StageCosts
from synth.objective import Spans
from synth.plan.recompute.layer_choice import applies, without_layers
from synth.plan.recompute.layer_menu import menus
from synth.plan.recompute.menu_search import problems_on_menu
from synth.plan.recompute.mixed_choices import bounds_of_mixtures
from synth.plan.recompute.stage_choices import least_costs
from synth.plan.recompute.stages import (
    bounds,
    bounds_of_any_choice,
    bounds_of_links,
    held_stages,
    relaxed,
)
from synth.solver.bounds.closed_form import work_bounds
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
    if base.caps_bytes is None:
        return work_bounds(relaxed_for_fusion(base))
    return Spans.most([bounds_of_mixtures(base), bounds_of_links(base)])


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
