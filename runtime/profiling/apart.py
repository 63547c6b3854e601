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
from torch import Tensor
from torch.utils import _pytree as pytree

from synth.errors import SynthError

from ..execution.base.boundary import can_have_gradient
from ..input_function import MicroBatch
from ..models.layered_stage import LayerCall
from ..state.module_state import unchanged
from ..state.positions import NUMPY_RANDOM, PYTHON_RANDOM
from .hidden_reads import HiddenReads
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
        SynthError: a layer computes with parameters, buffers or results of another one that it was
            not given, the losses differ, or forwards change a buffer that several layers have.
    """
    modules = [call.module for call in calls]
    batches = [batch, other if _can_take(calls, other) else batch]
    with unchanged(*modules), _own_random_numbers(), torch.enable_grad():
        whole = [_chained(calls, number, given) for number, given in enumerate(batches)]
    with unchanged(*modules), _own_random_numbers(), torch.enable_grad():
        apart = _LayerByLayer(calls, names).losses(batches)
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
    return _called(calls, index, number, _arguments(calls, index, x, targets))


def _arguments(calls: Sequence[LayerCall], index: int, x: Any, targets: Any) -> tuple[Any, ...]:
    """Return copies of what a layer is given."""
    given = pytree.tree_map_only(Tensor, _entered if index else torch.clone, x)
    arguments = positional(given, is_first=index == 0)
    return (*arguments, copied(targets)) if index == len(calls) - 1 else arguments


def _called(calls: Sequence[LayerCall], index: int, number: int, arguments: tuple[Any, ...]) -> Any:
    """Run F of a layer with its graph, with random numbers of its own.

    Layers may drop themselves by numbers of Python or NumPy, in whichever order they are run.
    """
    seed = 2 * index + number
    random.seed(seed)
    np.random.seed(seed)
    return calls[index](arguments, seed)


def _detached(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, torch.detach, tree)


class _LayerByLayer:
    """Runs one layer after the other, for all micro-batches."""

    def __init__(self, calls: Sequence[LayerCall], names: Sequence[str]) -> None:
        self._calls, self._names = calls, names
        self._reads = HiddenReads([call.module for call in calls], names)

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
        """Run F of one layer, and return its output."""
        arguments = _arguments(self._calls, index, x, targets)
        with self._reads.of(index, arguments):
            output = _called(self._calls, index, number, arguments)
        self._reads.check(output, self._calls[index].module)
        return _detached(output)


def _entered(x: Tensor) -> Tensor:
    """Return a copy in which a gradient can arrive, and that may be changed in place."""
    return x.clone().requires_grad_().clone() if can_have_gradient(x) else x.clone()
