"""The micro-batch that runs now on a thread; `synth.runtime.micro_batch` is its public name."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from synth.errors import SynthError

from .loss_terms import LossTerms


@dataclass(frozen=True)
class CurrentMicroBatch:
    """A micro-batch of a step.

    Attributes:
        index: its number in the step, from 0 on.
        terms: the weights of the step's losses, and their scale.
    """

    index: int
    terms: LossTerms
    device: torch.device

    @property
    def num_micro_batches(self) -> int:
        """The number of micro-batches of the step."""
        return len(self.terms.weights)

    @property
    def gradient_factor(self) -> float | Tensor:
        """The gradient with which the backward of this micro-batch's loss starts.

        It is the weight of that loss in the step's (`weight / num_micro_batches` for the mean,
        else `weight * weights[index]`), times the scale of a `GradScaler`. It is a float32 scalar
        tensor if one of these is a tensor. On every rank that reads it, `step` needs the same
        `weight`, `weights` and `scaler` as on the rank with the last stage.
        """
        weight = self.terms.weights[self.index]
        if self.terms.scale is None and not isinstance(weight, Tensor):
            return weight
        return self.terms.seed(torch.ones((), device=self.device), self.index)


_ALONE = CurrentMicroBatch(0, LossTerms((1.0,)), torch.device("cpu"))

# By thread, because ranks may be threads of one process.
_RUNNING: dict[int, CurrentMicroBatch] = {}


def current_micro_batch() -> CurrentMicroBatch:
    """Return the micro-batch whose forward or backward calls this.

    Outside of a pipeline, and where shapes are found, it is the only micro-batch, with factor 1.

    Raises:
        SynthError: a thread of autograd calls this in a process with several ranks.
    """
    mine = _RUNNING.get(threading.get_ident())
    if mine is not None:
        return mine
    others = list(_RUNNING.values())  # backwards on a device run in autograd's own threads
    if others[1:]:
        raise SynthError(
            "several ranks of this process are running, and this thread is none of theirs: read "
            "current_micro_batch() in the forward, and keep it for the backward"
        )
    return others[0] if others else _ALONE


@contextmanager
def running(microbatch: CurrentMicroBatch) -> Iterator[None]:
    """Within the block a micro-batch is this thread's current one."""
    thread = threading.get_ident()
    _RUNNING[thread] = microbatch
    try:
        yield
    finally:
        del _RUNNING[thread]
