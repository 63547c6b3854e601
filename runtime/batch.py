"""One mini-batch as the stages take it: micro-batch by micro-batch, trees of tensors."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor
from torch.utils import _pytree as pytree

from synth.errors import SynthError


@dataclass(frozen=True)
class Batch:
    """The micro-batches of one step; each list has one entry per micro-batch.

    `inputs` are the arguments of the first stage: a tensor, or a tuple of positional arguments,
    each a tree of tensors. `targets` are such trees too, passed to the loss together with the last
    stage's output. `keywords` are passed to this rank's stages by name. A rank without the first or
    the last stage needs no inputs or targets.
    """

    inputs: Sequence[Any] | None = None
    targets: Sequence[Any] | None = None
    keywords: Sequence[Mapping[str, Any]] | None = None

    @classmethod
    def split(
        cls, num_micro_batches: int, *inputs: Any, targets: Any = None, **keywords: Any
    ) -> Self:
        """Cut a mini-batch along the first dimension of every tensor into equal micro-batches.

        Leaves that are not tensors (a flag, a number) are passed to every micro-batch unchanged.

        Raises:
            SynthError: a first dimension is not a multiple of the number of micro-batches.
        """
        cut_inputs = _cut(inputs, num_micro_batches) if inputs else None
        return cls(
            cut_inputs,
            None if targets is None else _cut(targets, num_micro_batches),
            _cut(keywords, num_micro_batches) if keywords else None,
        )

    def arguments(self, microbatch: int) -> tuple[Any, ...]:
        """The first stage's positional arguments."""
        given = self._inputs_of(microbatch)
        return given if isinstance(given, tuple) else (given,)

    def _inputs_of(self, microbatch: int) -> Any:
        if self.inputs is None:
            raise SynthError("this rank holds the first stage; its batch needs inputs")
        return self.inputs[microbatch]

    def named(self, microbatch: int) -> Mapping[str, Any]:
        """The keyword arguments of this rank's stages for a micro-batch."""
        return self.keywords[microbatch] if self.keywords is not None else {}

    def signature(self, microbatch: int) -> Hashable:
        """The shapes and dtypes of the first stage's tensors."""
        given = self._inputs_of(microbatch)
        if self.keywords is None:
            row = given if type(given) is tuple else (given,)
            if _all_tensors(row):  # needs no look at a tree, which costs as much as a small op
                return tuple([(x.shape, x.dtype) for x in row])
        leaves, spec = pytree.tree_flatten((given, self.named(microbatch)))
        described = [(x.shape, x.dtype) for x in leaves if isinstance(x, Tensor)]
        return str(spec), *described

    def check(self, num_micro_batches: int) -> None:
        """Every list must have one entry per micro-batch.

        Raises:
            SynthError: one has not.
        """
        for name in ("inputs", "targets", "keywords"):
            given = getattr(self, name)
            if given is not None and len(given) != num_micro_batches:
                raise SynthError(
                    f"the batch has {name} for {len(given)} micro-batches, the schedule has "
                    f"{num_micro_batches}; Batch.split({num_micro_batches}, …) cuts a mini-batch"
                )


def _all_tensors(given: tuple[Any, ...]) -> bool:
    return all([isinstance(x, Tensor) for x in given])


def _cut(tree: Any, count: int) -> list[Any]:
    if isinstance(tree, Tensor):
        return list(_cut_leaf(tree, count))
    if type(tree) is tuple and _all_tensors(tree):
        return list(zip(*(_cut_leaf(x, count) for x in tree), strict=True))
    leaves, spec = pytree.tree_flatten(tree)
    columns = [_cut_leaf(leaf, count) for leaf in leaves]
    return [pytree.tree_unflatten([column[j] for column in columns], spec) for j in range(count)]


def _cut_leaf(leaf: Any, count: int) -> Sequence[Any]:
    if not isinstance(leaf, Tensor):
        return [leaf] * count
    if leaf.dim() == 0:
        raise SynthError("a tensor without dimensions cannot be cut into micro-batches")
    if leaf.shape[0] % count:
        raise SynthError(
            f"a mini-batch of {leaf.shape[0]} cannot be cut into {count} equal micro-batches; "
            f"give a multiple of {count} (a DataLoader does with drop_last=True), or make a Batch "
            f"of micro-batches of any sizes yourself"
        )
    return leaf.chunk(count)
