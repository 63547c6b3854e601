"""What the executor needs of a stage, and what it gives it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ..stage.boundary import Boundary, Tensors


class OutputTap(NamedTuple):
    """Takes the output of the last stage's module, ahead of the loss.

    Attributes:
        keep: called with the output.
        with_loss: whether the loss is computed too.
    """

    keep: Callable[[Any], None]
    with_loss: bool = True


class ForwardInput(NamedTuple):
    """What F of a micro-batch is given, and R once more.

    Attributes:
        arguments: the batch's inputs on the first stage, else the row of tensors received.
        entry: what that row is; None on the first stage.
        targets: for the loss, on the last stage.
        keywords: given to the module by name.
        fused: whether BW will follow, not B and W.
        moved: whether an O will take what is saved.
        tap: takes the last stage's output; None: nobody wants it.
    """

    arguments: tuple[Any, ...]
    entry: Boundary | None = None
    targets: Any = None
    keywords: Mapping[str, Any] | None = None
    fused: bool = False
    moved: bool = False
    tap: OutputTap | None = None


class StageProtocol(Protocol):
    """What the executor needs of a stage: F, R, B, W and BW of its micro-batches.

    Tensors go in and out as rows; gradients are those of the differentiable ones of a row.
    """

    @property
    def is_last(self) -> bool:
        """Whether F gives the loss."""
        ...

    def begin(self) -> None:
        """A step begins: no micro-batch is under way."""
        ...

    def reduce_gradients(self) -> None:
        """All backwards of a step that updates are done: reduce over data-parallel replicas.

        Every replica of the pipeline gets here at the same place of the same program.
        """
        ...

    def end(self) -> None:
        """The step is over, or has failed."""
        ...

    def forward(self, microbatch: int, forward_input: ForwardInput) -> Tensors:
        """F."""
        ...

    def forward_light(self, microbatch: int, forward_input: ForwardInput) -> Tensors:
        """F of a micro-batch that R will rebuild: it keeps nothing for the backward."""
        ...

    def rebuild(self, microbatch: int, forward_input: ForwardInput) -> None:
        """R: F once more, from the same input, now keeping what the backward needs."""
        ...

    def take_saved(self, microbatch: int) -> Tensors:
        """O: what F or R saved, as a row of bytes, each storage once; the stage has it no more."""
        ...

    def saved_sizes(self, microbatch: int) -> tuple[int, ...]:
        """The bytes of each of what was taken."""
        ...

    def put_back(self, microbatch: int, saved: Tensors) -> None:
        """Before B or BW: what was taken is here again, in a row like that of `take_saved`."""
        ...

    def backward_input(self, microbatch: int, gradients: Tensors) -> Tensors:
        """B: the gradients of the differentiable inputs."""
        ...

    def backward_weight(self, microbatch: int) -> None:
        """W."""
        ...

    def backward(self, microbatch: int, gradients: Tensors) -> Tensors:
        """BW."""
        ...

    def parameters(self) -> Iterable[Tensor]:
        """The trainable parameters."""
        ...

    def state(self) -> Iterable[Tensor]:
        """All that copies of the stage have in common: parameters and buffers."""
        ...

    def forget(self) -> None:
        """Drop the micro-batches under way."""
        ...
