"""A rank's lowered program, compiled: one function for each instruction.

Slots of values, stages and handlers are looked up when the program is compiled, and not again in a
step. The table holds exactly the values that the plan's memory counts.
"""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from synth.errors import RunFailure
from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Action, Instruction
from synth.schedule.ops import Value
from synth.schedule.validation_point import HalfOpenTransfers

from ...batch import Batch
from ..base.failure import describe_failure
from ..base.loss_terms import LossTerms
from ..base.rank_context import RankContext
from ..base.step_table import SavedSizes, Shapes
from ..gradients.reductions import Reductions
from ..transport.thread_order import ThreadOrder
from ..weights.kept_protocol import KeptProtocol
from ..weights.versions import VersionedWeights
from .instruction_compiler import InstructionCompiler
from .progress import RankProgress
from .rank_handlers import RankHandlers
from .updates import Updates

_NO_REDUCTIONS = Reductions()


class CompiledProgram:
    """The instructions of one rank, ready to run, and the values that they hold in a step.

    Attributes:
        channels: the channels of the rank's transfers.
        holds_last: True if the rank has the last stage.
    """

    def __init__(
        self,
        context: RankContext,
        *,
        kept: Mapping[int, KeptProtocol] | None = None,
        order: ThreadOrder | None = None,
        reductions: Reductions = _NO_REDUCTIONS,
        progress: RankProgress | None = None,
    ) -> None:
        """Compile the program of a rank.

        Args:
            context: the rank, with the table of its steps.
            kept: what this rank keeps of its stages, by number, with weight passing.
            order: among the threads that send weights; None: that of the device.
            reductions: of the rank's gradients.
            progress: updated before each instruction, for a post-mortem.

        Raises:
            SynthError: the schedule passes weights, and `kept` is missing; or backwards are to
                read newer weights than their forwards kept.
        """
        self.lowered, self.rank, self.channels = context.lowered, context.rank, context.channels
        self.holds_last = context.holds_last
        self._program, self._stages = context.program, context.stages
        self._clock, self._progress = context.clock, progress
        self._table, self._slots = context.table, context.slots
        self._handlers = RankHandlers.of(context, kept, order, reductions)
        compiler = InstructionCompiler(context, self._handlers, reductions.reducer)
        self._actions = [compiler.compile(i) for i in self._program]
        self._frees = [compiler.freed_slots(i) for i in self._program]
        self._all = range(len(self._program))
        # Sums of gradients are passed to their home in the program of each step, updating or not.
        self._without_update = [
            i
            for i in self._all
            if self._handlers.weight_passing is not None or not _is_of_update(self._program[i])
        ]

    @property
    def updates(self) -> Updates:
        """Reduces gradients, and carries out STEPs."""
        return self._handlers.updates

    @property
    def versions(self) -> VersionedWeights | None:
        """The weights of the rank by version; None: every op reads the newest ones."""
        return self._handlers.versions

    @property
    def num_held(self) -> int:
        """The number of values and open transfers held now; 0 between steps."""
        return self._table.num_held

    @property
    def loss(self) -> Tensor:
        """The loss of the step, on a rank with the last stage; the next step overwrites it."""
        return self._handlers.ops.loss

    def places(self, update: bool) -> Sequence[int]:
        """Return the places of the instructions of a step, which may leave out the update."""
        return self._all if update else self._without_update

    def begin(
        self, batch: Batch, shapes: Shapes, saved_sizes: SavedSizes, terms: LossTerms
    ) -> None:
        """Begin an iteration without values; the arguments are those of `Executor.step`."""
        self._table.begin(batch, shapes, saved_sizes, terms, len(self._slots.numbers))
        terms.begin(holds_last=self.holds_last)
        self._handlers.ops.loss.zero_()
        self._clock.begin()
        if self._handlers.weight_passing is not None:
            self._handlers.weight_passing.begin()
        if self.versions is not None:
            self.versions.begin()

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
        if self._handlers.weight_passing is not None:
            self._handlers.weight_passing.end()

    def undo(self, half_open: HalfOpenTransfers) -> None:
        """Undo the ops that ran before the validation point, as all other ranks do.

        Activations are dropped first, which frees the memory for the transfers that are completed.
        """
        self._table.values.clear()
        for stage in self._stages.values():
            stage.forget()
        self._handlers.transfers.complete(half_open)

    def clear(self) -> None:
        """Drop the values of a step that is over."""
        self._table.clear()

    def forget(self) -> None:
        """Drop everything of a step that failed."""
        self._table.clear()
        if self._handlers.weight_passing is not None:
            self._handlers.weight_passing.forget()
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

    def _describe(self, instruction: Instruction, error: Exception) -> str:
        numbers, arriving = self._slots.numbers, self._table.arriving
        waits = ", ".join(str(value) for value, slot in numbers.items() if arriving[slot])
        waiting = f" (receives open: {waits})" if waits else ""
        return f"rank {self.rank} failed in {instruction}{waiting}: {describe_failure(error)}"


def _is_of_update(instruction: Instruction) -> bool:
    """True if the instruction is left out when gradients only accumulate."""
    if instruction.action == Action.COMPUTE:
        return instruction.compute.kind == OpKind.STEP
    return instruction.action == Action.COLLECT
