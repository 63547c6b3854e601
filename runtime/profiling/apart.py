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
from ..models.other_inputs import redrawn, turned
from ..state.module_state import StatePicture, unchanged
from ..state.positions import NUMPY_RANDOM, PYTHON_RANDOM
from .hidden_reads import HiddenReads
from .sample import copied, positional

_SEED = 1
_TOLERANCE = 1e-5
_WAY_OUT = (
    "keeps in a global, an attribute or a shared module, which it has not on another rank: pass "
    "that on as an output, or put the layers into one"
)


def check_apart(
    calls: Sequence[LayerCall],
    names: Sequence[str],
    batch: MicroBatch,
    start: StatePicture,
) -> None:
    """Follow tensors from layer to layer, and compare the layers with each on a rank of its own.

    The layers are left in the state `start`. They are on the CPU, and so are the batches.

    Args:
        calls: the layers in order.
        names: of the layers.
        batch: a micro-batch; another one of its form is run after it, if the layers can take one.
        start: the state of the layers before any forward, as each rank begins.

    Raises:
        SynthError: a layer computes with parameters, buffers or results of another one that it was
            not given; with each layer alone the losses differ, or one fails; or forwards change a
            buffer that several layers have.
    """
    modules = [call.module for call in calls]
    others = (
        MicroBatch(*pytree.tree_map_only(Tensor, change, tuple(batch)))
        for change in (redrawn(_SEED), turned)
    )
    batches = [batch, next((other for other in others if _can_take(calls, other)), batch)]
    layers = _LayerByLayer(calls, names)
    with unchanged(*modules), _own_random_numbers(), torch.enable_grad():
        layers.follow(batches)
    start.put_back()
    with unchanged(*modules), _own_random_numbers(), torch.enable_grad():
        whole = [_chained(calls, number, given) for number, given in enumerate(batches)]
    with _own_random_numbers(), torch.enable_grad():
        apart = layers.losses(batches)
    for expected, found in zip(whole, apart, strict=True):
        if isfinite(expected) and not abs(found - expected) <= _TOLERANCE * abs(expected):
            raise SynthError(
                f"the layers compute another loss each by itself ({found:.6g}) than one after the "
                f"other ({expected:.6g}): a layer reads what another one {_WAY_OUT}"
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
        x = _given_on(_forward(calls, index, number, x, targets))
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


def _given_on(tree: Any) -> Any:
    """Return a layer's output as another rank has it: without its graph, in memory of its own.

    A layer may give on its parameters and buffers, which change afterwards.
    """
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), tree)


class _LayerByLayer:
    """Runs one layer after the other, for all micro-batches."""

    def __init__(self, calls: Sequence[LayerCall], names: Sequence[str]) -> None:
        self._calls, self._names = calls, names

    def follow(self, batches: Sequence[MicroBatch]) -> None:
        """Run them where layers find what others have left.

        Tables for all layers are there, made by earlier forwards.

        Raises:
            SynthError: see `check_apart`.
        """
        reads = HiddenReads([call.module for call in self._calls], self._names)
        xs = [inputs for inputs, _ in batches]
        seen: dict[int, str] = {}
        for index, call in enumerate(self._calls):
            buffers = dict(call.module.named_buffers())
            held = {name: b.clone() for name, b in buffers.items()}
            for number, (_, targets) in enumerate(batches):
                arguments = _arguments(self._calls, index, xs[number], targets)
                with reads.of(index, arguments):
                    output = _called(self._calls, index, number, arguments)
                reads.check(output, call.module)
                xs[number] = _given_on(output)
            for name, buffer in buffers.items():
                if id(buffer) in seen and not torch.equal(buffer, held[name]):
                    raise SynthError(
                        f"layers {seen[id(buffer)]} and {self._names[index]} share the buffer "
                        f"{name}, which forwards change, and each rank would have one of its own: "
                        f"give each layer its own module, or put them into one layer"
                    )
                seen.setdefault(id(buffer), self._names[index])

    def losses(self, batches: Sequence[MicroBatch]) -> list[float]:
        """Return the losses where no layer finds what others have left.

        The trained parameters of others are twice what they are, as on ranks they are trained.

        Raises:
            SynthError: see `check_apart`.
        """
        xs = [inputs for inputs, _ in batches]
        with _multiplied([call.module for call in self._calls], 2.0):
            for index, call in enumerate(self._calls):
                with _multiplied([call.module], 0.5), unchanged(call.module):
                    for number, (_, targets) in enumerate(batches):
                        xs[number] = self._alone(index, number, xs[number], targets)
        return [float(loss) for loss in xs]

    def _alone(self, index: int, number: int, x: Any, targets: Any) -> Any:
        try:
            return _given_on(_forward(self._calls, index, number, x, targets))
        except Exception as error:  # of the user's code, of any class
            raise SynthError(
                f"layer {self._names[index]} fails where no layer has run before it, as on a rank "
                f"of its own ({type(error).__name__}: {error}): it reads what another one "
                f"{_WAY_OUT}"
            ) from error


@contextmanager
def _multiplied(modules: Sequence[nn.Module], factor: float) -> Iterator[None]:
    """Multiply trained parameters by a power of two within the block, which rounds nothing."""
    parameters = dict.fromkeys(p for module in modules for p in module.parameters())
    trained = [p for p in parameters if p.requires_grad]
    with torch.no_grad():
        for parameter in trained:
            parameter.mul_(factor)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter in trained:
                parameter.div_(factor)


def _entered(x: Tensor) -> Tensor:
    """Return a copy in which a gradient can arrive, and that may be changed in place."""
    return x.clone().requires_grad_().clone() if can_have_gradient(x) else x.clone()
