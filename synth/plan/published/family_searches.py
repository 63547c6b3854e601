"""The searches for the best variants of families' schedules on one profile."""

from collections.abc import Callable

from synth.costs.costs import Costs
from synth.families import family_of, generate
from synth.plan.partition.balance import balance, is_rebalanced, starting_cuts
from synth.plan.partition.candidates import candidate_cuts, equal_cuts
from synth.plan.partition.divided import as_parts, partitions
from synth.plan.partition.unequal_ranks import UnequalRanks
from synth.plan.published.best_variant import BestVariant, PublishedFamily
from synth.plan.published.order_scores import Judge
from synth.plan.published.variants import Sizes, VariantCosts
from synth.plan.tuning import BEST_VARIANT, JUDGING
from synth.profile import Profile
from synth.schedule.model import Placement, Schedule
from synth.schedule.recomputation_rules import RecomputationMenu


class FamilySearches:
    """Searches with the same profile, limits and objective, which share costs and cuts."""

    def __init__(
        self,
        profile: Profile,
        num_micro_batches: int,
        judge: Judge,
        should_stop: Callable[[], bool] = lambda: False,
        *,
        given: Sizes | None = None,
        is_free: bool = True,
        menu: RecomputationMenu | None = None,
        goes_on: Callable[[int], bool] = lambda num_ops: False,
    ) -> None:
        """Search for nothing yet.

        Args:
            judge: the memory limit of each rank, and the objective.
            should_stop: ends a search; the first cut is judged in any case.
            given: the cut for placements of as many stages.
            is_free: any cuts; else the balanced one and those of equal numbers of layers.
            menu: the rules by which layers may be recomputed; None: those of all frameworks.
            goes_on: variants are judged whatever `should_stop` says as long as this is true of the
                ops of all that were judged.
        """
        # A makespan from which on a schedule that is made is of no use; see `families.generate`.
        self.below_us: int | None = None
        self.menu, self.goes_on, self.num_ops = menu, goes_on, 0
        self.profile, self.num_micro_batches, self.judge = profile, num_micro_batches, judge
        self.should_stop, self.given, self.is_free = should_stop, given, is_free
        self.costs = VariantCosts(profile)
        self._cuts: dict[Placement, list[Sizes]] = {}

    def of(self, name: str, where: Placement) -> BestVariant:
        """Return the search for a family's schedule on its placement.

        Raises:
            SynthError: the family does not admit the numbers.
        """

        def make(costs: Costs) -> Schedule:
            return generate(
                name,
                where.num_ranks,
                self.num_micro_batches,
                costs=costs,
                caps_bytes=self.judge.caps_bytes,
                where=where,
                below_us=self.below_us,
                objective=self.judge.objective,
            )

        num_ops = 3 * where.num_ranks * self.num_micro_batches
        num_ops *= JUDGING.late_timed_cost if family_of(name).timed else 1
        num_ops = max(num_ops, BEST_VARIANT.least_ops)

        def should_stop() -> bool:
            self.num_ops += num_ops
            return not self.goes_on(self.num_ops) and self.should_stop()

        parts = as_parts(self.profile, name, where.num_ranks)
        is_whole = parts is self.profile
        return BestVariant(
            PublishedFamily(where, self.num_micro_batches, make, family_of(name).timed, self.menu),
            (self.costs if is_whole else VariantCosts(parts)).on(where),
            self.judge,
            self.cuts(where) if is_whole else partitions(parts, where.num_ranks),
            is_local=self.is_free and is_whole,
            should_stop=should_stop,
        )

    def cuts(self, where: Placement) -> list[Sizes]:
        """Return the cuts to begin with: the given one, or else the balanced one first.

        Raises:
            SynthError: fewer layers than stages.
        """
        if self.given is not None and len(self.given) == where.num_stages:
            return [self.given]
        if where not in self._cuts:
            others = self._others(where)
            found = others if self._is_first_balanced(where) else [self._balanced(where), *others]
            self._cuts[where] = list(dict.fromkeys(found))
        return self._cuts[where]

    def _others(self, where: Placement) -> list[Sizes]:
        if self.is_free and self.profile.rank_speeds is not None:
            ranks = UnequalRanks(self.profile, where, self.judge.caps_bytes)
            found = ranks.best_cuts(BEST_VARIANT.cuts_of_unequal_ranks, self.should_stop)
            return found + candidate_cuts(self.costs.table, where.num_stages)
        if not self.is_free:
            return equal_cuts(self.costs.table, where.num_stages)
        return starting_cuts(
            self.costs.table, where, self.judge.caps_bytes, self.num_micro_batches, self.should_stop
        )

    def _is_first_balanced(self, where: Placement) -> bool:
        """Return True if the first one of the other cuts is the balanced one."""
        is_searched = self.is_free and self.profile.rank_speeds is None
        return is_searched and is_rebalanced(where) and not _holds_all(where)

    def _balanced(self, where: Placement) -> Sizes:
        """Return the balanced cut; where ranks hold all stages, that of stages by themselves."""
        if _holds_all(where):
            linear = Placement.linear(where.num_stages)
            return balance(self.profile, linear, should_stop=self.should_stop)
        return balance(
            self.profile,
            where,
            self.judge.caps_bytes,
            self.num_micro_batches,
            should_stop=self.should_stop,
        )


def _holds_all(where: Placement) -> bool:
    """Return True if each rank holds all stages."""
    return all(len({stage for stage, _ in held}) == where.num_stages for held in where.held)
