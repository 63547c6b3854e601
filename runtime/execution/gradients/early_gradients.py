"""Weight gradients that a B computes itself, kept apart until its W adds them.

A split backward leaves some weight gradients to B, such as those of norms. Without a flush B may
run ahead of the update of the previous batch, whose gradients are still accumulating; only W and BW
always follow that update (`verify_versions`). If B added its gradients, they would be used one
update too early.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Lowered
from synth.schedule.ops import Op

from ...split.weight_task import accumulate
from .unused import begin_sums


@contextmanager
def capture_gradients(parameters: Sequence[Tensor], found: dict[int, Tensor]) -> Iterator[None]:
    """Within the block, collect the gradients of backwards in `found`, by parameter index."""
    before = [parameter.grad for parameter in parameters]
    set_gradients(parameters, [None] * len(before))
    try:
        yield
        for index, parameter in enumerate(parameters):
            if parameter.grad is not None:
                found[index] = parameter.grad
    finally:
        set_gradients(parameters, before)


def set_gradients(parameters: Sequence[Tensor], gradients: Iterable[Tensor | None]) -> None:
    """Give each parameter its gradient."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def move_gradients(parameters: Sequence[Tensor], places: Sequence[Tensor]) -> None:
    """Let the gradients of parameters be these parts of buffers, with the values they have now."""
    for parameter, place in zip(parameters, places, strict=True):
        found = parameter.grad
        if found is None:
            begin_sums([place])
        elif found.data_ptr() != place.data_ptr():
            place.copy_(found)
        parameter.grad = place


class EarlyGradients:
    """Keeps the gradients of B's apart, in the stages of a rank that have a B ahead of an update.

    In these stages this holds for every B, so that gradients accumulate in the order of the W's.
    Plans do not count the gradients that are kept apart.
    """

    def __init__(
        self, lowered: Lowered, rank: int, parameters: Mapping[int, Sequence[Tensor]]
    ) -> None:
        """Find the stages; `parameters` has the trainable parameters of each."""
        assert lowered.versions is not None
        self._parameters = parameters
        self._aside: dict[Op, dict[int, Tensor]] = {}
        sizes, newest = lowered.schedule.update_sizes, lowered.versions.newest
        self._stages = {
            op.stage
            for node, op in enumerate(lowered.ops[rank], lowered.first_node[rank])
            if op.kind == OpKind.B and op.microbatch // sizes[op.stage] > newest[node]
        }

    def running(self, op: Op, work: Callable[[], None]) -> Callable[[], None]:
        """Return the work of an op; W also adds the gradients that were kept apart at its B."""
        if op.stage not in self._stages or op.kind not in (OpKind.B, OpKind.W):
            return work
        run = self._set_aside if op.kind == OpKind.B else self._add
        return partial(run, op._replace(kind=OpKind.B), self._parameters[op.stage], work)

    def forget(self) -> None:
        """Drop the gradients of a step that failed."""
        self._aside.clear()

    def _set_aside(self, key: Op, parameters: Sequence[Tensor], work: Callable[[], None]) -> None:
        with capture_gradients(parameters, self._aside.setdefault(key, {})):
            work()

    def _add(self, key: Op, parameters: Sequence[Tensor], work: Callable[[], None]) -> None:
        with torch.no_grad():
            for index, gradient in self._aside.pop(key).items():
                accumulate(parameters[index], gradient)
        work()
