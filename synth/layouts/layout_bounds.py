"""Lower bounds on the steps of layouts: of the pipeline, and of what is outside of it."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import groupby
from math import inf

from synth.costs.costs import Costs
from synth.estimates.layout import Layout, Recompute
from synth.estimates.outside_pipeline import OutsidePipeline
from synth.layouts.answer import Bounded, Unfit
from synth.layouts.own_order_bound import OwnOrderBound
from synth.layouts.pipeline_bound import Again, PipelineBound, PipelineSize
from synth.layouts.question import LayoutQuestion, RunLayout
from synth.layouts.runtime_rules import recomputes_layers
from synth.plan.published.variants import RecomputedLayers, VariantCosts


def bounded_layouts(
    question: LayoutQuestion, layouts: Iterable[RunLayout], enough_us: float = inf
) -> Iterator[Bounded | Unfit]:
    """Yield layouts with their bounds, or with the memory that each of their orders exceeds.

    Args:
        layouts: those with the same groups one after the other.
        enough_us: a step that is of no use; bounds from there on may be lower than they could be.
    """
    for groups, alike in groupby(layouts, lambda one: one.groups):
        bounds = LayoutBounds(question, groups)
        yield from (bounds.of(layout, enough_us) for layout in alike)


class LayoutBounds:
    """The estimate and the lower bounds of layouts with the same groups."""

    def __init__(self, question: LayoutQuestion, groups: Layout) -> None:
        self.question, self.estimator = question, question.estimator(groups)
        self.profile = self.estimator.profile()
        self._pipelines: dict[bool, PipelineBound] = {}
        self._own_orders: dict[bool, OwnOrderBound] = {}
        self._known_us: dict[int, float] = {}

    @cached_property
    def _costs(self) -> VariantCosts:
        return VariantCosts(self.profile)

    def costs(self, sizes: tuple[int, ...], recomputed_layers: RecomputedLayers) -> Costs:
        """The costs of a partition with some layers recomputed."""
        return self._costs.of(sizes, recomputed_layers)

    def of(self, layout: RunLayout, enough_us: float = inf) -> Bounded | Unfit:
        """The bound of a layout, or the memory that each of its orders exceeds.

        Args:
            layout: with these groups.
            enough_us: as of `bounded_layouts`.
        """
        outside_us = self._outside_us(layout.ranks)
        enough_us -= outside_us
        size = PipelineSize(layout.ranks, layout.rounds, layout.micro_batches)
        # With one stage per rank no published schedule has pairs.
        usual = self._pipeline(pairs=self.has_pairs(layout) and layout.rounds > 1)
        bounds_us = [
            self._least_us(layout, size, enough_us, pairs=pairs) for pairs in self._pairings(layout)
        ]
        known_us = [bound_us for bound_us in bounds_us if bound_us is not None]
        if not known_us:
            return Unfit(layout, usual.least_bytes(layout.ranks))
        bound_us = min(known_us) + outside_us
        guess_us = usual.guess_us(size, self.question.cap_bytes) + outside_us
        return Bounded(bound_us, max(bound_us, guess_us), layout)

    def _pairings(self, layout: RunLayout) -> tuple[bool, ...]:
        """If F and BW may run at once: bounds with it hold without it, unless orders are known."""
        if not self.has_pairs(layout):
            return (False,)
        return (True,) if self.question.allowed.orders_freely else (False, True)

    def _least_us(
        self, layout: RunLayout, size: PipelineSize, enough_us: float, *, pairs: bool
    ) -> float | None:
        """The bound of the pipeline; None: each of its orders exceeds the memory limit."""
        cap_bytes = self.question.cap_bytes
        found = self._pipeline(pairs=pairs).least_us(size, cap_bytes)
        if found is None or layout.ranks == 1 or self.question.allowed.orders_freely:
            return found
        return self._own_order(pairs=pairs).least_us(size, cap_bytes, found, enough_us)

    def step_bound_us(self, layout: RunLayout, makespan_bound_us: float) -> float:
        """The bound of a step whose makespan has a bound over all partitions."""
        return makespan_bound_us + self._outside_us(layout.ranks)

    def has_pairs(self, layout: RunLayout) -> bool:
        """True if F and BW of two micro-batches may run at once, and save time so."""
        return self.profile.has_pairs and self.question.runs_pairs(layout)

    def _again(self, *, pairs: bool) -> Again:
        """The layers that the runtime may compute again."""
        allowed = self.question.allowed
        if not recomputes_layers(allowed.runtime, self.estimator.layout, pairs=pairs):
            return Again.NONE
        return Again.ANY if allowed.layer_menu is None else Again.INNER

    def _pipeline(self, *, pairs: bool) -> PipelineBound:
        if pairs not in self._pipelines:
            again = self._again(pairs=pairs)
            self._pipelines[pairs] = PipelineBound(self.profile, pairs=pairs, again=again)
        return self._pipelines[pairs]

    def _own_order(self, *, pairs: bool) -> OwnOrderBound:
        if pairs not in self._own_orders:
            may_again = self._again(pairs=pairs) is not Again.NONE
            is_whole = self.estimator.layout.recompute is not Recompute.FULL
            self._own_orders[pairs] = OwnOrderBound(
                self.profile, pairs=pairs, recomputes=may_again and is_whole
            )
        return self._own_orders[pairs]

    def _outside_us(self, ranks: int) -> float:
        """The bound of what a step of a pipeline of some ranks takes beside its makespan."""
        if ranks not in self._known_us:
            outside = OutsidePipeline(self.estimator, ranks).least(self.profile)
            self._known_us[ranks] = outside.data_us
        return self._known_us[ranks]
