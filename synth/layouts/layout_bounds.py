"""Lower bounds on the steps of layouts: of the pipeline, and of what is outside of it."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import groupby

from synth.costs.costs import Costs
from synth.estimates.layout import Layout
from synth.estimates.outside_pipeline import OutsidePipeline
from synth.layouts.judged import Bounded
from synth.layouts.legal import legal_layouts
from synth.layouts.pipeline_bound import PipelineBound, PipelineSize
from synth.layouts.question import LayoutQuestion, RunLayout
from synth.plan.published.variants import RecomputedLayers, VariantCosts


def bounded_layouts(
    question: LayoutQuestion, layouts: Iterable[RunLayout] | None = None
) -> Iterator[Bounded | None]:
    """Yield layouts with their bounds; None for each that no order makes fit.

    Args:
        layouts: those with the same groups and ranks one after the other; None: the legal ones.
    """
    listed = legal_layouts(question) if layouts is None else layouts
    every = groupby(listed, lambda one: (one.groups, one.ranks))
    for (groups, ranks), alike in every:
        # Without a profile, which takes ten times as long.
        of_groups = None if _exceeds(question, groups, ranks) else LayoutBounds(question, groups)
        for layout in alike:
            yield None if of_groups is None else of_groups.of(layout)


def _exceeds(question: LayoutQuestion, groups: Layout, ranks: int) -> bool:
    """True if the states of all layers alone exceed the memory of the ranks."""
    if question.cap_bytes is None:
        return False
    shape, estimator = question.shape, question.estimator(groups)
    counts = {
        "embedding": 1,
        "block": shape.dense_layers,
        "moe_block": shape.layers - shape.dense_layers,
        "mtp": shape.mtp_layers,
        "head": 0 if shape.tied else 1,
    }
    states = {kind: estimator.states(kind) for kind, count in counts.items() if count}
    total = sum(counts[kind] * one.static_bytes for kind, one in states.items())
    return total > ranks * question.cap_bytes


class LayoutBounds:
    """The estimate and the lower bounds of layouts with the same groups."""

    def __init__(self, question: LayoutQuestion, groups: Layout) -> None:
        self.question, self.estimator = question, question.estimator(groups)
        self.profile = self.estimator.profile()
        self._pipeline = PipelineBound(self.profile)
        self._known_us: dict[int, float] = {}

    @cached_property
    def _costs(self) -> VariantCosts:
        return VariantCosts(self.profile)

    def costs(self, sizes: tuple[int, ...], recomputed_layers: RecomputedLayers) -> Costs:
        """The costs of a partition with some layers recomputed."""
        return self._costs.of(sizes, recomputed_layers)

    def of(self, layout: RunLayout) -> Bounded | None:
        """The bound of a layout; None: no order fits into the memory limit."""
        size = PipelineSize(layout.ranks, layout.rounds, layout.micro_batches)
        pipeline_us = self._pipeline.least_us(size, self.question.cap_bytes)
        if pipeline_us is None:
            return None
        outside_us = self._outside_us(layout.ranks)
        bound_us = pipeline_us + outside_us
        guess_us = self._pipeline.guess_us(size, self.question.cap_bytes) + outside_us
        return Bounded(bound_us, max(bound_us, guess_us), layout)

    def step_bound_us(self, layout: RunLayout, makespan_bound_us: float) -> float:
        """The bound of a step whose makespan has a bound over all partitions."""
        return makespan_bound_us + self._outside_us(layout.ranks)

    def _outside_us(self, ranks: int) -> float:
        """The bound of what a step of a pipeline of some ranks takes beside its makespan."""
        if ranks not in self._known_us:
            outside = OutsidePipeline(self.estimator, ranks).least(self.profile)
            self._known_us[ranks] = outside.data_us
        return self._known_us[ranks]
