"""The interface between the executor and a stage."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from .boundary import Boundary, Tensors


class OutputTap(NamedTuple):
    """Receives the output of the last stage's module, ahead of the loss.

    Attributes:
        with_loss: True if the loss is computed too.
    """

    keep: Callable[[Any], None]
    with_loss: bool = True


class ForwardInput(NamedTuple):
    """The input of F of a micro-batch, and of R.

    Attributes:
        arguments: the batch's inputs on the first stage, else the received tensors.
        entry: the boundary of the received tensors; None on the first stage.
        targets: the targets for the loss, on the last stage.
        keywords: keyword arguments of the module.
        fused: True if BW will follow, not B and W.
        moved: True if an O will take the saved activations.
        tap: receives the last stage's output; None: not wanted.
        exit: the boundary after the stage; None: it is not known, or the stage is the last.
    """

    arguments: tuple[Any, ...]
    entry: Boundary | None = None
    targets: Any = None
    keywords: Mapping[str, Any] | None = None
    fused: bool = False
    moved: bool = False
    tap: OutputTap | None = None
    exit: Boundary | None = None


class StageProtocol(Protocol):
    """The operations of a stage that the executor calls: F, R, B, W and BW of its micro-batches.

    Activations and gradients are tuples of tensors. Gradients are those of the differentiable
    tensors of a tuple.
    """

    @property
    def is_last(self) -> bool:
        """True if F returns the loss."""
        ...

    def begin(self) -> None:
        """Begin a step; no micro-batch is in flight."""
        ...

    def reduce_gradients(self) -> None:
        """Reduce over data-parallel pipelines, after all backwards of a step that updates.

        Every pipeline calls this at the same place of the same program.
        """
        ...

    def end(self) -> None:
        """End a step, also if it failed."""
        ...

    def forward(self, microbatch: int, forward_input: ForwardInput) -> Tensors:
        """Run F and return its outputs."""
        ...

    def forward_light(self, microbatch: int, forward_input: ForwardInput) -> Tensors:
        """F of a micro-batch that R will rebuild: it saves nothing for the backward."""
        ...

    def rebuild(self, microbatch: int, forward_input: ForwardInput) -> None:
        """R: run F again from the same input, now saving what the backward needs."""
        ...

    def give_replay(self, microbatch: int) -> Tensors:
        """After F: give away what it kept for R, which runs on another rank."""
        ...

    def take_replay(self, microbatch: int, given: Tensors) -> None:
        """Before R: take what another rank's F kept for it."""
        ...

    def take_saved(self, microbatch: int) -> Tensors:
        """O: release the activations that F or R saved, as bytes, one tensor per storage."""
        ...

    def saved_sizes(self, microbatch: int) -> tuple[int, ...]:
        """The bytes of each storage that was taken."""
        ...

    def put_back(self, microbatch: int, saved: Tensors) -> None:
        """Take back storages, as `take_saved` returned them; called before B or BW."""
        ...

    def backward_input(self, microbatch: int, gradients: Tensors) -> Tensors:
        """B: return the gradients of the differentiable inputs."""
        ...

    def backward_weight(self, microbatch: int) -> None:
        """Run W: add the gradients of the weights to those of earlier micro-batches."""
        ...

    def reads_weights_in_w(self, microbatch: int) -> bool:
        """True if W of a micro-batch reads parameters, not only their shapes."""
        ...

    def backward(self, microbatch: int, gradients: Tensors) -> Tensors:
        """BW: return the gradients of the differentiable inputs."""
        ...

    def parameters(self) -> Iterable[Tensor]:
        """The trainable parameters."""
        ...

    def copy_of(self, parameter: Tensor) -> Tensor:
        """A copy of one of the parameters' values, without gradient."""
        ...

    def state(self) -> Iterable[Tensor]:
        """The tensors that copies of the stage have in common: parameters and buffers."""
        ...

    def forget(self) -> None:
        """Drop the micro-batches in flight."""
        ...
