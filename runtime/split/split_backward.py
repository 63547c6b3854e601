"""The split backward of one stage and micro-batch, recorded on a tape between F, B and W."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward

from synth.errors import SynthError

from .apply_rule import without_autocast
from .derived import Delivery, DerivedWeight
from .interception import Interception
from .listeners import deliver, deliveries, has_hooks
from .regions import leaf_of
from .weight_task import Accumulator, Gathering, WeightTask, accumulate

P = ParamSpec("P")
T = TypeVar("T")
Outputs = Tensor | GradientEdge | Sequence[Tensor] | Sequence[GradientEdge]
OutputGradients = Tensor | Sequence[Tensor | None] | None
Rules = Callable[["SplitTape"], AbstractContextManager[object]]


class SplitTape:
    """One stage's backward of one micro-batch: F, then B, then W.

    Outputs may be passed to B as edges (`torch.autograd.graph.get_gradient_edge`), so that an
    output that was sent on need not be kept. `grads` are as for `torch.autograd.backward`: one per
    output, of its shape; None for a scalar loss.
    """

    def __init__(
        self,
        *,
        listened: Mapping[int, Tensor] | None = None,
        left: Collection[int] = (),
        functions: dict[Any, Any] | None = None,
    ) -> None:
        """Prepare for one micro-batch.

        Args:
            listened: parameters with hooks on their AccumulateGrad node, by id
                (`find_listened`): W delivers their gradients through autograd, once.
            left: ids of parameters whose gradients B computes, by autograd.
            functions: what is known of custom functions, common to the tapes of a stage.
        """
        self.recomputes = self.packs = False
        self.left = left
        self.functions = {} if functions is None else functions
        self.listened: Mapping[int, Tensor] = listened or {}
        self._tasks: deque[WeightTask] = deque()
        self._deferred: dict[int, Tensor] = {}
        self._repeats = False
        self.is_in_backward = False
        # Autograd's numbers, which count up, of the backwards that run while B does: those that
        # ran its roots, and those in which calls of F became tasks.
        self._at_roots: set[int] = set()
        self._at_tasks: set[int] = set()

    def restart(self, *, left: Collection[int]) -> None:
        """Forget an F that is going to be run again."""
        self.recomputes = self.packs = False
        self.left = left

    @property
    def pending(self) -> int:
        """The number of weight-gradient computations that W has left to do."""
        return len(self._tasks)

    @property
    def reads_weights(self) -> bool:
        """True if W reads parameters, not only their shapes; hooks on gradients may."""
        return any(task.reads_weights for task in self._tasks) or any(
            map(self._is_listened, self.deferred)
        )

    @property
    def deferred(self) -> tuple[Tensor, ...]:
        """The parameters whose gradients B deferred to W, each once; they stay listed after W."""
        return tuple(self._deferred.values())

    def forward(self, fn: Callable[P, T], *inputs: P.args, **keywords: P.kwargs) -> T:
        """F: `fn(*inputs)`, recorded such that its backward can be split."""
        with Interception(self):
            return fn(*inputs, **keywords)

    def backward_input(
        self, outputs: Outputs, grads: OutputGradients = None, *, rules: Rules = Interception
    ) -> None:
        """B: input gradients; those of parameters with a rule wait for `backward_weight`.

        If B runs F again, the `rules` must be in force. A B that raises leaves nothing behind for
        W.

        Raises:
            SynthError: hooks got a part of a gradient from autograd, of which W has the other part;
                or a hook has differentiated what F recorded.
        """
        self.is_in_backward = True
        self._at_roots, self._at_tasks = set(), set()
        noting = [node.register_prehook(self._note_root) for node in _roots(outputs)]
        try:
            # Autograd carries a mode over to its device threads with the caller's other state.
            with (
                deliveries(self.listened) as delivered,
                rules(self) if self.recomputes or self.packs else nullcontext(),
            ):
                run_backward(outputs, grads)
            self._check_one_backward()
            self._check_whole(delivered())
        except BaseException:
            self._tasks.clear()
            raise
        finally:
            self.is_in_backward = False
            for handle in noting:
                handle.remove()

    def backward_weight(self) -> None:
        """W: adds the waiting gradients to `parameter.grad`, in the order B left them.

        Every task's tensors are freed as soon as it ran. Nothing waiting: nothing done. Where
        somebody listens to a gradient, autograd adds it, and runs their hooks.
        """
        add = accumulate
        if any(map(self._is_listened, self.deferred)):
            listened = Gathering(self._tasks, deliver)
            add = partial(self._add, listened)
        delivery = Delivery(target for task in self._tasks for target in task.targets)
        add = partial(_add_or_deliver, delivery, add)
        if self._repeats:
            add = Accumulator(self._tasks, add).add
        device = self._tasks[0].targets[0].device.type if self._tasks else "cpu"
        with torch.no_grad(), without_autocast(device):
            while self._tasks:
                _run_task(self._tasks.popleft(), add)
            delivery.finish()

    def push(self, task: WeightTask, *, of_backward: bool = False) -> None:
        """Add a task for W; called during B.

        Args:
            task: of a call that B has differentiated.
            of_backward: B itself has recorded the call, in a recomputation.

        Raises:
            SynthError: the stage runs a backward of its own, which its first F did not.
        """
        if not self.is_in_backward:
            raise SynthError(
                "a stage calls torch.autograd inside its forward, but did not when its first "
                "micro-batch ran: let the first one do so too, so that the stage's gradients are "
                "left to autograd, or take a schedule with BW in place of B and W"
            )
        if not of_backward:
            self._at_tasks.add(_current_backward())
        self._tasks.append(task)
        for leaf in task.leaves:
            self._repeats |= id(leaf) in self._deferred
            self._deferred[id(leaf)] = leaf

    def _add(self, listened: Gathering, target: Tensor, gradient: Tensor) -> None:
        add = listened.add if self._is_listened(leaf_of(target)) else accumulate
        add(target, gradient)

    def _is_listened(self, parameter: Tensor) -> bool:
        return id(parameter) in self.listened or has_hooks(parameter)

    def _note_root(self, _gradients: Any) -> None:
        self._at_roots.add(_current_backward())

    def _check_one_backward(self) -> None:
        if self._at_tasks - {min(self._at_roots, default=None)}:
            raise SynthError(
                "a hook on a gradient, or a custom backward, calls torch.autograd on what the "
                "forward has recorded, so W cannot tell which gradients of weights are wanted: let "
                "it differentiate what it computes there anew, or take a schedule with BW in place "
                "of B and W"
            )

    def _check_whole(self, delivered: Collection[int]) -> None:
        for key in delivered:
            if key in self._deferred:
                shape = tuple(self._deferred[key].shape)
                raise SynthError(
                    f"a parameter {shape} that has hooks on its gradient is used in a new way: "
                    f"autograd has delivered a part of its gradient, and W has the rest; let the "
                    f"first micro-batch use it in the same way, or take a schedule with BW in "
                    f"place of B and W"
                )


def _current_backward() -> int:
    """Autograd's number of the innermost backward that is running."""
    return int(torch._C._current_graph_task_id())


