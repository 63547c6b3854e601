"""Bounds and least needs whichever layers are recomputed, and whichever stages besides.

What a rank implies for the whole depends on its own stages and on how long the others take at
least, which is where nothing is recomputed. So the least over the choices for a rank's own stages,
and of those the most over all ranks, bounds every choice of all. A stage with an R is the choice
that keeps nothing, and whose rank has R's work besides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from operator import le
from typing import NamedTuple

from synth.costs.stage_costs import StageCosts
from synth.objective import Spans
from synth.op_kinds import OpKind
from synth.plan.recompute.layer_choice import applies, without_layers
from synth.plan.recompute.layer_menu import menus
from synth.plan.recompute.menu_search import problems_on_menu
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
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.problem import Problem

_BACKWARDS = (OpKind.B, OpKind.BW)


class _Own(NamedTuple):
    """Costs of a stage with some recomputation, and the time of recomputation outside of B."""

    costs: StageCosts
    added_us: int

    @property
    def figures(self) -> tuple[int, ...]:
        """Figures that the closed forms depend on."""
        costs = self.costs
        durations = (costs.duration_us[kind] for kind in _BACKWARDS)
        untils = (costs.input_until.rank_in_chain, costs.output_until.rank_in_chain)
        return (self.added_us, *durations, costs.saved_bytes, costs.saved_w_bytes, *untils)

    def below(self, other: "_Own") -> "_Own":
        """Return costs that are at most those of both."""
        return _Own(_least((self.costs, other.costs)), min(self.added_us, other.added_us))


def bounds_of_every_choice(problem: Problem) -> Spans:
    """Return lower bounds of makespan and period over all choices of layers and stages.

    If the problem's layers are not known, over all choices of stages. With a menu, over the
    choices on it: each has a bound of its own, and the least of them holds for all.
    """
    if not applies(problem):
        return bounds_of_any_choice(problem)
    if problem.layer_menu is not None:
        on_menu = problems_on_menu(without_layers(problem))
        possible = [one for one in on_menu if may_fit(one)]
        return Spans.least(bounds(one, ()) for one in possible or on_menu)
    base = without_layers(problem)
    most_held = max(map(len, held_stages(base)))
    each = int(RECOMPUTE_BOUNDS.most_choices_of_rank ** (1 / most_held))
    if each < 2 or base.caps_bytes is None:
        return work_bounds(relaxed_for_fusion(replace(base, caps_bytes=None)))
    own = [_merged_to(each, choices) for choices in _choices(base)]
    num_looks = base.num_ranks * max(map(len, own)) ** most_held
    if num_looks <= RECOMPUTE_BOUNDS.most_rank_by_rank or not have_fixed_places(base):
        found = [_of_rank(base, own, rank) for rank in range(base.num_ranks)]
    else:
        found = [*_of_all_ranks(base, own)]
    return Spans.most([*found, bounds_of_links(base)])


def needed_whatever_is_recomputed(problem: Problem) -> tuple[int, ...]:
    """Return the least memory of each rank with one micro-batch alone, over all choices.

    If ranks hold several stages, each counts with the least of every figure.
    """
    base = without_layers(problem)
    if base.layer_menu is not None:
        return tuple(map(min, zip(*map(needed_bytes, problems_on_menu(base)), strict=True)))
    stages = [_relaxed_at(base, place) for place in range(_num_places(base))]
    if max(map(len, held_stages(base))) > 1:
        stages = [tuple(_least(each) for each in zip(*stages, strict=True))]
    found = (
        needed_bytes(replace(base, costs=base.costs.replace(stages=each)), recomputing=True)
        for each in stages
    )
    return tuple(map(min, zip(*found, strict=True)))


def _floors(base: Problem) -> list[tuple[StageCosts, ...]]:
    assert base.profile is not None and base.partition is not None
    return [menu.floors for menu in menus(base.profile, base.partition)]


def _num_places(base: Problem) -> int:
    return max(map(len, _floors(base)))


def _relaxed_at(base: Problem, place: int) -> tuple[StageCosts, ...]:
    """Return the costs of every stage for the choice at a place of its menu, or R before its B."""
    stages = tuple(floors[min(place, len(floors) - 1)] for floors in _floors(base))
    seen = replace(base, costs=base.costs.replace(stages=stages))
    return relaxed(seen, range(base.costs.num_stages)).costs.stages


def _choices(base: Problem) -> list[list[_Own]]:
    """Return for each stage the choices of its layers, and R."""
    kept_by_none = relaxed(base, range(base.costs.num_stages)).costs.stages
    found = []
    for floors, light in zip(_floors(base), kept_by_none, strict=True):
        rebuilt = _Own(_least((light, *floors)), light.duration_us[OpKind.R])
        found.append([*(_Own(floor, 0) for floor in floors), rebuilt])
    return found


def _merged_to(most: int, choices: Sequence[_Own]) -> list[_Own]:
    """Return at most this many choices: neighbours are replaced by one that is above neither."""
    left: list[_Own] = []
    for own in sorted(choices, key=_by_time):
        if not any(all(map(le, better.figures, own.figures)) for better in left):
            left.append(own)
    count = min(most, len(left))
    ends = [place * len(left) // count for place in range(count + 1)]
    return [reduce(_Own.below, left[ends[i] : ends[i + 1]]) for i in range(count)]


def _by_time(own: _Own) -> tuple[int, ...]:
    return (own.added_us + own.costs.duration_us[OpKind.B], *own.figures)


def _of_rank(base: Problem, own: Sequence[Sequence[_Own]], rank: int) -> Spans:
    """Return a rank's least bound over its own choices, all other stages at their least times."""
    held = held_stages(base)[rank]
    return Spans.least(
        _with(base, dict(zip(held, chosen, strict=True))).bound_of(rank)
        for chosen in product(*(own[stage] for stage in held))
    )


