"""One mini-batch as the stages take it: micro-batch by micro-batch, trees of tensors."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Self

from torch import Tensor
from torch.utils import _pytree as pytree

from synth.errors import SynthError

from .cutting import Cutter, tensors_in


@dataclass(frozen=True)
class Batch:
    """The micro-batches of one step; each list has one entry per micro-batch.

    `inputs` are the arguments of the first stage: a tensor, or a tuple of positional arguments,
    each a tree of tensors. `targets` are such trees too, passed to the loss together with the last
    stage's output. `keywords` are passed to this rank's stages by name. A rank without the first or
    the last stage needs no inputs or targets. `num_samples` is the size of the mini-batch that was
    cut, if the ranks are to agree on it.
    """

    inputs: Sequence[Any] | None = None
    targets: Sequence[Any] | None = None
    keywords: Sequence[Mapping[str, Any]] | None = None
    num_samples: int | None = field(default=None, kw_only=True)

    @classmethod
    def split(
        cls, num_micro_batches: int, *inputs: Any, targets: Any = None, **keywords: Any
    ) -> Self:
        """Cut a mini-batch into equal micro-batches, along the first dimension of every tensor.

        Trees are cut: lists, tuples, dictionaries, dataclasses, and whatever PyTorch's pytree
        knows. Numbers, texts and None are passed to every micro-batch. `Chunk` and `Replicate`
        say how a value is cut otherwise. The size of the batch is that of the first value that is
        cut, of the inputs, then the targets, then the keywords.

        Raises:
            SynthError: a tensor has another first dimension than the batch, or one that is not a
                multiple of the number of micro-batches; or a value cannot be cut.
        """
        if not isinstance(num_micro_batches, Integral) or num_micro_batches < 1:
            raise SynthError(
                f"a mini-batch cannot be cut into {num_micro_batches!r:.40} micro-batches; give a "
                f"whole number, 1 or more"
            )
        num_micro_batches = int(num_micro_batches)  # a number of numpy's is one, too
        values = {f"inputs[{place}]": value for place, value in enumerate(inputs)}
        cutter = Cutter(num_micro_batches, values | {"targets": targets} | keywords)
        columns = [cutter.cut(value, name) for name, value in values.items()]
        cut_targets = None if targets is None else cutter.cut(targets, "targets")
        named = {name: cutter.cut(value, name) for name, value in keywords.items()}
        return cls(
            list(zip(*columns, strict=True)) if inputs else None,
            None if cut_targets is None else list(cut_targets),
            _rows(named, num_micro_batches) if named else None,
            num_samples=cutter.num_samples,
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
        described = [(x.shape, x.dtype) for x in tensors_in(leaves)]
        return str(spec), *described

    @staticmethod
    def checked(given: Any, num_micro_batches: int) -> None:
        """Check what a user gave as a batch.

        Raises:
            SynthError: it is none, or has another number of micro-batches.
        """
        if not isinstance(given, Batch):
            raise SynthError(
                f"the batch is a {type(given).__name__}; give a Batch, as "
                f"`pipeline.split(inputs, targets=…)` makes it of a mini-batch"
            )
        given.check(num_micro_batches)

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


def _rows(columns: Mapping[str, Sequence[Any]], count: int) -> list[dict[str, Any]]:
    return [{name: column[j] for name, column in columns.items()} for j in range(count)]