def _roots(outputs: Outputs) -> list[Any]:
    """The nodes at which a backward begins."""
    several = [outputs] if isinstance(outputs, Tensor | GradientEdge) else outputs
    nodes = [each.grad_fn if isinstance(each, Tensor) else each.node for each in several]
    return [node for node in nodes if node is not None]


def run_backward(outputs: Outputs, grads: OutputGradients) -> None:
    """Run `torch.autograd.backward` without its checks, which cost as much as a small layer.

    A caller's autocast is off within it, as PyTorch recommends: kernels have the dtypes of the
    forward, also those of parts that turned autocast off.
    """
    if type(outputs) is list and type(grads) is list and all([g is not None for g in grads]):
        with without_autocast(grads[0].device.type) if grads else nullcontext():
            _engine_run_backward(
                tuple(outputs), tuple(grads), False, False, (), allow_unreachable=True,
                accumulate_grad=True,
            )  # fmt: skip
    else:
        torch.autograd.backward(outputs, grads)


def _add_or_deliver(
    delivery: Delivery, add: Callable[[Tensor, Tensor], None], target: Any, gradient: Tensor
) -> None:
    if isinstance(target, DerivedWeight):
        delivery.add(target, gradient)
    else:
        add(target, gradient)


def _run_task(task: WeightTask, add: Callable[[Tensor, Tensor], None]) -> None:
    """Run one task, in a function so that no gradient outlives its task into the next one's."""
    gradients = task.run()
    for parameter, gradient in zip(task.targets, gradients, strict=True):
        add(parameter, gradient)