def _of_all_ranks(base: Problem, own: Sequence[Sequence[_Own]]) -> Iterator[Spans]:
    """Yield the bounds of all ranks' choices at once; recomputation may run at any time."""
    found = []
    held = held_stages(base)
    for places in product(range(max(map(len, own))), repeat=max(map(len, held))):
        chosen = {
            stage: _apart(base, stage, own[stage][min(place, len(own[stage]) - 1)])
            for stages in held
            for stage, place in zip(stages, places, strict=False)
        }
        found.append(_with(base, chosen).bounds())
    return (Spans.least(of_rank) for of_rank in zip(*found, strict=True))


def _apart(base: Problem, stage: int, own: _Own) -> _Own:
    """Return a choice with its recomputation beside B instead of within it."""
    plain_us = base.costs.stages[stage].duration_us
    again_us = min(own.costs.duration_us[kind] - plain_us[kind] for kind in _BACKWARDS)
    costs = own.costs.replace(duration_us=plain_us)
    return _Own(costs, own.added_us + again_us)


class _Relaxed(NamedTuple):
    """An instance, and the work of each rank that it leaves out, in µs."""

    instance: Instance
    added_us: list[int]

    def bound_of(self, rank: int) -> Spans:
        """Return the closed forms of one rank."""
        return rank_bound(self.instance, rank, self.added_us[rank])

    def bounds(self) -> list[Spans]:
        """Return the closed forms of each rank."""
        return rank_bounds(self.instance, self.added_us)


def _with(base: Problem, chosen: dict[int, _Own]) -> _Relaxed:
    """Return the problem as bounds see it, with chosen costs of some stages."""
    added = [0] * base.num_ranks
    for replica, ranks in enumerate(base.placement.ranks):
        _, count = base.share(replica)
        for stage, own in chosen.items():
            added[ranks[stage]] += count * own.added_us
    stages = tuple(
        chosen[stage].costs if stage in chosen else costs
        for stage, costs in enumerate(base.costs.stages)
    )
    seen = replace(base, costs=base.costs.replace(stages=stages))
    return _Relaxed(relaxed_for_fusion(seen), added)


def _least(stages: Sequence[StageCosts]) -> StageCosts:
    """Return costs in which every figure is the least of several."""
    return stages[0].replace(
        duration_us=_least_of_each([stage.duration_us for stage in stages]),
        rise_bytes=_least_of_each([stage.rise_bytes for stage in stages]),
        saved_bytes=min(stage.saved_bytes for stage in stages),
        saved_w_bytes=min(stage.saved_w_bytes for stage in stages),
        input_until=min((stage.input_until for stage in stages), key=_in_chain),
        output_until=min((stage.output_until for stage in stages), key=_in_chain),
    )


def _least_of_each(tables: Sequence[dict[OpKind, int]]) -> dict[OpKind, int]:
    return {kind: min(table[kind] for table in tables) for kind in tables[0]}


def _in_chain(kind: OpKind) -> int:
    return kind.rank_in_chain
