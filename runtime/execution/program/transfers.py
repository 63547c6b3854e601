"""The transfers of a rank's program, each in the slot of its value: post, start and wait.

A receive's buffers are allocated here, when the receive is posted.
"""

from collections.abc import Callable
from functools import partial

from synth.schedule.lowering.lower import Action, Instruction, Transfer
from synth.schedule.ops import ValueKind
from synth.schedule.validation_point import HalfOpenTransfers

from ..base.boundary import Tensors, packed
from ..base.rank_context import RankContext
from ..stage.offload_ops import OffloadOps
from ..stage.replay_input import packed_buffer
from ..weights.weight_passing import WeightPassing


class RankTransfers:
    """Sends and receives of one rank."""

    def __init__(
        self, context: RankContext, moves: OffloadOps, weight_passing: WeightPassing | None
    ) -> None:
        """Prepare a rank.

        Args:
            moves: knows the shapes of saved activations that move.
            weight_passing: sends and receives weights and accumulated gradients; None: weights
                stay.
        """
        self._channels, self._device = context.channels, context.device
        self._slots, self._table = context.slots, context.table
        self._moves, self._weight_passing = moves, weight_passing

    def compile(self, instruction: Instruction) -> Callable[[], None]:
        """Return a function that runs a RECV, SEND or SENT."""
        transfer = instruction.moved
        slot, number = self._slots.number(transfer.value), self._slots.send_number(transfer)
        if instruction.action == Action.RECV:
            return partial(self._receive, slot, transfer)
        if instruction.action == Action.SEND:
            return partial(self._send, slot, number, transfer)
        return partial(self._sent, number, transfer)

    def complete(self, half_open: HalfOpenTransfers) -> None:
        """Complete the transfers in flight, which cannot be undone as ops can.

        The missing end of each half-open transfer is started, with arbitrary contents. Sends start
        before any wait, so that no two ranks wait for each other. Receives are waited for one by
        one, so that only one of them takes memory.
        """
        step = self._table
        open_ones = list(step.leaving.values())
        open_ones += [self._channels.send(self._buffers(t), t) for t in half_open.to_send]
        for pending in step.arriving:
            if pending is not None:
                pending.wait()
        for transfer in half_open.to_receive:
            self._channels.receive(self._buffers(transfer), transfer).wait()
        for pending in open_ones:
            pending.wait()

    def _buffers(self, transfer: Transfer) -> Tensors:
        """Empty tensors of a transfer's shapes."""
        kind, stage, microbatch, _ = transfer.value
        if kind in (ValueKind.WEIGHTS, ValueKind.GRAD_SUM) and self._weight_passing is not None:
            return self._weight_passing.buffers(transfer.value)
        if kind == ValueKind.REPLAY_INPUT:
            return (packed_buffer(),)
        if kind in (ValueKind.MOVED_OUT, ValueKind.MOVED_BACK):
            return self._moves.buffers(stage, microbatch, self._device)
        boundary = self._table.shapes[microbatch][stage]
        if kind == ValueKind.ACT:
            return packed(boundary.leaves, boundary.activations(self._device))
        return packed(boundary.differentiable, boundary.gradients(self._device))

    def _receive(self, slot: int, transfer: Transfer) -> None:
        buffers = self._buffers(transfer)
        receiver = self._channels if self._weight_passing is None else self._weight_passing
        self._table.arriving[slot] = receiver.receive(buffers, transfer)

    def _send(self, slot: int, number: int, transfer: Transfer) -> None:
        tensors = self._table.values[slot]
        if self._weight_passing is not None and self._weight_passing.carries(transfer):
            self._table.leaving[number] = self._weight_passing.send(tensors, transfer)
            return
        if tensors is None:
            raise RuntimeError(f"{transfer} is to be sent before it was made")
        self._table.leaving[number] = self._channels.send(tensors, transfer)

    def _sent(self, number: int, transfer: Transfer) -> None:
        pending = self._table.leaving.pop(number, None)
        if pending is None:
            raise RuntimeError(f"{transfer} was not started")
        pending.wait()
