"""The best cut of a published schedule, and its best recomputed layers, under its own order.

The best one is the fastest that fits the memory limit; if none fits, the one that exceeds it least.
Every variant is simulated exactly, but the search among them is local: all candidates
(`partition.candidates`), then moves of layers across boundaries from the best one, as long as they
help. Recomputed layers are those of a framework's rules (`variants`), on the best few cuts.

Families that read no times have one order for all cuts. The others are made for one cut; their
order is judged on the others as it is, and the family makes it anew for the best few.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from synth.costs.costs import Costs
from synth.costs.recomputation import FULL, Recomputation
from synth.errors import SynthError
from synth.op_kinds import MOVES, OpKind
from synth.plan.published.layers_as_needed import LayersAsNeeded
from synth.plan.published.neighbours import Neighbours
from synth.plan.published.order_scores import Judge, OrderScores, Score
from synth.plan.published.variants import RecomputedLayers, Sizes, Variant, VariantCosts, rules
from synth.plan.tuning import BEST_VARIANT
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Placement, Schedule
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.recomputation_rules import AsNeeded, RecomputationMenu, RecomputationRule
from synth.schedule.simulate import Timeline
from synth.schedule.verify import verify
from synth.solver.evaluate.evaluate import EvaluatedSchedule

_KEEPS_NOT = (OpKind.R, *MOVES)

# Makes the family's schedule on the costs of its stages.
Make = Callable[[Costs], Schedule]


class PublishedVariant(NamedTuple):
    """A published schedule on its cut, simulated, with the layers that are recomputed."""

    variant: Variant
    lowered: Lowered
    timeline: Timeline
    score: Score
    recomputed_layers: RecomputedLayers = ()

    @property
    def peaks_bytes(self) -> tuple[int, ...]:
        """The peak of each rank."""
        return peak_bytes(self.lowered)

    def evaluated(self, found_by: str) -> EvaluatedSchedule:
        """Return the schedule with its figures, as a search takes it."""
        schedule, peaks = self.lowered.schedule, self.peaks_bytes
        return EvaluatedSchedule(schedule, self.timeline, self.score.value_us, peaks, found_by)


class PublishedFamily(NamedTuple):
    """A family on a placement: how its schedule is made, and if that reads times.

    `menu` are the rules by which layers may be recomputed; None: those of all frameworks.
    """

    where: Placement
    num_micro_batches: int
    make: Make
    reads_times: bool
    menu: RecomputationMenu | None = None


class BestVariant:
    """The search for the best variant of one family's schedule. It is deterministic."""

    def __init__(
        self,
        family: PublishedFamily,
        costs: VariantCosts,
        judge: Judge,
        cuts: Sequence[Sizes],
        *,
        is_local: bool,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make the schedule on the first cut that the family admits.

        Args:
            judge: the limits and the objective.
            is_local: go on from the best candidate by moving layers.
            should_stop: asked before each simulation; the first cut is judged in any case.

        Raises:
            SynthError: the family admits none of the cuts.
        """
        self.family, self.costs, self.judge, self.cuts = family, costs, judge, cuts
        self.is_local, self.should_stop = is_local, should_stop
        self.made: dict[Variant, PublishedVariant] = {}
        self._needed: dict[tuple[OrderScores, Sizes], Variant | None] = {}
        first = self._first()
        self.order = OrderScores(first.lowered.schedule, judge)
        self.scores: dict[Variant, Score | None] = {first.variant: first.score}

    def _first(self) -> PublishedVariant:
        for sizes in self.cuts[:-1]:
            try:
                return self._make(Variant(sizes))
            except SynthError:
                continue
        return self._make(Variant(self.cuts[-1]))

    def plain(self) -> PublishedVariant:
        """Return the schedule as it was published, on its best cut."""
        return self._climbed(self.on_candidates())

    def on_candidates(self) -> PublishedVariant:
        """Return the schedule as it was published, on the best of the candidates."""
        for variant in sorted(map(Variant, self.cuts), key=self._least_us):
            self._score(variant)
        best = self._best_made(self._ranked())
        assert best is not None  # the first one was made
        return best

    def anew_on_candidates(
        self, can_win: Callable[[Sizes], bool] = lambda sizes: True
    ) -> PublishedVariant:
        """Return the best one of the schedules made for each candidate by itself.

        Args:
            can_win: asked before a schedule is made; False: it would be of no use.
        """
        ranked = [variant for variant in self._ranked() if variant.rule is None]
        for variant in dict.fromkeys((*ranked, *map(Variant, self.cuts))):
            is_candidate = variant.sizes in self.cuts and variant not in self.made
            if is_candidate and can_win(variant.sizes) and not self.should_stop():
                with suppress(SynthError):  # the family does not admit it, or is not shorter
                    self._make(variant)
        return min(self.made.values(), key=lambda one: one.score)

    def with_layers(self, plain: PublishedVariant) -> PublishedVariant | None:
        """Return the best one with recomputed layers; None unless it fits and is faster."""
        scored = (score for score in self.scores.values() if score is not None)
        fastest_us = min(score.value_us for score in scored)
        if plain.score.fits and plain.score.value_us <= fastest_us:
            return None
        schedule = plain.lowered.schedule
        if any(op.kind in _KEEPS_NOT for ops in schedule.programs for op in ops):
            return None
        if schedule.vocabulary:
            return None  # rules of recomputation know whole layers
        for sizes in self._cuts_for_layers():
            self._try_rules(sizes)
        ranked = self._ranked_with_rules()
        best = self._best_made(ranked) if self._is_any_fitting(ranked) else None
        if self.family.reads_times and (best is None or not best.score.fits):
            ranked = self._made_with_rules(plain.variant.sizes) or ranked
        best = self._best_made(ranked)
        while best is not None:
            found = self._climbed(best)
            for sizes in self._with_neighbours(found.variant):
                self._try_rules(sizes)
            best = self._best_made(self._ranked_with_rules())
            if best is None or best.score >= found.score:
                return found if found.score.fits and found.score < plain.score else None
        return None

    def faster_above_limit(self, plain: PublishedVariant) -> tuple[Sizes, Score] | None:
        """Return the fastest cut judged, if it exceeds the limit that a slower one keeps."""
        scored = ((score, v.sizes) for v, score in self.scores.items() if score and not v.rule)
        score, sizes = min(scored, key=lambda one: one[0].value_us)
        is_squeezed = plain.score.fits and score.value_us < plain.score.value_us
        return (sizes, score) if is_squeezed else None

    def with_few_layers(self, plain: PublishedVariant) -> PublishedVariant | None:
        """Return a variant that fits with recomputed layers, found by a few simulations.

        On the cut of the plain variant and on the first candidate; of those that fit the best.

        Args:
            plain: the best one without, which does not fit.
        """
        variants: list[Variant] = []
        for sizes in dict.fromkeys((plain.variant.sizes, self.cuts[0])):
            variants += self._made_with_rules(sizes)
        return min((self.made[each] for each in variants), key=lambda one: one.score, default=None)

    def _with_neighbours(self, variant: Variant) -> list[Sizes]:
        """Return a cut, and the most promising ones of its neighbours."""
        if not self.is_local:
            return [variant.sizes]
        near = Neighbours(self.costs.table, self.family.where, self.costs.speeds)
        found = near.of(variant.sizes, self.order.guide(self._costs(variant)))
        return [variant.sizes, *islice(found, BEST_VARIANT.neighbours_with_rules)]

    def _ranked_with_rules(self) -> list[Variant]:
        return [variant for variant in self._ranked() if variant.rule is not None]

    def _is_any_fitting(self, variants: Sequence[Variant]) -> bool:
        scores = map(self.scores.get, variants)
        return any(score is not None and score.fits for score in scores)

    def _cuts_for_layers(self) -> list[Sizes]:
        """Return the fastest cuts and those of least memory, whether they fit or not."""
        scored = [(score, v.sizes) for v, score in self.scores.items() if score is not None]
        fastest = sorted(scored, key=lambda one: (one[0].value_us, one[0].peak_bytes))
        smallest = sorted(scored, key=lambda one: (one[0].peak_bytes, one[0].value_us))
        chosen = fastest[: BEST_VARIANT.fastest_cuts] + smallest[: BEST_VARIANT.smallest_cuts]
        return list(dict.fromkeys(sizes for _, sizes in chosen))

    def _made_with_rules(self, sizes: Sizes) -> list[Variant]:
        """Make the schedule anew with rules, by bisection of the work that they add.

        An order made without recomputation may keep too much for its late W.

        Returns:
            The variants that fit.
        """
        variants = sorted((Variant(sizes, rule) for rule in self._rules(sizes)), key=self._least_us)
        few, at, most = 0, len(variants) - 1, len(variants) - 1
        found: list[Variant] = []
        for _ in range(1 + BEST_VARIANT.made_with_rules):
            if few > most or self.should_stop():
                break
            if self._fits(variants[at]):
                found, most = [variants[at], *found], at - 1
            else:
                few = at + 1
            at = (few + most) // 2
        return found

    def _fits(self, variant: Variant) -> bool:
        """Return True if the schedule made for a variant fits."""
        with suppress(SynthError):  # the family does not admit it
            self.scores[variant] = self._make(variant).score
        return variant in self.made and self.made[variant].score.fits

    def _try_rules(self, sizes: Sizes) -> None:
        """Score a cut with each rule, those of least work first, as long as they may be faster.

        As long as none fits, the one that exceeds the limit least is kept to begin with.
        """
        if self._least_us(Variant(sizes)) >= self._fitting_us():
            return
        needed, fewest = self._as_needed(sizes), None
        tried = [*([needed] if needed else ()), *(Variant(sizes, r) for r in self._rules(sizes))]
        for variant in sorted(tried, key=self._least_us):
            if self._least_us(variant) >= self._fitting_us():
                return
            if fewest is not None and fewest <= Recomputation(self._layers(variant)).items():
                continue  # more layers in the same order take no less time
            score = self._score(variant, self._least_excess_bytes())
            if variant is needed and score is not None:
                fewest = Recomputation(self._layers(needed)).items()

    def _as_needed(self, sizes: Sizes) -> Variant | None:
        """Return a cut with the fewest layers in the order at hand; None if it fits without."""
        if self.family.menu is not None or self.judge.caps_bytes is None or self.should_stop():
            return None
        if (self.order, sizes) not in self._needed:
            where, above_bytes = self.family.where, self.order.above_bytes
            found = LayersAsNeeded(self.costs, sizes, where, above_bytes).found()
            self._needed[self.order, sizes] = Variant(sizes, AsNeeded(found)) if found else None
        return self._needed[self.order, sizes]

    # Scores

    def _costs(self, variant: Variant) -> Costs:
        return self.costs.of(variant.sizes, self._layers(variant))

    def _layers(self, variant: Variant) -> RecomputedLayers:
        return variant.layers(self.family.where, self.costs.parts)

    def _rules(self, sizes: Sizes) -> Iterator[RecomputationRule]:
        """Yield the rules, with the policies that the profile has."""
        for rule in rules(sizes, self.family.where, self.family.menu, self.costs.policies):
            if rule.policy == FULL or self.costs.has(self._layers(Variant(sizes, rule))):
                yield rule

    def _least_us(self, variant: Variant) -> int:
        where, num_micro_batches = self.family.where, self.family.num_micro_batches
        layers = self._layers(variant)
        return self.costs.least_work_us(variant.sizes, layers, where, num_micro_batches)

    def _fitting_us(self) -> float:
        """Return the best value of those that fit."""
        fitting = (one.value_us for one in self.scores.values() if one is not None and one.fits)
        return min(fitting, default=float("inf"))

    def _least_excess_bytes(self) -> int:
        return min(one.excess_bytes for one in self.scores.values() if one is not None)

    def _score(self, variant: Variant, most_excess_bytes: int | None = None) -> Score | None:
        """Score a variant that was not scored yet and may be faster than those that fit."""
        if variant not in self.scores and not self.should_stop():
            if self._least_us(variant) >= self._fitting_us():
                return None
            self.scores[variant] = self.order.score(self._costs(variant), most_excess_bytes)
        return self.scores.get(variant)

    def _ranked(self) -> list[Variant]:
        found = [(score, variant) for variant, score in self.scores.items() if score is not None]
        return [variant for _, variant in sorted(found, key=lambda one: (one[0], one[1].sizes))]

    def _climbed(self, made: PublishedVariant) -> PublishedVariant:
        """Move layers across boundaries as long as that helps, judged by the order that was made.

        Of the schedule made there and the given one, the better one is returned.
        """
        if not self.is_local:
            return made
        if self.family.reads_times:
            self.order = OrderScores(made.lowered.schedule, self.judge)
            self.scores |= {made.variant: made.score}
        near = Neighbours(self.costs.table, self.family.where, self.costs.speeds)
        began = self.order.num_scored
        better: Variant | None = made.variant
        while better is not None:
            better = self._better(best := better, near, began)
        found = self._best_made([best])
        return min(made, found or made, key=lambda one: one.score)

    def _better(self, best: Variant, near: Neighbours, began: int) -> Variant | None:
        """Return the first neighbour found that is better; None without one.

        Args:
            near: finds them.
            began: the number of variants that were judged before the first move.
        """
        score = self.scores[best]
        assert score is not None
        guide = self.order.guide(self._costs(best))
        most, in_vain = BEST_VARIANT.efforts(fits=score.fits)
        most, in_vain = began + most, self.order.num_scored + in_vain
        for sizes in near.of(best.sizes, guide):
            variant = best._replace(sizes=sizes)
            if self.should_stop() or self.order.num_scored >= min(most, in_vain):
                return None
            found = self._score(variant, score.excess_bytes)
            if found is not None and found < score:
                return variant
        return None

    # Schedules

    def _best_made(self, ranked: Sequence[Variant]) -> PublishedVariant | None:
        """Make the schedule for the best variants, and return the best one; None: none is made."""
        most = BEST_VARIANT.made_anew if self.family.reads_times else 1
        for variant in ranked[:most]:
            if variant not in self.made and not self.should_stop():
                with suppress(SynthError):  # the family does not admit it
                    self._make(variant)
        made = [self.made[variant] for variant in ranked if variant in self.made]
        return min(made, key=lambda one: one.score, default=None)

    def _make(self, variant: Variant) -> PublishedVariant:
        """Make the schedule on a variant.

        Raises:
            SynthError: the family does not admit it.
        """
        costs = self._costs(variant)
        schedules = [self.family.make(costs)]
        if variant.rule is not None and self.scores.get(variant) is not None:
            # Made without recomputation an order may need less memory, or time.
            schedules += [self.order.schedule] * self.family.reads_times
        layers = self._layers(variant)
        simulated = (verify(schedule, costs) for schedule in schedules)
        made = (
            PublishedVariant(variant, *one, self.judge.score(*one), layers) for one in simulated
        )
        self.made[variant] = min(made, key=lambda one: one.score)
        return self.made[variant]
