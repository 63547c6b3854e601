"""What one stage keeps of one micro-batch between its F, its B and its W."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .function import without_autocast
from .interception import Interception
from .task import Accumulator, WeightTask

P = ParamSpec("P")
T = TypeVar("T")
Outputs = Tensor | GradientEdge | Sequence[Tensor] | Sequence[GradientEdge]
OutputGradients = Tensor | Sequence[Tensor | None] | None


class SplitTape:
    """One stage's backward of one micro-batch: F, then either B and W, or BW.

    Outputs may be given to B and BW as edges (`torch.autograd.graph.get_gradient_edge`), so that
    an output that was sent on need not be kept. `grads` are as for `torch.autograd.backward`:
    one per output, of its shape; None for a scalar loss.
    """

    def __init__(self) -> None:
        self.deferring = False
        self._tasks: deque[WeightTask] = deque()
        self._deferred: dict[int, Tensor] = {}

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

    def backward_input(self, outputs: Outputs, grads: OutputGradients = None) -> None:
        """B: input gradients; those of parameters with a rule wait for `backward_weight`.

        A B that raises leaves nothing behind for W.
        """
        self.deferring = True
        try:
            self._backward(outputs, grads)
        except BaseException:
            self._tasks.clear()
            raise
        finally:
            self.deferring = False

    def backward_weight(self) -> None:
        """W: adds the waiting gradients to `parameter.grad`, in the order B left them.

        Every task's tensors are freed as soon as it ran. Nothing waiting: nothing done.
        """
        accumulator = Accumulator(self._tasks)
        with torch.no_grad():
            while self._tasks:
                _run_task(self._tasks.popleft(), accumulator)

    def backward_fused(self, outputs: Outputs, grads: OutputGradients = None) -> None:
        """BW: the ordinary backward; nothing waits."""
        self._backward(outputs, grads)

    def push(self, task: WeightTask) -> None:
        """Keep a task for W; for the autograd function to call during B."""
        self._tasks.append(task)
        self._deferred.update((id(target), target) for target in task.targets())

    def _backward(self, outputs: Outputs, grads: OutputGradients) -> None:
        # Checkpointed layers run F again in here, and must find the same rules in force. Autograd
        # carries the mode over to its device threads with the rest of the caller's state.
        with Interception(self):
            torch.autograd.backward(outputs, grads)


def _run_task(task: WeightTask, accumulator: Accumulator) -> None:
    """A function of its own, so that no gradient outlives its task into the next one's."""
    targets = task.targets()
    with without_autocast(targets[0].device.type):
        gradients = task.run()
    for parameter, gradient in zip(targets, gradients, strict=True):
        accumulator.add(parameter, gradient)
