"""Judging layouts by published schedules on their best partitions.

Of many micro-batches few are simulated to choose the schedule, the partition and the recomputed
layers: each further one takes as long as the busiest rank works on it. What is chosen is then made
and simulated with all of them.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from synth.costs.recomputed_layers import recomputing
from synth.errors import SynthError
from synth.estimates.outside_pipeline import OutsidePipeline, layers_of_ranks, update_us
from synth.families import family_layout, family_of, family_placement, generate, overlapping
from synth.layouts.answer import Bounded, JudgedLayout, LayoutTimes
from synth.layouts.layout_bounds import LayoutBounds
from synth.layouts.question import LayoutQuestion, RunLayout
from synth.layouts.runtime_rules import recomputes_layers
from synth.layouts.tuning import FAMILIES, LAYOUT_SEARCH
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.plan.choose.published_pairs import pair_names
from synth.plan.published.family_searches import FamilySearches
from synth.plan.published.order_scores import Judge
from synth.plan.published.variants import RecomputedLayers, Sizes
from synth.profile import Profile
from synth.schedule.files.claim import Claim
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import lower
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import simulate
from synth.schedule.verify import verify


class QuickScore(NamedTuple):
    """A published schedule of a layout, judged by few micro-batches; less is better.

    Attributes:
        excess_bytes: above the memory limit.
        us: about the time of a step.
        sizes: layers per stage.
        recomputed_layers: their places.
    """

    excess_bytes: int
    us: float
    name: str
    sizes: Sizes
    recomputed_layers: RecomputedLayers


class _Watch:
    """Tells if the seconds of a part of the work are over."""

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop, self._until = should_stop, 0.0

    def begin(self, limit_s: float) -> None:
        self._until = time.monotonic() + limit_s

    def is_over(self) -> bool:
        """True once the part should end."""
        return time.monotonic() > self._until or self._should_stop()


class LayoutJudge:
    """Judges layouts of one question by published schedules."""

    def __init__(
        self, question: LayoutQuestion, should_stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Judge nothing yet.

        Args:
            should_stop: ends a search for partitions.
        """
        self.question, self._should_stop = question, should_stop

    def best(
        self, layout: RunLayout, below_us: float | None = None, name: str | None = None
    ) -> JudgedLayout | None:
        """Return a layout with its best published schedule.

        Args:
            layout: a legal one.
            below_us: the step of another layout; None is returned if no schedule seems faster, or
                none that is fits.
            name: the only schedule to try; None: those that the runtime has.

        Returns:
            The layout; None also if its sizes admit no schedule.
        """
        bounds = LayoutBounds(self.question, layout.groups)
        names = self._all_names(layout, bounds) if name is None else (name,)
        scores = sorted(self._scores(layout, bounds, names))
        if below_us is not None:
            most_us = LAYOUT_SEARCH.near_factor * below_us
            scores = [one for one in scores if not one.excess_bytes and one.us < most_us]
        for score in scores:
            try:
                return self._made(layout, bounds, score)
            except SynthError:
                continue
        return None

    def _all_names(self, layout: RunLayout, bounds: LayoutBounds) -> Iterator[str]:
        """Yield the published schedules, then those whose F and BW run at once, if some are."""
        yield from self._names(layout)
        if not bounds.has_pairs(layout):
            return
        names = FAMILIES.names(layout.ranks, layout.rounds)
        for where in dict.fromkeys(family_placement(name, layout.ranks) for name in names):
            if self.question.allowed.why_not_on(where) is None:
                with suppress(SynthError):  # the runtime's own schedule does not admit the sizes
                    own = self.question.allowed.order_on(where, layout.micro_batches)
                    yield from pair_names(where) if own is None else overlapping((own,))

    def _names(self, layout: RunLayout) -> Iterator[str]:
        """Yield the published schedules that the runtime has for a layout."""
        allowed = self.question.allowed
        for name in FAMILIES.names(layout.ranks, layout.rounds):
            where = family_placement(name, layout.ranks)
            if allowed.why_not_on(where) is not None:
                continue
            try:
                own = allowed.order_on(where, layout.micro_batches)
            except SynthError:
                continue
            ops = 3 * layout.ranks * layout.rounds * layout.micro_batches
            if own is not None:
                yield own
            elif family_of(name).timed and ops > FAMILIES.most_timed_ops:
                continue
            elif allowed.runs(name, keeps_saved=True):
                yield name

    def _scores(
        self, layout: RunLayout, bounds: LayoutBounds, names: Iterable[str]
    ) -> Iterator[QuickScore]:
        """Yield the scores of published schedules, by few micro-batches."""
        watch = _Watch(self._should_stop)
        searches = FamilySearches(
            bounds.profile,
            _few_micro_batches(layout),
            Judge(Objective.MAKESPAN, self._caps(layout)),
            watch.is_over,
            is_free=layout.rounds == 1,
            menu=self.question.allowed.layer_menu,
        )
        for number, name in enumerate(names):
            if number and self._should_stop():
                return
            with suppress(SynthError):  # the family does not admit the sizes
                yield self._score(layout, bounds, name, searches, watch)

    def _score(
        self,
        layout: RunLayout,
        bounds: LayoutBounds,
        name: str,
        searches: FamilySearches,
        watch: _Watch,
    ) -> QuickScore:
        where = family_placement(name, layout.ranks)
        watch.begin(LAYOUT_SEARCH.cuts_s)
        searches.cuts(where)  # those of a placement are searched for once
        watch.begin(LAYOUT_SEARCH.family_s)
        search = searches.of(name, where)
        found = search.plain()
        pairs, runtime = bool(found.lowered.schedule.overlapped), self.question.allowed.runtime
        may_recompute = recomputes_layers(runtime, layout.groups, pairs=pairs)
        if may_recompute and self.question.cap_bytes is not None:
            watch.begin(LAYOUT_SEARCH.family_s)
            with_layers = search.with_layers if found.score.fits else search.with_few_layers
            found = with_layers(found) or found
        sizes, layers = found.variant.sizes, found.recomputed_layers
        busiest_us = searches.costs.least_work_us(sizes, layers, where, 1, pairs=pairs)
        held = layers_of_ranks(sizes, where)
        outside = OutsidePipeline(bounds.estimator, layout.ranks).times(bounds.profile, held)
        more_us = (layout.micro_batches - searches.num_micro_batches) * busiest_us
        us = found.score.value_us + more_us + outside.data_us
        return QuickScore(found.score.excess_bytes, us, name, sizes, layers)

    def _caps(self, layout: RunLayout) -> tuple[int, ...] | None:
        cap = self.question.cap_bytes
        return None if cap is None else (cap,) * layout.ranks

    def _made(self, layout: RunLayout, bounds: LayoutBounds, score: QuickScore) -> JudgedLayout:
        """Make the schedule with all micro-batches.

        Raises:
            SynthError: the family does not admit them.
        """
        profile, caps = bounds.profile, self._caps(layout)
        costs = bounds.costs(score.sizes, score.recomputed_layers)
        schedule = generate(
            score.name, layout.ranks, layout.micro_batches, costs=costs, caps_bytes=caps
        )
        lowered, timeline = verify(schedule, costs)
        peaks = peak_bytes(lowered)
        fits = caps is None or max(peaks) <= caps[0]
        plan = Plan.of(
            profile,
            score.sizes,
            schedule,
            claim=Claim.of_timeline(timeline),
            caps_bytes=caps if fits else None,
            recomputed_layers=score.recomputed_layers,
        )
        placement = family_layout(score.name)
        return judged_plan(self.question, layout, bounds, plan, score.name, placement, peaks)


