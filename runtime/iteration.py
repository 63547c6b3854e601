"""One optimizer step of all ranks: programs whose gradients add up, STEPs, and what came of it."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from synth.errors import RunFailure

from .batch import Batch
from .channels import describe_failure
from .optimize import StageSteps, StepSettings
from .pipeline import Pipeline


@dataclass(frozen=True)
class Outcome:
    """The same on all ranks but for the seconds; `program_seconds` are of the last program, the
    one with STEPs, which is what a plan predicts."""

    mean_loss: float
    data_ended: bool
    seconds: float
    program_seconds: float


class Iteration:
    """Runs a rank's program on one mini-batch after another, and updates after the last."""

    def __init__(self, pipeline: Pipeline, steps: StageSteps, rank: int) -> None:
        self._pipeline, self._steps, self._rank = pipeline, steps, rank

    def run(
        self,
        step: int,
        batches: Sequence[Batch],
        settings: StepSettings,
        *,
        data_ended: bool,
        window: AbstractContextManager[object] | None = None,
    ) -> Outcome:
        """Take one step.

        Args:
            step: which one, for messages.
            batches: the mini-batches whose gradients are averaged.
            settings: of the update.
            data_ended: whether this rank has no data for the next step; told to all.
            window: entered while the programs run, not while their outcome is told.

        Raises:
            RunFailure: an op failed, or another rank is gone.
        """
        start = last_start = time.perf_counter()
        self._steps.settings = settings
        total: Tensor | None = None
        with window or nullcontext():
            for number, batch in enumerate(batches, 1):
                last_start = time.perf_counter()
                is_last = number == len(batches)
                loss = self._pipeline.step(batch, weight=1 / len(batches), update=is_last)
                total = loss if total is None or loss is None else total + loss
        mean, ended = self.share(step, total, data_ended)
        end = time.perf_counter()
        return Outcome(mean, ended, end - start, end - last_start)

    def share(self, step: int, loss: Tensor | None, data_ended: bool) -> tuple[float, bool]:
        """Tell all ranks the sum of the losses, and whether any rank's data has ended."""
        told = torch.tensor([0.0, float(data_ended)], device=self._pipeline.device)
        if loss is not None:
            told[0] += loss.detach().float()
        try:
            dist.all_reduce(told)
        except RuntimeError as error:
            raise RunFailure(
                f"rank {self._rank} failed in the sum of the losses of step {step}: "
                f"{describe_failure(error)}"
            ) from error
        mean, num_ended = told.tolist()
        return mean, num_ended > 0
