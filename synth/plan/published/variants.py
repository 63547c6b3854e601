"""Variants of a published schedule: its cut, and the layers that B recomputes; their costs."""

from collections.abc import Iterator
from enum import Enum
from itertools import accumulate, pairwise
from typing import NamedTuple

from synth.costs.costs import Costs
from synth.costs.recomputed_layers import recomputing
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.tuning import BEST_VARIANT
from synth.profile import Profile
from synth.schedule.model import Placement

Sizes = tuple[int, ...]


class RecomputationRule(NamedTuple):
    """A way in which frameworks choose the layers to recompute.

    - `ALL`: every layer: full recomputation, `--recompute-method uniform` with one layer
    - `OF_MODEL`: one layer of n, counted over the model
    - `OF_RANK`: every n-th layer of a rank, counted through its stages, as torchtitan's
      `selective_ac_option` does
    - `OF_STAGE`: the first n layers of each stage, Megatron-LM's `--recompute-method block`
    """

    kind: "RecomputationKind"
    number: int = 1

    @property
    def words(self) -> str:
        """The layers in words."""
        n = self.number
        first = f"{n} layers" if n > 1 else "layer"
        return {
            RecomputationKind.ALL: "all layers",
            RecomputationKind.OF_MODEL: f"one layer of {n}",
            RecomputationKind.OF_RANK: f"every {_ordinal(n)} layer of a rank",
            RecomputationKind.OF_STAGE: f"the first {first} of each stage",
        }[self.kind]

    def layers(self, sizes: Sizes, where: Placement) -> tuple[int, ...]:
        """Return the layers of a cut, by their places in the model."""
        runs = [range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        if self.kind == RecomputationKind.OF_STAGE:
            return tuple(at for run in runs for at in run[: self.number])
        if self.kind == RecomputationKind.OF_RANK:
            found: set[int] = set()
            for held in where.held:
                own = [at for stage in sorted({stage for stage, _ in held}) for at in runs[stage]]
                found.update(own[self.number - 1 :: self.number])
            return tuple(sorted(found))
        return tuple(range(0, sum(sizes), self.number))


class RecomputationKind(Enum):
    """The kinds of `RecomputationRule`."""

    ALL = "all"
    OF_MODEL = "of the model"
    OF_RANK = "of a rank"
    OF_STAGE = "of a stage"


def _ordinal(number: int) -> str:
    return "2nd" if number == 2 else "3rd" if number == 3 else f"{number}th"


class Variant(NamedTuple):
    """A cut, and the rule by which layers are recomputed; None: none are."""

    sizes: Sizes
    rule: RecomputationRule | None = None

    def layers(self, where: Placement) -> tuple[int, ...]:
        """Return the recomputed layers."""
        return () if self.rule is None else self.rule.layers(self.sizes, where)


def rules(sizes: Sizes) -> Iterator[RecomputationRule]:
    """Yield the rules for stages of these sizes."""
    yield RecomputationRule(RecomputationKind.ALL)
    for n in BEST_VARIANT.every_nth:
        yield RecomputationRule(RecomputationKind.OF_MODEL, n)
        yield RecomputationRule(RecomputationKind.OF_RANK, n)
    for n in range(1, max(sizes)):
        yield RecomputationRule(RecomputationKind.OF_STAGE, n)


class VariantCosts:
    """Costs of variants on one profile; those of equal runs of layers are computed once."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.table = StageCostTable(profile)
        self._tables: dict[tuple[int, ...], StageCostTable] = {(): self.table}

    def of(self, sizes: Sizes, layers: tuple[int, ...] = ()) -> Costs:
        """Return the costs of a cut with some layers recomputed."""
        return self._table(layers).costs(tuple(accumulate(sizes, initial=0)))

    def least_work_us(
        self, sizes: Sizes, layers: tuple[int, ...], where: Placement, num_micro_batches: int
    ) -> int:
        """Return a lower bound on the time of any order: the least work of the busiest rank."""
        if where.backward_ranks is not None:
            return 0
        table, runs = self._table(layers), pairwise(accumulate(sizes, initial=0))
        of_stage = [_least_us(table.stage(*run)) for run in runs]
        each, more = divmod(num_micro_batches, len(where.ranks))
        return max(
            sum(of_stage[stage] * (each + (replica < more)) for stage, replica in held)
            for held in where.held
        )

    def _table(self, layers: tuple[int, ...]) -> StageCostTable:
        if layers not in self._tables:
            if len(self._tables) > BEST_VARIANT.tables:
                self._tables = {(): self.table}
            self._tables[layers] = StageCostTable(recomputing(self.profile, layers))
        return self._tables[layers]


def _least_us(stage: StageCosts) -> int:
    """Return the least work of a stage for a micro-batch, with B and W apart or fused."""
    us = stage.duration_us
    return us[OpKind.F] + min(us[OpKind.BW], us[OpKind.B] + us[OpKind.W])
