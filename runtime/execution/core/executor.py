"""The executor: replays one rank's lowered program op by op, within the planned memory.

It makes no decisions, unless it may look ahead (`out_of_order.py`). The program says when a receive
is posted, when a send is waited for and when a value dies. The executor's table holds exactly the
values that the plan's memory counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from synth.errors import RunFailure, SynthError
from synth.op_kinds import VISITS, OpKind
from synth.schedule.lowering.lower import Action, Instruction, Lowered
from synth.schedule.ops import Op, Value, ValueKind
from synth.schedule.validation_point import HalfOpenTransfers, find_validation_points

from ...batch import Batch
from ..gradients.copies_and_ties import Reducer
from ..gradients.data_parallel import DataParallel
from ..stage.loss_terms import LossTerms
from ..stage.saved_moves import Moves
from ..stage.stage_ops import StageOps
from ..transport.channels import Channels
from ..weights.kept_stage import KeptStage
from ..weights.travel import WeightTravel
from ..weights.versions import VersionedWeights
from .clock import OpClock
from .failure import describe_failure
from .out_of_order import OutOfOrder
from .progress import RankProgress
from .stage_protocol import StageProtocol
from .step_table import SavedSizes, Shapes, Slots, StepTable
from .stepper import ForwardPredictor, Stepper
from .transfers import RankTransfers
from .updates import Updates

# The values that cross between ranks, or to the host and back, besides weights and sums.
_TRANSFERRED = (ValueKind.ACT, ValueKind.GRAD, ValueKind.MOVED_OUT, ValueKind.MOVED_BACK)
_NONE_KEPT: SavedSizes = {}


class Executor:
    """Runs a rank's program once per `step`."""

    def __init__(
        self,
        lowered: Lowered,
        rank: int,
        stages: Mapping[int, StageProtocol],
        channels: Channels,
        *,
        device: torch.device,
        clock: OpClock,
        kept: Mapping[int, KeptStage] | None = None,
        reducer: Reducer | None = None,
        data_parallel: DataParallel | None = None,
        on_gradients: Callable[[int], None] | None = None,
        progress: RankProgress | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
        out_of_order: OutOfOrder | None = None,
    ) -> None:
        """Prepare a rank.

        Args:
            lowered: a verified schedule, lowered.
            rank: the rank whose program is run.
            stages: the stages that the placement gives this rank, by number; two copies of a
                stage on one rank are one.
            channels: opened for the lowered schedule's transfers.
            device: the device of all tensors.
            clock: records the times of ops.
            kept: what this rank keeps of its stages, by number, if weights travel.
            reducer: adds up the gradients that several ranks hold; None: no stage has copies.
            data_parallel: averages gradients over pipelines side by side; None: there is one.
            on_gradients: called with a stage's number after its last backward of a step that
                updates.
            progress: updated before each instruction, for a post-mortem.
            on_failure: called with the error that ends a step, before other ranks can notice.
            out_of_order: chooses instructions while the next one waits; None: the program's order.

        Raises:
            SynthError: weights travel, and `kept` is missing; or backwards are to read newer
                weights than their forwards kept.
        """
        if lowered.visits is not None and kept is None:
            raise SynthError(
                "weights travel in this schedule, which can be run on real stages only; run one "
                "whose weights stay"
            )
        self._lowered = lowered
        self._rank = rank
        self._program = lowered.programs[rank]
        self._stages = stages
        self._holds_last = any(stage.is_last for stage in stages.values())
        self._channels = channels
        self._device = device
        self._clock = clock
        self._reducer = reducer
        self._point = 0
        self._half_open = HalfOpenTransfers((), ())
        self._progress = progress
        self._on_failure = on_failure
        self._out_of_order = out_of_order
        schedule = lowered.schedule
        self._mean = LossTerms.of(schedule.num_micro_batches, updates=schedule.num_updates)
        self._is_broken = False
        self._table, self._slots = StepTable(), Slots()
        ops = lowered.ops[rank]
        self._moves = Moves(ops, stages, self._slots, self._table)
        self._ops = StageOps(ops, stages, self._moves, self._slots, self._table, device)
        self._travel: WeightTravel | None = None
        if lowered.visits is not None and kept is not None:
            self._travel = WeightTravel(
                lowered,
                rank,
                stages,
                kept,
                channels,
                self._slots,
                self._table,
                device=device,
                clock=clock,
            )
        self._versions: VersionedWeights | None = None
        if lowered.versions is not None:
            self._versions = VersionedWeights(lowered, rank, stages, self._slots, self._table)
        self._transfers = RankTransfers(
            channels, self._moves, self._travel, self._slots, self._table, device
        )
        self._updates = Updates(
            ops,
            stages,
            self._table,
            travel=self._travel,
            reducer=reducer,
            data_parallel=data_parallel,
            on_gradients=on_gradients,
            at_every_step=self._versions is not None,
        )
        self._actions = [self._compile(lowered, i) for i in self._program]
        self._frees = [self._freed(i) for i in self._program]
        self._all = range(len(self._program))
        # Sums that travel reach their home by the program of each step, updating or not.
        self._without_update = [
            i for i in self._all if self._travel is not None or not _is_of_update(self._program[i])
        ]

    def step(
        self,
        batch: Batch,
        shapes: Shapes,
        *,
        saved_sizes: SavedSizes = _NONE_KEPT,
        terms: LossTerms | None = None,
        update: bool = True,
    ) -> Tensor | None:
        """Run the program once on a mini-batch.

        Gradients of the loss accumulate into the parameters.

        Args:
            batch: its micro-batches.
            shapes: the boundary behind each stage but the last, by micro-batch and stage.
            saved_sizes: the bytes of each storage of activations that move to another rank.
            terms: the weights of the micro-batches' losses; None: their mean.
            update: True if gradients are reduced and STEPs run; False leaves gradients for the
                next call to add to.

        Returns:
            The loss on a rank with the last stage if one is wanted, None elsewhere.

        Raises:
            RunFailure: an op failed or another rank is gone; names this rank and the instruction.
            SynthError: the schedule has updates between its ops, and there is nothing to carry them
                out, or they are not wanted.
        """
        if self._versions is not None and (self.stepper is None or not update):
            raise SynthError(
                "this schedule updates weights between its ops: give the pipeline a stepper "
                "(build_flush_free_step), and let every step update"
            )
        if self._is_broken:
            raise RunFailure(
                "a step of this pipeline has failed, and transfers of it are still open; end the "
                "process, or make a new process group and a new pipeline"
            )
        self._is_broken = True
        terms = terms or self._mean
        self._updates.wanted = update
        for stage in self._stages.values():
            stage.begin()
        try:
            self._step_through(lambda: self._begin(batch, shapes, saved_sizes, terms), update)
        except BaseException as error:
            self._forget()
            if self._on_failure is not None:
                self._on_failure(error)
            self._channels.abort()  # other ranks would wait for this one as long as it lives
            if isinstance(error, SynthError) or not isinstance(error, Exception):
                raise
            raise RunFailure(
                f"rank {self._rank} failed where it validates the step before: "
                f"{describe_failure(error)}"
            ) from error
        finally:
            for stage in self._stages.values():
                stage.end()
        self._is_broken = False
        self._table.clear()
        return self._ops.loss.clone() if self._holds_last and terms.with_loss else None

    def _step_through(self, begin: Callable[[], None], update: bool) -> None:
        begin()
        stepper = self._updates.stepper
        if stepper is not None:
            stepper.begin()
        before = range(self._point)
        self._run(before)
        if stepper is not None and stepper.late and not stepper.validate():
            self._undo_iteration()
            begin()
            self._run(before)
        places = self._all if update else self._without_update
        self._run([place for place in places if place >= self._point])
        if self._travel is not None:
            self._travel.end()

    def _forget(self) -> None:
        """Drop everything of a step that failed."""
        self._table.clear()
        if self._travel is not None:
            self._travel.forget()
        for stage in self._stages.values():
            stage.forget()

    @property
    def stepper(self) -> Stepper | None:
        """Carries out the STEPs; None: the caller steps its optimizer."""
        return self._updates.stepper

    @stepper.setter
    def stepper(self, stepper: Stepper | None) -> None:
        if stepper is not None and stepper.late and self._travel is not None:
            raise SynthError(
                "weights travel in this schedule, whose steps cannot be validated afterwards; "
                "leave post-validation out of the optimizer"
            )
        if stepper is not None and stepper.late and self._versions is not None:
            raise SynthError(
                "this schedule updates weights between its ops, which cannot be validated "
                "afterwards; leave post-validation out of the optimizer"
            )
        self._updates.stepper = stepper
        if self._versions is not None:
            self._versions.predictor = stepper if isinstance(stepper, ForwardPredictor) else None
        self._point, self._half_open = 0, HalfOpenTransfers((), ())
        if stepper is not None and stepper.late:
            points = find_validation_points(self._lowered)
            self._point = points.ends[self._rank]
            self._half_open = points.half_open(self._lowered, self._rank)

    @property
    def held_values(self) -> int:
        """The number of values and open transfers held now; 0 between steps."""
        return self._table.num_held

    @property
    def num_early(self) -> int:
        """The number of ops of the last step that ran before the plan's next one."""
        return 0 if self._out_of_order is None else self._out_of_order.num_early

    def _begin(
        self, batch: Batch, shapes: Shapes, saved_sizes: SavedSizes, terms: LossTerms
    ) -> None:
        num_slots = len(self._slots.numbers)
        self._table.begin(batch, shapes, saved_sizes, terms, num_slots)
        terms.begin(holds_last=self._holds_last)
        self._ops.loss.zero_()
        self._clock.begin()
        if self._travel is not None:
            self._travel.begin()
        if self._out_of_order is not None:
            run = set(self._all if self._updates.wanted else self._without_update)
            self._out_of_order.begin([place for place in self._all if place not in run])

    def _undo_iteration(self) -> None:
        """Undo the ops that ran before the validation point, as all other ranks do.

        Activations are dropped first, which frees the memory for the transfers that are completed.
        """
        self._table.values.clear()
        for stage in self._stages.values():
            stage.forget()
        self._transfers.complete(self._half_open)

    def _run(self, places: Sequence[int]) -> None:
        """Run the instructions at some places of the program."""
        if self._out_of_order is not None:
            self._out_of_order.run(places[-1] + 1 if places else 0, self)
            return
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

    def _compile(self, lowered: Lowered, instruction: Instruction) -> Callable[[], None]:
        """Return a function that runs an instruction; slots and stages are looked up now."""
        if instruction.action == Action.COMPUTE:
            return self._compile_op(lowered, instruction.compute)
        if instruction.action in (Action.COLLECT, Action.COLLECTED):
            return self._compile_collective(instruction)
        return self._transfers.compile(instruction)

    def _compile_collective(self, instruction: Instruction) -> Callable[[], None]:
        collective, starts = instruction.collected, instruction.action == Action.COLLECT
        if self._travel is not None:
            run = self._travel.collect if starts else self._travel.collected
            return partial(run, collective)
        if self._reducer is None:
            raise SynthError("this schedule has copies of stages; it needs a GradientReducer")
        return partial(self._reducer.start, collective)

    def _compile_op(self, lowered: Lowered, op: Op) -> Callable[[], None]:
        arrivals = [
            self._slots.number(value)
            for value in lowered.effects.reads(op)
            if value.kind in _TRANSFERRED
        ]
        handlers: dict[OpKind, Callable[[Op], Callable[[], None]]] = {
            OpKind.F: self._ops.forward,
            OpKind.R: self._ops.rebuild,
            OpKind.B: self._ops.backward,
            OpKind.BW: self._ops.backward,
            OpKind.W: self._ops.weights,
            OpKind.STEP: self._updates.compile_step,
            OpKind.OFFLOAD: self._moves.offload,
            OpKind.RELOAD: self._moves.expect,
            OpKind.HOST_FOR: self._moves.expect,
            OpKind.RETURN: self._moves.give,
        }
        # What the ops of visits begin and end are transfers, collectives and frees.
        work = _nothing if op.kind in VISITS else handlers[op.kind](op)
        if self._travel is not None:
            arrivals += self._travel.arrivals(op)
            work = self._travel.running(op, work)
        if self._versions is not None:
            work = self._versions.running(op, work)
        run = partial(self._compute, op, arrivals, work)
        return self._updates.after(op, run)

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
            self._updates.prepare(op)
        if self._clock.recording:
            with self._clock.measure(op):
                work()
        else:
            work()

    def _describe(self, instruction: Instruction, error: Exception) -> str:
        numbers, arriving = self._slots.numbers, self._table.arriving
        waits = ", ".join(str(value) for value, slot in numbers.items() if arriving[slot])
        waiting = f" (receives open: {waits})" if waits else ""
        return f"rank {self._rank} failed in {instruction}{waiting}: {describe_failure(error)}"


def _nothing() -> None:
    """Do nothing."""


def _is_of_update(instruction: Instruction) -> bool:
    """True if the instruction is left out when gradients only accumulate."""
    if instruction.action == Action.COMPUTE:
        return instruction.compute.kind == OpKind.STEP
    return instruction.action == Action.COLLECT
