"""Checks that layers share nothing but registered parameters and what they pass on.

Layers may work in one process, and not on ranks: a head that reads the weight of an
embedding through an attribute, a global in which one layer leaves what another one reads, a module
with running statistics in several layers. On ranks each of them has a copy of its own.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from synth.errors import SynthError

from ..execution.base.boundary import can_have_gradient
from ..input_function import MicroBatch
from ..models.layered_stage import LayerCall
from ..state.module_state import unchanged
from ..state.positions import NUMPY_RANDOM, PYTHON_RANDOM
from .sample import copied, positional

_TOLERANCE = 1e-5


def check_apart(
    calls: Sequence[LayerCall], names: Sequence[str], batch: MicroBatch, other: MicroBatch
) -> None:
    """Compare two micro-batches one after the other with two layer by layer, as ranks run them.

    The layers stay as they were. They are on the CPU, and so are the batches.

    Args:
        calls: the layers in order.
        names: of the layers.
        batch: a micro-batch.
        other: another one of its form; if the layers cannot take it, the same one is run twice.

    Raises:
        SynthError: the losses differ, a layer's backward reaches parameters of another one that it
            has not registered, or forwards change a buffer that several layers have.
    """
    modules = [call.module for call in calls]
    batches = [batch, other if _can_take(calls, other) else batch]
    before = [(p, p.grad) for module in modules for p in module.parameters()]
    try:
        with unchanged(*modules), _own_random_numbers(), torch.enable_grad():
            whole = [_chained(calls, number, given) for number, given in enumerate(batches)]
        with unchanged(*modules), _own_random_numbers(), torch.enable_grad():
            apart = _LayerByLayer(calls, names).losses(batches)
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient
    for expected, found in zip(whole, apart, strict=True):
        if isfinite(expected) and not abs(found - expected) <= _TOLERANCE * abs(expected):
            raise SynthError(
                f"the layers compute another loss layer by layer ({found:.6g}) than one "
                f"micro-batch after the other ({expected:.6g}): a layer reads what another one "
                f"keeps in a global, an attribute or a shared module, which it has not on another "
                f"rank: pass that on as an output, or put the layers into one"
            )


def _can_take(calls: Sequence[LayerCall], batch: MicroBatch) -> bool:
    with (
        suppress(Exception),  # of any class: the batch may be one that the user's code refuses
        unchanged(*[call.module for call in calls]),
        _own_random_numbers(),
    ):
        return isfinite(_chained(calls, 0, batch))
    return False


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Restore after the block all generators that `_forward` seeds."""
    generators = (PYTHON_RANDOM, NUMPY_RANDOM)
    before = [generator.take() for generator in generators]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.put(state)


def _chained(calls: Sequence[LayerCall], number: int, batch: MicroBatch) -> float:
    x, targets = batch
    for index in range(len(calls)):
        x = _detached(_forward(calls, index, number, x, targets))
    return float(x)


def _forward(calls: Sequence[LayerCall], index: int, number: int, x: Any, targets: Any) -> Any:
    """Run F of a layer with its graph, on copies, with random numbers of its own.

    Layers may drop themselves by numbers of Python or NumPy, in whichever order they are run.
    """
    given = pytree.tree_map_only(Tensor, _entered if index else torch.clone, x)
    arguments = positional(given, is_first=index == 0)
    if index == len(calls) - 1:
        arguments = (*arguments, copied(targets))
    seed = 2 * index + number
    random.seed(seed)
    np.random.seed(seed)
    return calls[index](arguments, seed)


def _detached(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, torch.detach, tree)


class _LayerByLayer:
    """Runs one layer after the other, with its backward, for all micro-batches."""

    def __init__(self, calls: Sequence[LayerCall], names: Sequence[str]) -> None:
        self._calls, self._names = calls, names
        self._owners: dict[nn.Parameter, list[int]] = {}
        for index, call in enumerate(calls):
            for parameter in call.module.parameters():
                self._owners.setdefault(parameter, []).append(index)

    def losses(self, batches: Sequence[MicroBatch]) -> list[float]:
        """Return the losses of micro-batches.

        Raises:
            SynthError: see `check_apart`.
        """
        xs = [inputs for inputs, _ in batches]
        targets = [each for _, each in batches]
        seen: dict[int, str] = {}
        for index, call in enumerate(self._calls):
            buffers = dict(call.module.named_buffers())
            held = {name: b.clone() for name, b in buffers.items()}
            for number, x in enumerate(xs):
                xs[number] = self._run(index, number, x, targets[number])
            for name, buffer in buffers.items():
                if id(buffer) in seen and not torch.equal(buffer, held[name]):
                    raise SynthError(
                        f"layers {seen[id(buffer)]} and {self._names[index]} share the buffer "
                        f"{name}, which forwards change, and each rank would have one of its own: "
                        f"give each layer its own module, or put them into one layer"
                    )
                seen.setdefault(id(buffer), self._names[index])
        return [float(loss) for loss in xs]

    def _run(self, index: int, number: int, x: Any, targets: Any) -> Any:
        """Run F and the backward of one layer, and return its output."""
        output = _forward(self._calls, index, number, x, targets)
        ends = [y for y in pytree.tree_leaves(output) if isinstance(y, Tensor) and y.requires_grad]
        if ends:
            for parameter in self._owners:
                parameter.grad = None
            torch.autograd.backward(ends, [torch.ones_like(y) for y in ends], retain_graph=True)
            self._check_gradients(index)
        return _detached(output)

    def _check_gradients(self, index: int) -> None:
        for parameter, owners in self._owners.items():
            if parameter.grad is None or index in owners:
                continue
            module = self._calls[owners[0]].module
            name = next(n for n, p in module.named_parameters() if p is parameter)
            raise SynthError(
                f"layer {self._names[index]} is trained through {name} of layer "
                f"{self._names[owners[0]]}, which is not among its own parameters, so on another "
                f"rank it has a copy that is not trained: make it a parameter or a sub-module of "
                f"both layers (`self.weight = embedding.weight`), which ties them, or pass on what "
                f"is computed from it as an output"
            )


def _entered(x: Tensor) -> Tensor:
    """Return a copy in which a gradient can arrive, and that may be changed in place."""
    return x.clone().requires_grad_().clone() if can_have_gradient(x) else x.clone()
