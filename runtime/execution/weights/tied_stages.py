"""Tied parameters with weight passing: each stage has its own, equal at all homes.

A home adds its stage's gradient of a tied parameter to those of the other stages' homes, ahead of
its STEP, so that all of them make the same update. Of several homes the k-th one of each stage has
the same share of the parameter, and adds it to those of the other stages' k-th homes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from synth.errors import SynthError
from synth.schedule.weight_flow import WeightFlow

from ..stage.stage import Stage
from ..transport.rank_group import RankGroup
from .kept_stage import KeptStage

Tied = Mapping[str, Sequence[nn.Parameter]]


class TiedPlace(NamedTuple):
    """The place of a tied parameter: the stage, and its number among the stage's parameters."""

    stage: int
    number: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TiedStages:
    """The places of each tied parameter, by name."""

    places: Mapping[str, tuple[TiedPlace, ...]]

    @classmethod
    def of(
        cls, group: RankGroup, stages: Mapping[int, Stage], tied: Tied, flow: WeightFlow
    ) -> "TiedStages":
        """Find the places of all ranks; each rank calls this with those of its stages.

        Raises:
            SynthError: a parameter is of no stage; ranks of a stage name different ones; its stages
                have shapes or numbers of homes that differ.
        """
        mine = {name: _places(name, each, stages) for name, each in tied.items()}
        everyones: list[tuple[dict[str, list[TiedPlace]], list[int]]]
        everyones = group.gather((mine, sorted(stages)))
        names = sorted({name for theirs, _ in everyones for name in theirs})
        found = {
            n: sorted({p for theirs, _ in everyones for p in theirs.get(n, ())}) for n in names
        }
        for name, places in found.items():
            _check(name, places, everyones, flow)
        return cls({name: tuple(places) for name, places in found.items() if places[1:]})

    def of_stage(self, stage: int) -> frozenset[int]:
        """The numbers of a stage's parameters that are tied."""
        all_places = (place for places in self.places.values() for place in places)
        return frozenset(place.number for place in all_places if place.stage == stage)

    def at_home(
        self, flow: WeightFlow, kept: Mapping[int, KeptStage], rank: int
    ) -> dict[str, tuple[nn.Parameter, ...]]:
        """By a name for each share, the tied parameters that a rank updates."""
        found: dict[str, tuple[nn.Parameter, ...]] = {}
        for name, places in self.places.items():
            for place in places:
                homes = flow.homes[place.stage]
                if rank in homes:
                    share = f", share {homes.index(rank)} of {len(homes)}" if homes[1:] else ""
                    updated = kept[place.stage].updated_parameter(place.number)
                    found[name + share] = (*found.get(name + share, ()), updated)
        return found


def _places(
    name: str, tied: Sequence[nn.Parameter], stages: Mapping[int, Stage]
) -> list[TiedPlace]:
    where = {
        id(parameter): TiedPlace(stage, number, tuple(parameter.shape))
        for stage, each in stages.items()
        for number, parameter in enumerate(each.module.parameters())
    }
    if any(id(parameter) not in where for parameter in tied):
        raise SynthError(
            f"what is tied as {name!r} is no parameter of this rank's stages "
            f"{', '.join(map(str, sorted(stages)))}; give parameters of the modules themselves"
        )
    return [where[id(parameter)] for parameter in tied]


def _check(
    name: str,
    places: Sequence[TiedPlace],
    everyones: Sequence[tuple[Mapping[str, Sequence[TiedPlace]], Sequence[int]]],
    flow: WeightFlow,
) -> None:
    for rank, (theirs, stages) in enumerate(everyones):
        unnamed = sorted(
            {p.stage for p in places if p.stage in stages} - {p.stage for p in theirs.get(name, ())}
        )
        if unnamed:
            raise SynthError(
                f"rank {rank} holds stage {unnamed[0]}, and does not name the parameter of it that "
                f"another rank ties as {name!r}; with weight passing each rank names those of "
                f"all its stages: tied={{{name!r}: [first, second]}}"
            )
    for attribute, found in (
        ("shapes", {place.shape for place in places}),
        ("numbers of homes", {len(flow.homes[place.stage]) for place in places}),
    ):
        if len(found) > 1:
            raise SynthError(
                f"the stages {', '.join(str(place.stage) for place in places)} that are tied as "
                f"{name!r} have different {attribute} ({', '.join(sorted(map(str, found)))}); "
                f"untie them"
            )
