"""The number of updates of each layer since training began, which checkpoints keep.

A step of a plan without a flush has several updates, and stages on several ranks have fewer of them
than others. Rules such as `DelayedRate` depend on the number, so a resumed run needs it.
"""

from collections.abc import Sequence

from synth.schedule.files.plan_file import Plan

from ..optimize import FlushFreeStep, StageSteps


class UpdateCounts:
    """Counts the updates of a plan's layers."""

    def __init__(self, plan: Plan) -> None:
        """Take the updates that a step of the plan has of each layer."""
        self._layers_of = plan.layers_of
        sizes = plan.schedule().update_sizes
        self._of_step = tuple(
            plan.num_micro_batches // size
            for size, num_layers in zip(sizes, plan.partition, strict=True)
            for _ in range(num_layers)
        )

    @property
    def none(self) -> tuple[int, ...]:
        """The counts before the first step."""
        return (0,) * len(self._of_step)

    def after(self, steps: int, before: Sequence[int]) -> tuple[int, ...]:
        """Return the counts of all layers after more steps.

        Args:
            before: the counts of all layers before them.
        """
        return tuple(n + steps * new for n, new in zip(before, self._of_step, strict=True))

    def restore(self, counts: Sequence[int], steps: StageSteps) -> None:
        """Tell a rank's steps the counts of a checkpoint.

        Layers of a stage may differ if another plan made it; then the least one counts.
        """
        if isinstance(steps, FlushFreeStep):
            for stage in steps.updates:
                steps.updates[stage] = min(counts[layer] for layer in self._layers_of(stage))
