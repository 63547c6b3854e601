"""Compiles the instructions of a rank: one function for each, by the handler of its subject."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch

from synth.errors import SynthError
from synth.op_kinds import VISITS, OpKind
from synth.schedule.lowering.lower import Action, Instruction
from synth.schedule.ops import Op, ValueKind

from ..base.current_micro_batch import CurrentMicroBatch, running
from ..base.rank_context import RankContext
from ..gradients.copies_and_ties import Reducer
from .pair_streams import PairStreams
from .rank_handlers import RankHandlers

Run = Callable[[], None]

_OF_MICRO_BATCHES = (OpKind.F, OpKind.R, OpKind.B, OpKind.W, OpKind.BW)

# The values that cross between ranks, or to the host and back, besides weights and sums.
_TRANSFERRED = (
    ValueKind.ACT,
    ValueKind.GRAD,
    ValueKind.REPLAY_INPUT,
    ValueKind.MOVED_OUT,
    ValueKind.MOVED_BACK,
)


class InstructionCompiler:
    """Looks up slots, stages and handlers of instructions once, ahead of all steps."""

    def __init__(
        self, context: RankContext, handlers: RankHandlers, reducer: Reducer | None
    ) -> None:
        """Take a rank's handlers.

        Args:
            reducer: adds up the gradients of copies; None: no stage has copies.
        """
        self._reads, self._clock = context.lowered.effects.reads, context.clock
        self._reducer = reducer
        self._slots, self._table = context.slots, context.table
        self._device, overlapped = context.device, context.lowered.schedule.overlapped
        self._streams: PairStreams | None = None
        # By F the BW that is to begin with it, where both run one after the other.
        self._together: dict[Op, Op] = {}
        if context.device.type != "cuda":
            pairs = pairwise(context.ops)
            self._together = {op: after for op, after in pairs if op in overlapped}
        elif not overlapped.isdisjoint(context.ops):
            self._streams = PairStreams(context.ops, overlapped, context.device)
        self._weight_passing, self._versions = handlers.weight_passing, handlers.versions
        self._transfers, self._updates = handlers.transfers, handlers.updates
        ops, moves = handlers.ops, handlers.moves
        self._handlers: dict[OpKind, Callable[[Op], Run]] = {
            OpKind.F: ops.forward,
            OpKind.R: ops.rebuild,
            OpKind.B: ops.backward,
            OpKind.BW: ops.backward,
            OpKind.W: ops.weights,
            OpKind.STEP: handlers.updates.compile_step,
            OpKind.OFFLOAD: moves.offload,
            OpKind.RELOAD: moves.expect,
            OpKind.HOST_FOR: moves.expect,
            OpKind.RETURN: moves.give,
        }

    def compile(self, instruction: Instruction) -> Run:
        """Return a function that runs an instruction.

        Raises:
            SynthError: a stage has copies, and there is no reducer.
        """
        if instruction.action == Action.COMPUTE:
            return self._compile_op(instruction.compute)
        if instruction.action in (Action.COLLECT, Action.COLLECTED):
            return self._compile_collective(instruction)
        return self._transfers.compile(instruction)

    def freed_slots(self, instruction: Instruction) -> list[int]:
        """Return the slots that are empty after an instruction.

        Only the slots of instructions that were compiled before are known.
        """
        numbers = self._slots.numbers
        return [numbers[value] for value in instruction.frees if value in numbers]

    def _compile_collective(self, instruction: Instruction) -> Run:
        collective, starts = instruction.collected, instruction.action == Action.COLLECT
        if self._weight_passing is not None:
            collectives = self._weight_passing.collectives
            run = collectives.start if starts else collectives.end_reduction
            return partial(run, collective)
        if self._reducer is None:
            raise SynthError("this schedule has copies of stages; it needs a GradientReducer")
        return partial(self._reducer.start, collective)

    def _compile_op(self, op: Op) -> Run:
        reads = [*self._reads(op)]
        if op in self._together:
            reads += self._reads(self._together[op])
        arrivals = [self._slots.number(value) for value in reads if value.kind in _TRANSFERRED]
        # Ops of visits compute nothing: they begin and end transfers, collectives and frees.
        work = _nothing if op.kind in VISITS else self._handlers[op.kind](op)
        if op.kind in _OF_MICRO_BATCHES:
            work = partial(self._for_micro_batch, op.microbatch, work)
        if self._weight_passing is not None or self._versions is not None:
            work = partial(_with_new_casts, work)
        if self._weight_passing is not None:
            arrivals += self._weight_passing.arrivals(op)
            work = self._weight_passing.running(op, work)
        if self._versions is not None:
            work = self._versions.running(op, work)
        run: Run = partial(self._compute, op, arrivals, work)
        if self._streams is not None:
            run = self._streams.running(op, run)
        return self._updates.after(op, run)

    def _for_micro_batch(self, microbatch: int, work: Run) -> None:
        with running(CurrentMicroBatch(microbatch, self._table.terms, self._device)):
            work()

    def _compute(self, op: Op, arrivals: list[int], work: Run) -> None:
        """Wait for the inputs that are under way, then run the op."""
        table, clock = self._table, self._clock
        for slot in arrivals:
            if table.arriving[slot] is not None:
                table.take_in(slot)
        if op.kind == OpKind.STEP:
            self._updates.prepare(op)
        if clock.recording:
            with clock.measure(op):
                work()
        else:
            work()


def _with_new_casts(work: Run) -> None:
    """Run an op whose parameters may have changed since a caller's autocast has cast them."""
    torch.clear_autocast_cache()
    work()


def _nothing() -> None:
    """Do nothing."""
