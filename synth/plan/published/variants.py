"""Variants of a published schedule: its cut, and the layers that B recomputes; their costs."""

from collections.abc import Iterable, Iterator
from copy import copy
from itertools import accumulate, pairwise
from typing import NamedTuple

from synth.costs.costs import Costs
from synth.costs.partition_costs import at_speeds, stage_speeds
from synth.costs.recomputation import FULL, Recomputation
from synth.costs.recomputed_layers import policies_of, recomputing
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.tuning import BEST_VARIANT
from synth.profile import Profile
from synth.profile.model_parts import model_parts
from synth.schedule.model import Placement
from synth.schedule.recomputation_rules import (
    ENDS,
    AsNeeded,
    Parts,
    RecomputationKind,
    RecomputationMenu,
    RecomputationRule,
)

Sizes = tuple[int, ...]

# The places of recomputed layers, or their policies by place.
RecomputedLayers = tuple[int, ...] | Recomputation


class Variant(NamedTuple):
    """A cut, and the rule by which layers are recomputed; None: none are."""

    sizes: Sizes
    rule: RecomputationRule | AsNeeded | None = None

    def layers(self, where: Placement, parts: Parts) -> RecomputedLayers:
        """Return the recomputed layers; `parts` are those of the model's layers."""
        if self.rule is None:
            return ()
        found = self.rule.layers(self.sizes, where, parts)
        policy = self.rule.policy
        return found if policy == FULL else Recomputation(dict.fromkeys(found, policy))


def rules(
    sizes: Sizes, where: Placement, menu: RecomputationMenu | None, policies: Iterable[str] = ()
) -> Iterator[RecomputationRule]:
    """Yield the rules for stages of these sizes; without a menu those of all frameworks.

    Args:
        policies: of a part of a layer, which without a menu all layers between the ends may have.
    """
    if menu is not None:
        yield from menu.rules(sizes, where)
        return
    yield RecomputationRule(RecomputationKind.ALL)
    for policy in policies:
        yield RecomputationRule(RecomputationKind.ALL, skips=ENDS, policy=policy)
    for n in BEST_VARIANT.every_nth:
        yield RecomputationRule(RecomputationKind.OF_MODEL, n)
        yield RecomputationRule(RecomputationKind.OF_RANK, n)
    for n in range(1, max(sizes)):
        yield RecomputationRule(RecomputationKind.OF_STAGE, n)


class VariantCosts:
    """Costs of variants on one profile; those of equal runs of layers are computed once."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile.replace(rank_speeds=None)
        self.parts = model_parts([layer.name for layer in profile.layers])
        kinds = profile.layer_profiles.values()
        self.policies = tuple(dict.fromkeys(policy for kind in kinds for policy in kind.variants))
        self.table = StageCostTable(self.profile)
        self._tables: dict[RecomputedLayers, StageCostTable] = {}
        self._rank_speeds = profile.rank_speeds
        # Of each stage's rank; None: all are equal.
        self.speeds: tuple[float, ...] | None = None

    def on(self, where: Placement) -> "VariantCosts":
        """Return the costs on a placement, whose ranks may differ in speed.

        Raises:
            SynthError: copies of a stage are on ranks that do.
        """
        if self._rank_speeds is None:
            return self
        placed = copy(self)
        placed.speeds = stage_speeds(self._rank_speeds, where.ranks)
        return placed

    def has(self, layers: RecomputedLayers) -> bool:
        """True if the profile has the costs of all layers under their policies."""
        named = Recomputation(layers).items()
        return all(policy in policies_of(self.profile, layer) for layer, policy in named)

    def of(self, sizes: Sizes, layers: RecomputedLayers = ()) -> Costs:
        """Return the costs of a cut with some layers recomputed."""
        costs = self._table(layers).costs(tuple(accumulate(sizes, initial=0)))
        return costs if self.speeds is None else at_speeds(costs, self.speeds)

    def least_work_us(
        self,
        sizes: Sizes,
        layers: RecomputedLayers,
        where: Placement,
        num_micro_batches: int,
        *,
        pairs: bool = False,
    ) -> int:
        """Return a lower bound on the time of any order: the least work of the busiest rank.

        Args:
            pairs: F and BW may run at once.
        """
        if where.backward_ranks is not None:
            return 0
        table, runs = self._table(layers), pairwise(accumulate(sizes, initial=0))
        stages = [table.stage(*run) for run in runs]
        if self.speeds is not None:
            stages = [stage.at(speed) for stage, speed in zip(stages, self.speeds, strict=True)]
        of_stage = [least_us(stage) - pairs * stage.hidden_us for stage in stages]
        each, more = divmod(num_micro_batches, len(where.ranks))
        return max(
            sum(of_stage[stage] * (each + (replica < more)) for stage, replica in held)
            for held in where.held
        )

    def _table(self, layers: RecomputedLayers) -> StageCostTable:
        if not layers:
            return self.table
        if layers not in self._tables:
            if len(self._tables) > BEST_VARIANT.tables:
                self._tables.clear()
            # Kinds of layers are called the same in all profiles that `recomputing` makes of one.
            changed = recomputing(self.profile, layers)
            self._tables[layers] = StageCostTable(changed, like=self.table)
        return self._tables[layers]


def least_us(stage: StageCosts) -> int:
    """Return the least work of a stage for a micro-batch, with B and W apart or fused."""
    us = stage.duration_us
    return us[OpKind.F] + min(us[OpKind.BW], us[OpKind.B] + us[OpKind.W])
