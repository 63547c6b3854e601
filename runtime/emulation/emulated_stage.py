"""A stage that takes the profile's time and memory, and computes nothing."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synth.costs.stage_costs import StageCosts
from synth.errors import RunFailure
from synth.op_kinds import OpKind
from synth.schedule.ops import ValueKind

from ..execution.base.boundary import Boundary, Leaf, Tensors
from ..execution.base.stage_protocol import ForwardInput
from .emulated_clock import EmulatedClock

# A message carries the moment at which it was sent, and how late its sender was.
STAMP_BYTES = 16


def boundary_of(costs: StageCosts) -> Boundary:
    """Return the boundary after a stage: bytes that have gradients, at least a stamp; others."""
    trained = max(min(costs.returned_bytes, costs.output_bytes), STAMP_BYTES)
    leaves = [Leaf((trained,), torch.uint8, True)]
    if costs.output_bytes > trained:
        leaves.append(Leaf((costs.output_bytes - trained,), torch.uint8, False))
    return Boundary(tuple(leaves))


def moved_bytes(costs: StageCosts) -> int:
    """The bytes of a stage's micro-batch that move, at least a time stamp."""
    return max(costs.saved_bytes, STAMP_BYTES)


class EmulatedStage:
    """Implements the executor's `StageProtocol`, with the bytes and times of the costs.

    The executor holds inputs, outputs and their gradients, as with a real stage.
    """

    def __init__(
        self,
        costs: StageCosts,
        before: StageCosts | None,
        device: EmulatedClock,
        *,
        is_last: bool,
        has_versions: bool = False,
        op_us: Callable[[OpKind, int], int] | None = None,
        at_once_us: Mapping[tuple[OpKind, int], int] | None = None,
        own_bytes: Mapping[ValueKind, int] | None = None,
    ) -> None:
        """Make a stage.

        Args:
            costs: its times and bytes.
            before: the costs of the previous stage; None: this is the first stage.
            is_last: True if F returns the loss.
            has_versions: True if its weights are allocated, as updates replace them.
            op_us: returns the time that an op of a kind takes now, given its time in the plan;
                None: that of the plan.
            at_once_us: the times in the plan, by kind and micro-batch, of ops that run at once with
                another one, as if they took turns; None: there are none.
            own_bytes: what the output, and the gradient of the input, take on this rank besides
                memory that is held anyway; None: all that is sent.
        """
        self._device = device
        self._op_us, self._at_once_us = op_us, at_once_us or {}
        self.is_last = is_last
        self._costs = costs
        self._input = None if before is None else boundary_of(before)
        self._output = boundary_of(costs)
        self._own_bytes = own_bytes or {}
        self._held: dict[int, Tensor] = {}
        self._again: dict[int, Tensor] = {}
        self._moved_bytes = moved_bytes(costs)
        self._loss = torch.zeros(())
        self._parameters = (_hold(costs.parameter_bytes),) if has_versions else ()

    def begin(self) -> None:
        """Do nothing: a step needs no preparation."""

    def reduce_gradients(self) -> None:
        """Do nothing: there is one pipeline."""

    def end(self) -> None:
        """Do nothing."""

    def forward(self, microbatch: int, forward_input: ForwardInput) -> Tensors:
        """F: afterwards `saved_bytes` are held."""
        self._take(OpKind.F, microbatch)
        self._held[microbatch] = self._saved(forward_input)
        return (self._loss,) if self.is_last else self._made(ValueKind.ACT, self._output.leaves)

    def forward_light(self, microbatch: int, forward_input: ForwardInput) -> Tensors:
        """F that R follows: afterwards `replay_bytes` are held."""
        self._take(OpKind.F, microbatch, self._costs.light_rise)
        self._held[microbatch] = _hold(self._costs.replay_bytes)
        return (self._loss,) if self.is_last else self._made(ValueKind.ACT, self._output.leaves)

    def rebuild(self, microbatch: int, forward_input: ForwardInput) -> None:
        """R: afterwards `saved_bytes` are held, and the output if a layer holds it."""
        self._take(OpKind.R, microbatch)
        del self._held[microbatch]
        self._held[microbatch] = self._saved(forward_input)
        if self._costs.output_until != OpKind.F:
            self._again[microbatch] = _hold(self._costs.output_bytes)

    def give_replay(self, microbatch: int) -> Tensors:
        """Release the bytes that F kept for R."""
        return (self._held.pop(microbatch),)

    def take_replay(self, microbatch: int, given: Tensors) -> None:
        """Hold them for R, which runs here."""
        (self._held[microbatch],) = given

    def take_saved(self, microbatch: int) -> Tensors:
        """O: release the held bytes."""
        return (self._held.pop(microbatch),)

    def saved_sizes(self, microbatch: int) -> tuple[int, ...]:
        """The bytes of the storage that moves."""
        return (self._moved_bytes,)

    def put_back(self, microbatch: int, saved: Tensors) -> None:
        """Hold the bytes again."""
        (self._held[microbatch],) = saved

    def backward_input(self, microbatch: int, gradients: Tensors) -> Tensors:
        """Take the time of B; afterwards only `saved_w_bytes` are held."""
        self._take(OpKind.B, microbatch)
        del self._held[microbatch]
        if self._costs.output_until != OpKind.W:
            self._again.pop(microbatch, None)
        self._held[microbatch] = _hold(self._costs.saved_w_bytes)
        return self._gradients()

    def reads_weights_in_w(self, microbatch: int) -> bool:
        """Return False: there are no weights."""
        return False

    def backward_weight(self, microbatch: int) -> None:
        """Take the time of W; afterwards nothing is held."""
        self._take(OpKind.W, microbatch)
        del self._held[microbatch]
        self._again.pop(microbatch, None)

    def backward(self, microbatch: int, gradients: Tensors) -> Tensors:
        """Take the time of BW; afterwards nothing is held."""
        self._take(OpKind.BW, microbatch)
        self._again.pop(microbatch, None)
        del self._held[microbatch]
        return self._gradients()

    def step(self) -> None:
        """Take the time of STEP."""
        self._take(OpKind.STEP, 0)

    def parameters(self) -> Iterable[Tensor]:
        """One of all bytes if weights have versions; else they are counted, not held."""
        return self._parameters

    def copy_of(self, parameter: Tensor) -> Tensor:
        """Allocate a copy; copying takes no time in the plan."""
        return _hold(parameter.nbytes)

    def renew(self) -> Tensors:
        """Move the parameters to new memory, so that a measurement sees when they are freed.

        Returns:
            Their old memory, to be held until the measurement ends.
        """
        old = tuple(parameter.data for parameter in self._parameters)
        for parameter in self._parameters:
            parameter.data = self.copy_of(parameter)
        return old

    def state(self) -> Iterable[Tensor]:
        """There is none: its bytes are counted, not held."""
        return ()

    def forget(self) -> None:
        """Drop the micro-batches in flight."""
        self._held.clear()
        self._again.clear()

    def _saved(self, forward_input: ForwardInput) -> Tensor:
        return _hold(self._moved_bytes if forward_input.moved else self._costs.saved_bytes)

    def _gradients(self) -> Tensors:
        return () if self._input is None else self._made(ValueKind.GRAD, self._input.differentiable)

    def _made(self, kind: ValueKind, leaves: tuple[Leaf, ...]) -> Tensors:
        """Make what is sent, of which only the stage's own bytes count as memory."""
        own_bytes = self._own_bytes.get(kind)
        if own_bytes is None or own_bytes == sum(leaf.shape[0] for leaf in leaves):
            return tuple([leaf.empty("cpu") for leaf in leaves])
        own = _hold(own_bytes)
        return tuple([torch.from_numpy(_ArrayOf(own, leaf.shape)) for leaf in leaves])

    def _take(self, kind: OpKind, microbatch: int, rise_bytes: int | None = None) -> None:
        """Let the op's time pass, with the memory rise that it has while it runs."""
        _hold(self._costs.rise_bytes[kind] if rise_bytes is None else rise_bytes)
        planned_us = self._at_once_us.get((kind, microbatch), self._costs.duration_us[kind])
        self._device.run(planned_us if self._op_us is None else self._op_us(kind, planned_us))


class _ArrayOf(np.ndarray[Any, np.dtype[np.uint8]]):
    """An array whose memory torch does not count, and which keeps a tensor that it counts."""

    def __new__(cls, kept: Tensor, shape: tuple[int, ...]) -> "_ArrayOf":
        array = np.empty(shape, np.uint8).view(cls)
        array.kept = kept  # type: ignore[attr-defined]
        return array


def _hold(num_bytes: int) -> Tensor:
    """Allocate bytes that are never touched, so that the system commits no memory for them.

    Raises:
        RunFailure: the allocation fails.
    """
    try:
        return torch.empty(num_bytes, dtype=torch.uint8)
    except RuntimeError as error:
        raise RunFailure(
            f"an emulated op could not get {num_bytes} bytes ({str(error).splitlines()[0]}); "
            f"give --sizes 0.01 for a hundredth of all sizes"
        ) from None
