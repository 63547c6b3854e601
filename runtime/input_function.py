"""Micro-batches that a user's function makes: the first layer's inputs and the last one's targets.

The function is called in one of two ways:

- With one parameter it is given the number of a micro-batch, from 0 on, and returns a pair of
  inputs and targets.
- Without parameters it yields such pairs one by one, or returns an iterable of them, such as a
  DataLoader; or it returns one pair, and is called once for each micro-batch.

Inputs are a tensor, a tuple of positional arguments, or any tree of tensors, targets a tree too.
Every rank calls the function by itself. torch's default generator is seeded by the run's seed and
the micro-batch's number, so that all of them draw the same.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from synth.errors import SynthError
from synth.profile.workload import Workload

from .models import CutSpec, ModelSpec
from .models.user_function import import_function, run_user_code
from .seeds import derive_seed, seeded


class MicroBatch(NamedTuple):
    """The first layer's inputs and the last layer's targets."""

    inputs: Any
    targets: Any

    @property
    def num_samples(self) -> int:
        """The first dimension of the first tensor of the inputs; 1 if there is none."""
        shape = self._shape
        return int(shape[0]) if shape else 1

    @property
    def sequence_length(self) -> int:
        """The second dimension of token ids, int64 [batch, time]; 1 for other inputs."""
        first = self._first
        is_ids = first is not None and first.dtype == torch.int64 and first.dim() == 2
        return int(self._shape[1]) if is_ids else 1

    @property
    def _first(self) -> Tensor | None:
        leaves = pytree.tree_leaves(self.inputs)
        return next((leaf for leaf in leaves if isinstance(leaf, Tensor)), None)

    @property
    def _shape(self) -> tuple[int, ...]:
        return () if self._first is None else tuple(self._first.shape)


class InputFunction:
    """A user's function by its address; its micro-batches by number, from 0 on."""

    def __init__(self, address: str, seed: int = 0) -> None:
        """Import the function.

        Raises:
            SynthError: there is no such function, or it needs more than one argument.
        """
        if ":" not in address:
            raise SynthError(
                f"--inputs {address!r} is no function; write path/to/file.py:function or "
                f"package.module:function"
            )
        self.address, self._seed = address, seed
        self._function = import_function(address)
        self._takes_number = _takes_number(address, self._function)
        self._source: Any = None
        self._iterator: Iterator[Any] | None = None
        self._next = 0
        self._has_given_first = False

    def length(self) -> int | None:
        """The number of micro-batches before they repeat; None: unknown or unlimited."""
        if self._takes_number:
            return None
        source = self._opened()
        return len(source) if isinstance(source, Sized) and not _is_pair(source) else None

    def of(self, number: int) -> MicroBatch:
        """Return a micro-batch; an iterable that has ended begins anew.

        Raises:
            SynthError: the function failed, has nothing to yield, or yields no pair.
        """
        if self._takes_number:
            return self._checked(self._call(number, lambda: self._function(number)))
        if _is_pair(self._opened()):
            return self._checked(self._pair(number))
        if number < self._next:
            self._rewind()
        while self._next <= number:
            found = self._advance()
        return self._checked(found)

    def _pair(self, number: int) -> Any:
        """Return the pair of one call; that of the first call is micro-batch 0."""
        if number > 0 or self._has_given_first:
            return self._call(number, self._function)
        self._has_given_first = True
        return self._source

    def _opened(self) -> Any:
        if self._source is None:
            self._source = self._call(self._next, self._function)
            if not isinstance(self._source, Iterable) or isinstance(self._source, str | Tensor):
                raise SynthError(
                    f"{self.address} returned a {type(self._source).__name__}; it needs to return "
                    f"a pair (inputs, targets), or to yield such pairs"
                )
        return self._source

    def _rewind(self) -> None:
        self._source, self._iterator, self._next = None, None, 0

    def _advance(self) -> Any:
        """Return what the iterable yields next, from its beginning again if it has ended."""
        for _ in range(2):
            self._opened()
            found = self._call(self._next, self._step)
            if found is not _ENDED:
                self._next += 1
                return found
            self._source, self._iterator = None, None
        raise SynthError(f"{self.address} yields nothing; it needs to yield (inputs, targets)")

    def _step(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._source)
        return next(self._iterator, _ENDED)

    def _call(self, number: int, action: Callable[[], Any]) -> Any:
        with seeded(derive_seed("inputs", self._seed, number)):
            return run_user_code(self.address, action)

    def _checked(self, found: Any) -> MicroBatch:
        if not (isinstance(found, tuple | list) and len(found) == 2):
            size = f" of {len(found)}" if isinstance(found, tuple | list) else ""
            raise SynthError(
                f"{self.address} gave a {type(found).__name__}{size} as a micro-batch; needed: a "
                f"pair (inputs, targets), where several inputs are one tuple"
            )
        batch = MicroBatch(*found)
        if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(batch.inputs)):
            raise SynthError(f"{self.address} gave inputs without a tensor; needed: at least one")
        if batch.targets is None:
            raise SynthError(
                f"{self.address} gave no targets; needed: those of the last layer, which returns "
                f"the loss"
            )
        return batch


def spec_of(
    workload: Workload, factory: str, inputs: str | None, *, check: bool = False
) -> ModelSpec:
    """Return the model of a workload, with the micro-batch that a whole module is cut for.

    Args:
        factory: the address of the model.
        inputs: that of the function that makes micro-batches, which is called if a whole module
            is cut; None: token ids.
        check: compare the layers of a whole module with it.
    """
    return ModelSpec(
        factory,
        workload.arguments,
        CutSpec(
            shape=(workload.micro_batch_size, workload.sequence_length),
            batch=None if inputs is None else lambda: tuple(InputFunction(inputs).of(0)),
            dtype=workload.dtype,
            autocast=workload.autocast,
            at=workload.cut,
            check=check,
        ),
    )


_ENDED = object()


def _is_pair(found: Any) -> bool:
    """True if a function returned one micro-batch, not an iterable of them.

    A list of two is one too unless its elements are tuples, that is, micro-batches: a DataLoader
    makes lists of what it collates.
    """
    if isinstance(found, list) and len(found) == 2:
        return not any(isinstance(each, tuple) for each in found)
    return isinstance(found, tuple) and len(found) == 2


def _takes_number(address: str, function: Callable[..., Any]) -> bool:
    needed = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    positional = [p for p in needed if p.kind != p.KEYWORD_ONLY]
    if len(needed) > 1 or len(positional) < len(needed):
        raise SynthError(
            f"{address} needs the arguments {', '.join(p.name for p in needed)}; it may need one "
            f"at most, the number of the micro-batch"
        )
    return bool(needed)