def _few_micro_batches(layout: RunLayout) -> int:
    """Two to three for each rank, with the same rest as all of them."""
    ranks, count = layout.ranks, layout.micro_batches
    return count if count < 3 * ranks else 2 * ranks + count % ranks


def judged_plan(
    question: LayoutQuestion,
    layout: RunLayout,
    bounds: LayoutBounds,
    plan: Plan,
    schedule: str,
    placement: str,
    peaks_bytes: tuple[int, ...],
) -> JudgedLayout:
    """Return a layout with the plan of its pipeline.

    Args:
        bounds: of its groups.
        schedule: its name.
        placement: of its stages, in words.
    """
    bounded = bounds.of(layout)
    fits = question.cap_bytes is None or max(peaks_bytes) <= question.cap_bytes
    judged = JudgedLayout(
        layout=layout,
        schedule=schedule,
        placement=placement,
        plan=plan,
        profile=bounds.profile,
        parts=_parts(layout, bounds, plan),
        peaks_bytes=peaks_bytes,
        fits=fits,
        bound_us=0.0,
    )
    return judged.with_bound(bounded.bound_us) if isinstance(bounded, Bounded) and fits else judged


def _parts(layout: RunLayout, bounds: LayoutBounds, plan: Plan) -> LayoutTimes:
    profile = bounds.profile
    each = layout.micro_batches / layout.ranks
    work_us = each * _work_us(profile)
    again_us = each * _work_us(recomputing(profile, plan.recomputation)) - work_us
    held = layers_of_ranks(plan.partition, plan.placed)
    outside = OutsidePipeline(bounds.estimator, layout.ranks).times(profile, held)
    step_us = sum(update_us(profile, places) for places in held) / layout.ranks
    estimate = profile.provenance.estimate
    assert estimate is not None
    shares = [estimate.factors[kind].share for kind in ("matmul", "memory", "communication")]
    whole = sum(shares) or 1.0
    matmul_us, memory_us, communication_us = (work_us * share / whole for share in shares)
    timeline = simulate(lower(plan.schedule(), plan.costs))
    reduce_us = timeline.makespan_us - _unreduced_us(plan)
    hidden_us = (sum(timeline.apart_us) - sum(timeline.work_us)) / layout.ranks
    work_us, communication_us = work_us - hidden_us, communication_us - hidden_us
    idle_us = plan.claim.makespan_us - work_us - again_us - reduce_us - step_us
    return LayoutTimes(
        matmul_us,
        memory_us,
        communication_us,
        again_us,
        idle_us,
        reduce_us + outside.reduce_us,
        outside.gather_us,
        step_us,
    )


def _unreduced_us(plan: Plan) -> int:
    """The makespan of a plan's order without its reductions."""
    return simulate(lower(plan.schedule(), plan.costs.without_reductions())).makespan_us


def _work_us(profile: Profile) -> float:
    """F, B and W of a micro-batch through all layers."""
    return sum(_layer_us(profile, (OpKind.F, OpKind.BW)))


def _layer_us(profile: Profile, kinds: tuple[OpKind, ...]) -> Iterator[float]:
    """Yield the time of each layer in some kinds of op."""
    for place in range(len(profile.layers)):
        times = profile.layer_profile(place).time_us
        yield sum(times[kind].median_us for kind in kinds)
