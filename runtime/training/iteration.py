"""One optimizer step of all ranks: programs whose gradients add up, STEPs, and the outcome.

Steps that are validated later do not wait for other ranks, so nothing else may wait either.
Therefore ranks share the previous step's loss when a step begins, and read the sum when the step
has ended. By then all have begun, because no rank gets through a step without the others.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from synth.errors import RunFailure

from ..execution.base.failure import describe_failure
from ..models.layered_stage import Randomness
from ..optimize import StageSteps, StepSettings
from ..pipeline import Pipeline
from .batches import MiniBatch


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of a step; the same on all ranks except for the seconds.

    `program_seconds` are of the last program, the one with STEPs, which is what a plan predicts.
    `losses` are the mean losses of all pipelines, by step, that have become known: of this step, or
    of the previous one. `stops`: a rank was asked to end after this step.
    """

    losses: dict[int, float]
    stops: bool
    seconds: float
    program_seconds: float


@dataclass(frozen=True)
class _Loss:
    """A step's loss, or this rank's share of it."""

    step: int
    share: Tensor


@dataclass(frozen=True)
class _Telling:
    """A sum over all ranks in flight."""

    loss: _Loss | None
    told: Tensor
    work: dist.Work | None


@dataclass(frozen=True)
class _Told:
    """The result of such a sum."""

    losses: dict[int, float]
    stops: bool


class Iteration:
    """Runs a rank's program on one mini-batch after another, and updates after the last."""

    def __init__(
        self,
        pipeline: Pipeline,
        steps: StageSteps,
        rank: int,
        randomness: Randomness,
        num_tellers: int = 1,
    ) -> None:
        self._pipeline, self._steps, self._rank = pipeline, steps, rank
        self._num_tellers = num_tellers
        self._randomness = randomness
        self._untold: _Loss | None = None
        # Allocated once: a new sum per step would be live beside the later mini-batches.
        self._sum = torch.zeros((), device=pipeline.device)
        self._last_end: float | None = None

    def run(
        self,
        step: int,
        batches: Sequence[MiniBatch],
        settings: StepSettings,
        *,
        stops: bool = False,
        window: AbstractContextManager[object] | None = None,
    ) -> StepOutcome:
        """Take one step.

        Args:
            step: its number, for messages.
            batches: the mini-batches whose gradients are averaged.
            stops: True if this rank was asked to end after this step; shared with all ranks.
            window: entered while the programs run, but not while ranks share the outcome.

        Raises:
            RunFailure: an op failed, or another rank is gone.
        """
        start = last_start = time.perf_counter()
        telling = self._tell(self._untold, stops) if self._steps.late else None
        self._steps.settings = settings
        self._sum.zero_()
        with window or nullcontext():
            for number, (first_sequence, batch) in enumerate(batches, 1):
                last_start = time.perf_counter()
                self._randomness.first_sequence = first_sequence
                is_last = number == len(batches)
                loss = self._pipeline.step(batch, weight=1 / len(batches), update=is_last)
                if loss is not None:
                    self._sum += loss
                del loss
        share = _Loss(step, self._sum)
        if telling is None:
            telling = self._tell(share, stops)
        else:
            self._untold = share
        told = self._hear(telling)
        end = time.perf_counter()
        if self._steps.late:  # the time from end to end; begins overlap
            start, self._last_end = self._last_end or start, end
            last_start = start if len(batches) == 1 else last_start
        return StepOutcome(told.losses, told.stops, end - start, end - last_start)

    def settle(self) -> dict[int, float]:
        """Make the last step final, waiting for all ranks; return the loss not yet shared."""
        self._steps.finish()
        self._last_end = None
        if self._untold is None:
            return {}
        loss, self._untold = self._untold, None
        return self._hear(self._tell(loss)).losses

    def least(self, count: int) -> int:
        """Return the minimum of the ranks' counts before the first step; every rank calls this.

        Raises:
            RunFailure: another rank is gone.
        """
        told = torch.tensor(count, dtype=torch.int64, device=self._pipeline.device)
        self._wait(dist.all_reduce(told, dist.ReduceOp.MIN, async_op=True), "before the first step")
        return int(told)

    def _tell(self, loss: _Loss | None, stops: bool = False) -> _Telling:
        """Start summing the losses, and the requests to stop, over all ranks."""
        # Filled on the device: a copy from pageable memory would make the host wait.
        told = torch.zeros(2, device=self._pipeline.device)
        if stops:
            told[1].fill_(1.0)
        if loss is not None:
            told[0] += loss.share / self._num_tellers
        return _Telling(loss, told, dist.all_reduce(told, async_op=True))

    def _hear(self, telling: _Telling) -> _Told:
        of = telling.loss
        when = f"in the sum of the losses of step {of.step}" if of else "before the first step"
        self._wait(telling.work, when)
        mean, num_stopped = telling.told.tolist()
        return _Told({of.step: mean} if of else {}, num_stopped > 0)

    def _wait(self, work: dist.Work | None, when: str) -> None:
        try:
            if work is not None:
                work.wait()
        except RuntimeError as error:
            raise RunFailure(
                f"rank {self._rank} failed {when}: {describe_failure(error)}"
            ) from error
