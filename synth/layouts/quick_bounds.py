"""Quick bounds of layouts, from costs that many of them share.

The passes of a stage depend neither on the number of data-parallel ranks nor on what these shard;
the states of a layer depend neither on micro-batches nor on the pipeline.
"""

from collections.abc import Sequence
from typing import NamedTuple

from synth.estimates.layout import Layout, Sharding
from synth.layouts.answer import Unfit
from synth.layouts.pipeline_bound import PipelineBound, PipelineSize, least_of_fullest
from synth.layouts.question import LayoutQuestion, RunLayout


class Waiting(NamedTuple):
    """Layouts with the same groups and ranks, a bound on their steps, and about the best step."""

    guess_us: float
    bound_us: float
    layouts: Sequence[RunLayout]


class QuickBounds:
    """Bounds by states and by work of a question's layouts."""

    def __init__(self, question: LayoutQuestion) -> None:
        self.question = question
        self._passes: dict[tuple[Layout, bool], PipelineBound] = {}
        self._states: dict[Layout, tuple[list[int], list[float]]] = {}
        self._reduced_us: dict[Layout, float] = {}

    def of(self, alike: Sequence[RunLayout]) -> Waiting | list[Unfit]:
        """Return the bound of layouts, or the memory that each of their orders exceeds.

        Args:
            alike: with the same groups and ranks.
        """
        groups, ranks = alike[0].groups, alike[0].ranks
        cap_bytes = self.question.cap_bytes
        if cap_bytes is not None and (least := self.least_bytes(groups, ranks)) > cap_bytes:
            return [Unfit(layout, least) for layout in alike]
        pipeline = self._pipeline(groups, pairs=any(map(self.question.runs_pairs, alike)))
        sizes = [PipelineSize(ranks, one.rounds, one.micro_batches) for one in alike]
        states = 0.0 if cap_bytes is None else self._fullest(groups, ranks, 0)
        ends = (sizes[0], sizes[-1])
        reduce_us = self._reduced(groups)
        guess_us = min(pipeline.guess_us(size, cap_bytes, states, reduce_us) for size in ends)
        return Waiting(guess_us, min(map(pipeline.work_us, sizes)), alike)

    def least_bytes(self, groups: Layout, ranks: int) -> float:
        """Return the least memory of the fullest rank, in any order.

        It holds the states of its layers, and the input of each with a micro-batch.
        """
        return self._fullest(groups, ranks, self.question.estimator(groups).boundary_bytes)

    def _fullest(self, groups: Layout, ranks: int, input_bytes: int) -> float:
        key = _sizes_of_states(groups)
        if key not in self._states:
            self._states[key] = self._states_of(groups)
        counts, states = self._states[key]
        first, *others = states
        return least_of_fullest([first, *(one + input_bytes for one in others)], ranks, counts)

    def _reduced(self, groups: Layout) -> float:
        """The reduction of all gradients behind the last backward."""
        key = _sizes_of_states(groups)
        if key not in self._reduced_us:
            self._reduced_us[key] = self.question.estimator(groups).reduction_us()
        return self._reduced_us[key]

    def _states_of(self, groups: Layout) -> tuple[list[int], list[float]]:
        """The numbers of layers of each kind, the embedding first, and the states of one."""
        shape, estimator = self.question.shape, self.question.estimator(groups)
        counts = {
            "embedding": 1,
            "block": shape.dense_layers,
            "moe_block": shape.layers - shape.dense_layers,
            "mtp": shape.mtp_layers,
            "head": 0 if shape.tied else 1,
        }
        counts = {kind: count for kind, count in counts.items() if count}
        states = [float(estimator.states(kind).static_bytes) for kind in counts]
        return list(counts.values()), states

    def _pipeline(self, groups: Layout, *, pairs: bool) -> PipelineBound:
        """The bounds of the passes, which FSDP only makes longer, and float8 parameters do not."""
        whole = groups.model_copy(update={"sharding": Sharding.NONE, "narrow_gather": False})
        if (key := (whole.model_copy(update={"data": 1}), pairs)) not in self._passes:
            self._passes[key] = PipelineBound(self.question.estimator(whole).profile(), pairs=pairs)
        return self._passes[key]


def _sizes_of_states(groups: Layout) -> Layout:
    """Return the sizes on which the states of layers and their exchanges depend."""
    return groups.model_copy(update={"micro_batch_size": 1, "recompute": None})
