"""This project's pipeline, as a training loop calls it."""

from torch import Tensor, nn

from benchmarks.executor.case import Case
from benchmarks.executor.stages import WholeBatch, build_stage, loss_of
from synth.runtime.pipeline import Pipeline


class Ours:
    """One rank of a pipeline under our executor."""

    def __init__(self, case: Case, rank: int, batch: WholeBatch) -> None:
        schedule = case.make_schedule()
        placement = schedule.placement
        self._modules = {
            stage: nn.Sequential(*build_stage(case, stage)) for stage, _ in placement.held[rank]
        }
        self._pipeline = Pipeline(schedule, dict(self._modules), loss=loss_of)
        inputs, targets = batch
        self._inputs = (inputs,) if 0 in self._modules else ()
        self._targets = targets if placement.num_stages - 1 in self._modules else None

    def step(self) -> Tensor | None:
        """One mini-batch; the mean loss on the rank with the last stage."""
        batch = self._pipeline.split(*self._inputs, targets=self._targets)
        return self._pipeline.step(batch)

    def parameters(self) -> dict[int, list[nn.Parameter]]:
        """By stage."""
        return {stage: list(module.parameters()) for stage, module in self._modules.items()}
