"""A bound over all choices of recomputation, in which each stage mixes its choices in any shares.

Recomputation keeps fewer bytes and takes more time. Of each rank the least span is a linear program
(`rank_mixture`), as if some of the micro-batches of a stage had one choice and others another.
Branching over the choices then leaves one for all. The most of all ranks bounds every choice of all
stages, because other stages have the least figures of theirs.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from synth.objective import Spans
from synth.op_kinds import OpKind
from synth.plan.recompute.rank_mixture import MixtureWay, rank_programs
from synth.plan.recompute.stage_choices import (
    StageChoice,
    instance_with,
    least_costs,
    merged_to,
    stage_choices,
)
from synth.plan.recompute.stages import held_stages
from synth.plan.tuning import RECOMPUTE_BOUNDS
from synth.schedule.recomputed_stages import BACKWARDS
from synth.solver.problem import Problem


def bounds_of_mixtures(base: Problem) -> Spans:
    """Return lower bounds of makespan and period over all choices for all stages.

    Args:
        base: the problem without recomputed layers.
    """
    return MixtureBounds(base, stage_choices(base)).bounds()


class MixtureBounds:
    """Bounds over some of the choices of each stage."""

    def __init__(self, base: Problem, choices: Sequence[Sequence[StageChoice]]) -> None:
        """Make the programs of all ranks.

        Args:
            base: the problem without recomputed layers.
            choices: those of `stage_choices`.
        """
        own, ways = [], []
        for stage, each in enumerate(choices):
            floors = [apart(base, stage, one) for one in each if not one.again_us]
            with_r = [apart(base, stage, one) for one in each if one.again_us]
            merged = merged_to(RECOMPUTE_BOUNDS.most_mixed_of_stage, floors)
            own.append(_alike_within_rank(base, stage, [*merged, *with_r]))
            ways.append([*_ways(merged, with_r)])
        seen = [
            instance_with(base, {s: each[min(at, len(each) - 1)] for s, each in enumerate(own)})
            for at in range(max(map(len, own)))
        ]
        self._held = held_stages(base)
        self._places = [
            _places(each, len(of_own)) for each, of_own in zip(choices, own, strict=True)
        ]
        programs = [rank_programs(seen, ways, rank) for rank in range(base.num_ranks)]
        self._programs = tuple(zip(*programs, strict=True))

    def bounds(self) -> Spans:
        """Return the bounds over all choices, each rank by branching."""
        num_held = sum(map(len, self._held))
        most = min(
            RECOMPUTE_BOUNDS.most_branches,
            max(1, RECOMPUTE_BOUNDS.most_branches_of_all // num_held),
        )
        return Spans(*(max(one.least_us(most) for one in ranks) for ranks in self._programs))

    def bounds_of(self, allowed: Mapping[int, Collection[int]], stage: int | None = None) -> Spans:
        """Return the bounds over all mixtures in which some stages have these choices alone.

        Args:
            allowed: by stage, the numbers of its choices.
            stage: if given, only by the ranks that hold it.
        """
        places = {
            one: {self._places[one][choice] for choice in choices}
            for one, choices in allowed.items()
        }
        ranks = [rank for rank, held in enumerate(self._held) if stage is None or stage in held]
        found = (max(of_ranks[r].least_us(1, places) for r in ranks) for of_ranks in self._programs)
        return Spans(*found)


def _places(choices: Sequence[StageChoice], num_places: int) -> list[int]:
    """Return for each choice the place of what it is merged into; those with R come last."""
    num_floors = sum(not one.again_us for one in choices)
    merged = num_places - (len(choices) - num_floors)
    floors, with_r = iter(range(num_floors)), iter(range(merged, num_places))
    return [
        next(with_r) if one.again_us else ((next(floors) + 1) * merged - 1) // num_floors
        for one in choices
    ]


def _ways(floors: Sequence[StageChoice], with_r: Sequence[StageChoice]) -> Iterator[MixtureWay]:
    """Yield the ways of a stage: with some layers recomputed within B, and with R besides."""
    for place, floor in enumerate(floors):
        yield MixtureWay(place, floor.again_us, 0, place)
    for place, one in enumerate(with_r, len(floors)):
        for rebuilt, floor in enumerate(floors):
            yield MixtureWay(place, one.again_us + floor.again_us, one.again_us, rebuilt)


def _alike_within_rank(
    base: Problem, stage: int, choices: Sequence[StageChoice]
) -> list[StageChoice]:
    """Return choices that hold values between two stages of one rank equally long: the least.

    Otherwise what one of these stages holds depends on the other one's choice.
    """
    least = least_costs([one.costs for one in choices])
    untils: dict[str, OpKind] = {}
    if _share_rank(base, stage - 1, stage):
        untils["input_until"] = least.input_until
    if _share_rank(base, stage, stage + 1):
        untils["output_until"] = least.output_until
    return [one._replace(costs=one.costs.replace(**untils)) for one in choices]


def _share_rank(base: Problem, stage: int, after: int) -> bool:
    """Return True if a rank holds two stages in a row of a replica; False beyond the ends."""
    is_inside = stage >= 0 and after < base.costs.num_stages
    return is_inside and any(ranks[stage] == ranks[after] for ranks in base.placement.ranks)


def apart(base: Problem, stage: int, own: StageChoice) -> StageChoice:
    """Return a choice with its recomputation beside B instead of within it."""
    plain_us = base.costs.stages[stage].duration_us
    again_us = min(own.costs.duration_us[kind] - plain_us[kind] for kind in BACKWARDS)
    return StageChoice(own.costs.replace(duration_us=plain_us), own.again_us + again_us)
