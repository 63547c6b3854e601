"""A rank's lowered program, compiled: one function for each instruction.

Slots of values, stages and handlers are looked up when the program is compiled, and not again in a
step. The table holds exactly the values that the plan's memory counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from synth.errors import RunFailure, SynthError
from synth.op_kinds import VISITS, OpKind
from synth.schedule.lowering.lower import Action, Instruction, Lowered
from synth.schedule.ops import Op, Value, ValueKind
from synth.schedule.validation_point import HalfOpenTransfers

from ...batch import Batch
from ..gradients.copies_and_ties import Reducer
from ..gradients.data_parallel import DataParallel
from ..stage.loss_terms import LossTerms
from ..stage.offload_ops import OffloadOps
from ..stage.stage_ops import StageOps
from ..transport.channels import Channels
from ..transport.thread_order import DeviceOrder, ThreadOrder
from ..weights.kept_protocol import KeptProtocol
from ..weights.versions import VersionedWeights
from ..weights.weight_passing import WeightPassing
from .clock import OpClock
from .failure import describe_failure
from .progress import RankProgress
from .stage_protocol import StageProtocol
from .step_table import SavedSizes, Shapes, Slots, StepTable
from .transfers import RankTransfers
from .updates import Updates

# The values that cross between ranks, or to the host and back, besides weights and sums.
_TRANSFERRED = (
    ValueKind.ACT,
    ValueKind.GRAD,
    ValueKind.REPLAY_INPUT,
    ValueKind.MOVED_OUT,
    ValueKind.MOVED_BACK,
)


class CompiledProgram:
    """The instructions of one rank, ready to run, and the values that they hold in a step.

    Attributes:
        lowered: the lowered schedule.
        rank: the rank whose program this is.
        channels: the channels of the rank's transfers.
        updates: reduces gradients, and carries out STEPs.
        versions: the weights of the rank by version; None: every op reads the newest ones.
        holds_last: True if the rank has the last stage.
    """

    def __init__(
        self,
        lowered: Lowered,
        rank: int,
        stages: Mapping[int, StageProtocol],
        channels: Channels,
        *,
        device: torch.device,
        clock: OpClock,
        kept: Mapping[int, KeptProtocol] | None = None,
        order: ThreadOrder | None = None,
        reducer: Reducer | None = None,
        data_parallel: DataParallel | None = None,
        on_gradients: Callable[[int], None] | None = None,
        progress: RankProgress | None = None,
    ) -> None:
        """Compile the program of a rank.

        Args:
            lowered: a verified schedule, lowered.
            rank: the rank whose program is compiled.
            stages: the stages that the placement gives this rank, by number; two copies of a
                stage on one rank are one.
            channels: opened for the lowered schedule's transfers.
            device: the device of all tensors.
            clock: records the times of ops.
            kept: what this rank keeps of its stages, by number, with weight passing.
            order: among the threads that send weights; None: that of the device.
            reducer: adds up the gradients that several ranks hold; None: no stage has copies.
            data_parallel: averages gradients over pipelines side by side; None: there is one.
            on_gradients: called with a stage's number after its last backward of a step that
                updates.
            progress: updated before each instruction, for a post-mortem.

        Raises:
            SynthError: the schedule passes weights, and `kept` is missing; or backwards are to
                read newer weights than their forwards kept.
        """
        if lowered.visits is not None and kept is None:
            raise SynthError(
                "this schedule passes weights, and nothing says what this rank keeps of its "
                "stages; give it, or run a schedule whose weights stay"
            )
        self.lowered, self.rank, self.channels = lowered, rank, channels
        self.holds_last = any(stage.is_last for stage in stages.values())
        self._program = lowered.programs[rank]
        self._stages = stages
        self._clock = clock
        self._reducer = reducer
        self._progress = progress
        self._table, self._slots = StepTable(), Slots()
        ops = lowered.ops[rank]
        self._moves = OffloadOps(ops, stages, self._slots, self._table)
        rebuilt = {op[1:] for each in lowered.ops for op in each if op.kind == OpKind.R}
        self._ops = StageOps(ops, stages, self._moves, self._slots, self._table, device, rebuilt)
        self._weight_passing: WeightPassing | None = None
        if lowered.visits is not None and kept is not None:
            self._weight_passing = WeightPassing(
                lowered,
                rank,
                stages,
                kept,
                channels,
                self._slots,
                self._table,
                device=device,
                clock=clock,
                order=order or DeviceOrder(device),
            )
        self.versions: VersionedWeights | None = None
        if lowered.versions is not None:
            self.versions = VersionedWeights(lowered, rank, stages, self._slots, self._table)
        self._transfers = RankTransfers(
            channels, self._moves, self._weight_passing, self._slots, self._table, device
        )
        self.updates = Updates(
            ops,
            stages,
            self._table,
            weight_passing=self._weight_passing,
            reducer=reducer,
            data_parallel=data_parallel,
            on_gradients=on_gradients,
            at_every_step=self.versions is not None,
        )
        self._actions = [self._compile(i) for i in self._program]
        self._frees = [self._freed(i) for i in self._program]
        self._all = range(len(self._program))
        # Sums of gradients are passed to their home in the program of each step, updating or not.
        self._without_update = [
            i
            for i in self._all
            if self._weight_passing is not None or not _is_of_update(self._program[i])
        ]

    @property
    def num_held(self) -> int:
        """The number of values and open transfers held now; 0 between steps."""
        return self._table.num_held

    @property
    def loss(self) -> Tensor:
        """The loss of the step, on a rank with the last stage; the next step overwrites it."""
        return self._ops.loss

    def places(self, update: bool) -> Sequence[int]:
        """Return the places of the instructions of a step, which may leave out the update."""
        return self._all if update else self._without_update

    def begin(
        self, batch: Batch, shapes: Shapes, saved_sizes: SavedSizes, terms: LossTerms
    ) -> None:
        """Begin an iteration without values; the arguments are those of `Executor.step`."""
        self._table.begin(batch, shapes, saved_sizes, terms, len(self._slots.numbers))
        terms.begin(holds_last=self.holds_last)
        self._ops.loss.zero_()
        self._clock.begin()
        if self._weight_passing is not None:
            self._weight_passing.begin()

    def run(self, places: Iterable[int]) -> None:
        """Run the instructions at some places of the program, in this order.

        Raises:
            RunFailure: one failed; names this rank and the instruction.
        """
        values = self._table.values
        for index in places:
            self.note_place(index)
            self.run_one(index)
            for slot in self._frees[index]:
                values[slot] = None

    def note_place(self, place: int) -> None:
        """Note that everything before this place has run, for a post-mortem."""
        if self._progress is not None:
            self._progress.at(place)

    def run_one(self, index: int) -> None:
        """Run an instruction.

        Raises:
            RunFailure: it failed; names this rank and the instruction.
        """
        try:
            self._actions[index]()
        except RunFailure:
            raise
        except Exception as error:
            raise RunFailure(self._describe(self._program[index], error)) from error

    def free(self, values: Iterable[Value]) -> None:
        """Drop values from the table; others are held by the stages."""
        for value in values:
            slot = self._slots.numbers.get(value)
            if slot is not None:
                self._table.values[slot] = None

    def end(self) -> None:
        """End an iteration whose instructions have all run."""
        if self._weight_passing is not None:
            self._weight_passing.end()

    def undo(self, half_open: HalfOpenTransfers) -> None:
        """Undo the ops that ran before the validation point, as all other ranks do.

        Activations are dropped first, which frees the memory for the transfers that are completed.
        """
        self._table.values.clear()
        for stage in self._stages.values():
            stage.forget()
        self._transfers.complete(half_open)

    def clear(self) -> None:
        """Drop the values of a step that is over."""
        self._table.clear()

    def forget(self) -> None:
        """Drop everything of a step that failed."""
        self._table.clear()
        if self._weight_passing is not None:
            self._weight_passing.forget()
        if self.versions is not None:
            self.versions.forget()
        for stage in self._stages.values():
            stage.forget()

    def begin_stages(self) -> None:
        """Prepare the stages for a step."""
        for stage in self._stages.values():
            stage.begin()

    def end_stages(self) -> None:
        """Tell the stages that a step has ended or failed."""
        for stage in self._stages.values():
            stage.end()

    def _compile(self, instruction: Instruction) -> Callable[[], None]:
        """Return a function that runs an instruction."""
        if instruction.action == Action.COMPUTE:
            return self._compile_op(instruction.compute)
        if instruction.action in (Action.COLLECT, Action.COLLECTED):
            return self._compile_collective(instruction)
        return self._transfers.compile(instruction)

    def _compile_collective(self, instruction: Instruction) -> Callable[[], None]:
        collective, starts = instruction.collected, instruction.action == Action.COLLECT
        if self._weight_passing is not None:
            collectives = self._weight_passing.collectives
            run = collectives.start if starts else collectives.end_reduction
            return partial(run, collective)
        if self._reducer is None:
            raise SynthError("this schedule has copies of stages; it needs a GradientReducer")
        return partial(self._reducer.start, collective)

    def _compile_op(self, op: Op) -> Callable[[], None]:
        arrivals = [
            self._slots.number(value)
            for value in self.lowered.effects.reads(op)
            if value.kind in _TRANSFERRED
        ]
        handlers: dict[OpKind, Callable[[Op], Callable[[], None]]] = {
            OpKind.F: self._ops.forward,
            OpKind.R: self._ops.rebuild,
            OpKind.B: self._ops.backward,
            OpKind.BW: self._ops.backward,
            OpKind.W: self._ops.weights,
            OpKind.STEP: self.updates.compile_step,
            OpKind.OFFLOAD: self._moves.offload,
            OpKind.RELOAD: self._moves.expect,
            OpKind.HOST_FOR: self._moves.expect,
            OpKind.RETURN: self._moves.give,
        }
        # Ops of visits compute nothing: they begin and end transfers, collectives and frees.
        work = _nothing if op.kind in VISITS else handlers[op.kind](op)
        if self._weight_passing is not None:
            arrivals += self._weight_passing.arrivals(op)
            work = self._weight_passing.running(op, work)
        if self.versions is not None:
            work = self.versions.running(op, work)
        run = partial(self._compute, op, arrivals, work)
        return self.updates.after(op, run)

    def _freed(self, instruction: Instruction) -> list[int]:
        numbers = self._slots.numbers
        return [numbers[value] for value in instruction.frees if value in numbers]

    def _compute(self, op: Op, arrivals: list[int], work: Callable[[], None]) -> None:
        """Wait for the inputs that are under way, then run the op."""
        step = self._table
        for slot in arrivals:
            if step.arriving[slot] is not None:
                step.take_in(slot)
        if op.kind == OpKind.STEP:
            self.updates.prepare(op)
        if self._clock.recording:
            with self._clock.measure(op):
                work()
        else:
            work()

    def _describe(self, instruction: Instruction, error: Exception) -> str:
        numbers, arriving = self._slots.numbers, self._table.arriving
        waits = ", ".join(str(value) for value, slot in numbers.items() if arriving[slot])
        waiting = f" (receives open: {waits})" if waits else ""
        return f"rank {self.rank} failed in {instruction}{waiting}: {describe_failure(error)}"


def _nothing() -> None:
    """Do nothing."""


def _is_of_update(instruction: Instruction) -> bool:
    """True if the instruction is left out when gradients only accumulate."""
    if instruction.action == Action.COMPUTE:
        return instruction.compute.kind == OpKind.STEP
    return instruction.action == Action.COLLECT
