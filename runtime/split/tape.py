"""What one stage keeps of one micro-batch between its F, its B and its W."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward

from .function import without_autocast
from .interception import Interception
from .task import Accumulator, WeightTask, accumulate

P = ParamSpec("P")
T = TypeVar("T")
Outputs = Tensor | GradientEdge | Sequence[Tensor] | Sequence[GradientEdge]
OutputGradients = Tensor | Sequence[Tensor | None] | None


class SplitTape:
    """One stage's backward of one micro-batch: F, then B, then W.

    Outputs may be given to B as edges (`torch.autograd.graph.get_gradient_edge`), so that an
    output that was sent on need not be kept. `grads` are as for `torch.autograd.backward`: one per
    output, of its shape; None for a scalar loss.
    """

    def __init__(self) -> None:
        self.recomputes = False
        self._tasks: deque[WeightTask] = deque()
        self._deferred: dict[int, Tensor] = {}
        self._repeats = False

    @property
    def pending(self) -> int:
        """How many weight-gradient computations W has left to do."""
        return len(self._tasks)

    @property
    def deferred(self) -> tuple[Tensor, ...]:
        """The parameters whose gradients B left to W, each once; they stay listed after W."""
        return tuple(self._deferred.values())

    def forward(self, fn: Callable[P, T], *inputs: P.args, **keywords: P.kwargs) -> T:
        """F: `fn(*inputs)`, recorded such that its backward can be split."""
        with Interception(self):
            return fn(*inputs, **keywords)

    def backward_input(
        self,
        outputs: Outputs,
        grads: OutputGradients = None,
        *,
        rules: Callable[["SplitTape"], AbstractContextManager[object]] = Interception,
    ) -> None:
        """B: input gradients; those of parameters with a rule wait for `backward_weight`.

        Where B runs F again, it must find the `rules` in force. A B that raises leaves nothing
        behind for W.
        """
        try:
            # Autograd carries a mode over to its device threads with the caller's other state.
            with rules(self) if self.recomputes else nullcontext():
                run_backward(outputs, grads)
        except BaseException:
            self._tasks.clear()
            raise

    def backward_weight(self) -> None:
        """W: adds the waiting gradients to `parameter.grad`, in the order B left them.

        Every task's tensors are freed as soon as it ran. Nothing waiting: nothing done.
        """
        add = Accumulator(self._tasks).add if self._repeats else accumulate
        with torch.no_grad():
            while self._tasks:
                _run_task(self._tasks.popleft(), add)

    def push(self, task: WeightTask) -> None:
        """Keep a task for W; called during B."""
        self._tasks.append(task)
        for target in task.targets:
            key = id(target)
            self._repeats |= key in self._deferred
            self._deferred[key] = target


def run_backward(outputs: Outputs, grads: OutputGradients) -> None:
    """`torch.autograd.backward`, whose checks of one gradient cost as much as a small layer."""
    if type(outputs) is list and type(grads) is list and all([g is not None for g in grads]):
        _engine_run_backward(
            tuple(outputs), tuple(grads), False, False, (), allow_unreachable=True,
            accumulate_grad=True,
        )  # fmt: skip
    else:
        torch.autograd.backward(outputs, grads)


def _run_task(task: WeightTask, add: Callable[[Tensor, Tensor], None]) -> None:
    """A function of its own, so that no gradient outlives its task into the next one's."""
    with without_autocast(task.targets[0].device.type):
        gradients = task.run()
    for parameter, gradient in zip(task.targets, gradients, strict=True):
        add(parameter, gradient)
