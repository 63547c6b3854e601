"""Lower bounds on the steps of layouts: of the pipeline, and of what is outside of it."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import groupby

from synth.costs.costs import Costs
from synth.estimates.layout import Layout
from synth.estimates.outside_pipeline import OutsidePipeline
from synth.layouts.judged import Bounded, Unfit
from synth.layouts.pipeline_bound import PipelineBound, PipelineSize
from synth.layouts.question import LayoutQuestion, RunLayout
from synth.plan.published.variants import RecomputedLayers, VariantCosts


def bounded_layouts(
    question: LayoutQuestion, layouts: Iterable[RunLayout]
) -> Iterator[Bounded | Unfit]:
    """Yield layouts with their bounds, or with the memory that each of their orders exceeds.

    Args:
        layouts: those with the same groups one after the other.
    """
    for groups, alike in groupby(layouts, lambda one: one.groups):
        bounds = LayoutBounds(question, groups)
        yield from (bounds.of(layout) for layout in alike)


class LayoutBounds:
    """The estimate and the lower bounds of layouts with the same groups."""

    def __init__(self, question: LayoutQuestion, groups: Layout) -> None:
        self.question, self.estimator = question, question.estimator(groups)
        self.profile = self.estimator.profile()
        self._pipelines: dict[bool, PipelineBound] = {}
        self._known_us: dict[int, float] = {}

    @cached_property
    def _costs(self) -> VariantCosts:
        return VariantCosts(self.profile)

    def costs(self, sizes: tuple[int, ...], recomputed_layers: RecomputedLayers) -> Costs:
        """The costs of a partition with some layers recomputed."""
        return self._costs.of(sizes, recomputed_layers)

    def of(self, layout: RunLayout) -> Bounded | Unfit:
        """The bound of a layout, or the memory that each of its orders exceeds."""
        size = PipelineSize(layout.ranks, layout.rounds, layout.micro_batches)
        pipeline = self._pipeline(pairs=self.has_pairs(layout))
        pipeline_us = pipeline.least_us(size, self.question.cap_bytes)
        if pipeline_us is None:
            return Unfit(layout, pipeline.least_bytes(layout.ranks))
        outside_us = self._outside_us(layout.ranks)
        bound_us = pipeline_us + outside_us
        # With one stage per rank no published schedule has pairs.
        usual = self._pipeline(pairs=self.has_pairs(layout) and layout.rounds > 1)
        guess_us = usual.guess_us(size, self.question.cap_bytes) + outside_us
        return Bounded(bound_us, max(bound_us, guess_us), layout)

    def step_bound_us(self, layout: RunLayout, makespan_bound_us: float) -> float:
        """The bound of a step whose makespan has a bound over all partitions."""
        return makespan_bound_us + self._outside_us(layout.ranks)

    def has_pairs(self, layout: RunLayout) -> bool:
        """True if F and BW of two micro-batches may run at once, and save time so."""
        return self.profile.has_pairs and self.question.runs_pairs(layout)

    def _pipeline(self, *, pairs: bool) -> PipelineBound:
        if pairs not in self._pipelines:
            self._pipelines[pairs] = PipelineBound(self.profile, pairs=pairs)
        return self._pipelines[pairs]

    def _outside_us(self, ranks: int) -> float:
        """The bound of what a step of a pipeline of some ranks takes beside its makespan."""
        if ranks not in self._known_us:
            outside = OutsidePipeline(self.estimator, ranks).least(self.profile)
            self._known_us[ranks] = outside.data_us
        return self._known_us[ranks]
