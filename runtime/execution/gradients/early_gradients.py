"""Gradients that a B computes itself, set aside until its W adds them.

A split backward leaves some gradients to B, such as those of norms. Without a flush B may run ahead
of the update of the batch before, whose gradients are still added up; only W and BW are kept behind
that update (`verify_versions`). What such a B adds would be used one update too early.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Lowered
from synth.schedule.ops import Op

from ...split.task import accumulate


@contextmanager
def capture_gradients(parameters: Sequence[Tensor], found: dict[int, Tensor]) -> Iterator[None]:
    """Within it backwards make gradients of their own, which are put into `found` by index."""
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


class EarlyGradients:
    """Sets aside the gradients of B's in the stages of a rank that have one ahead of an update.

    There all B's do, so that gradients are added up in the order of the W's. Plans do not count
    what is set aside.
    """

    def __init__(
        self, lowered: Lowered, rank: int, parameters: Mapping[int, Sequence[Tensor]]
    ) -> None:
        """Find the stages, of which `parameters` has the trainable parameters."""
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
        """Return the work of an op: of a B without what it adds, of a W with that."""
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
