"""The choices of recomputation of each stage as bounds see them: least costs, and R's work."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import le
from typing import NamedTuple

from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.plan.recompute.layer_choice import applies
from synth.plan.recompute.layer_menu import menus
from synth.plan.recompute.stages import relaxed
from synth.schedule.recomputed_stages import BACKWARDS
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.problem import Problem


class StageChoice(NamedTuple):
    """A stage with some recomputation.

    Attributes:
        costs: with the layers recomputed within B.
        again_us: the time of recomputation apart from B, as an op R.
    """

    costs: StageCosts
    again_us: int = 0

    @property
    def figures(self) -> tuple[int, ...]:
        """Times and bytes kept, on which closed forms depend; less is never worse."""
        costs = self.costs
        durations = (costs.duration_us[kind] for kind in BACKWARDS)
        untils = (costs.input_until.rank_in_chain, costs.output_until.rank_in_chain)
        return (self.again_us, *durations, costs.saved_bytes, costs.saved_w_bytes, *untils)

    @property
    def backward_us(self) -> int:
        """The time of B and of all recomputation."""
        return self.again_us + self.costs.duration_us[OpKind.B]

    def below(self, other: "StageChoice") -> "StageChoice":
        """Return a choice that is above neither in any figure; possibly no real one."""
        return StageChoice(
            least_costs((self.costs, other.costs)), min(self.again_us, other.again_us)
        )


def stage_choices(base: Problem) -> list[list[StageChoice]]:
    """Return for each stage figures that no choice of its layers is below, and R; fastest first.

    Args:
        base: the problem without recomputed layers. If its layers are not known, a stage recomputes
            as a whole or not at all.
    """
    kept_by_none = relaxed(base, range(base.costs.num_stages)).costs.stages
    found = []
    for floors, light in zip(_floors(base), kept_by_none, strict=True):
        least = least_costs((light, *floors))
        rebuilt = StageChoice(least, least.duration_us[OpKind.R])
        found.append(_undominated([*map(StageChoice, floors), rebuilt]))
    return found


def merged_to(most: int, choices: Sequence[StageChoice]) -> list[StageChoice]:
    """Return at most this many choices: neighbours are replaced by one that is above neither."""
    count = min(most, len(choices))
    ends = [place * len(choices) // count for place in range(count + 1)]
    return [reduce(StageChoice.below, choices[ends[i] : ends[i + 1]]) for i in range(count)]


def instance_with(base: Problem, chosen: Mapping[int, StageChoice]) -> Instance:
    """Return the problem as bounds see it, with choices for some stages."""
    stages = tuple(
        chosen[stage].costs if stage in chosen else costs
        for stage, costs in enumerate(base.costs.stages)
    )
    instance = relaxed_for_fusion(replace(base, costs=base.costs.replace(stages=stages)))
    return instance.with_again({stage: one.again_us for stage, one in chosen.items()})


def least_costs(stages: Sequence[StageCosts]) -> StageCosts:
    """Return costs in which every figure is the least of several."""
    return stages[0].replace(
        duration_us=_least_of_each([stage.duration_us for stage in stages]),
        rise_bytes=_least_of_each([stage.rise_bytes for stage in stages]),
        saved_bytes=min(stage.saved_bytes for stage in stages),
        saved_w_bytes=min(stage.saved_w_bytes for stage in stages),
        input_until=min((stage.input_until for stage in stages), key=_in_chain),
        output_until=min((stage.output_until for stage in stages), key=_in_chain),
        light_rise_bytes=min(stage.light_rise for stage in stages),
    )


def _floors(base: Problem) -> list[tuple[StageCosts, ...]]:
    if not applies(base):
        return [(stage,) for stage in base.costs.stages]
    assert base.profile is not None and base.partition is not None
    return [menu.floors for menu in menus(base.profile, base.partition)]


def _undominated(choices: Sequence[StageChoice]) -> list[StageChoice]:
    """Leave out choices that another one dominates, which takes over what they need less of."""
    left: list[StageChoice] = []
    for choice in sorted(choices, key=lambda one: (one.backward_us, *one.figures)):
        better = (at for at, one in enumerate(left) if all(map(le, one.figures, choice.figures)))
        place = next(better, None)
        if place is None:
            left.append(choice)
        else:
            left[place] = left[place].below(choice)
    return left


def _least_of_each(tables: Sequence[dict[OpKind, int]]) -> dict[OpKind, int]:
    return {kind: min(table[kind] for table in tables) for kind in tables[0]}


def _in_chain(kind: OpKind) -> int:
    return kind.rank_in_chain
