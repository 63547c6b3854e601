"""The executor: replays one rank's lowered program, op by op, with exactly the planned memory.

It decides nothing. The program says when a receive is posted, when a send is waited for and when a
value dies; the executor's table of values holds just those that the plan's memory counts.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from synth.errors import RunFailure, SynthError
from synth.kinds import OpKind
from synth.schedule.lower import Action, Instruction, Lowered, Transfer
from synth.schedule.ops import Op, ValueKind
from synth.schedule.prefix import Strays, find_prefix

from ..batch import Batch
from .boundary import Boundary, Tensors
from .channels import Channels
from .clock import Clock
from .failure import describe_failure
from .moves import Moves
from .passages import Passages
from .progress import Progress
from .reducer import Reducer
from .step_table import SavedSizes, Shapes, Slots, StepTable
from .stepper import Stepper

# The values that cross between ranks, or to the host and back.
_TRANSFERRED = (ValueKind.ACT, ValueKind.GRAD, ValueKind.OUT, ValueKind.BACK)
_NONE_KEPT: SavedSizes = {}


class Executor:
    """Runs a rank's program once per `step`."""

    def __init__(
        self,
        lowered: Lowered,
        rank: int,
        stages: Mapping[int, Passages],
        channels: Channels,
        *,
        device: torch.device,
        clock: Clock,
        reducer: Reducer | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Prepare a rank.

        Args:
            lowered: a verified schedule, lowered.
            rank: whose program to run.
            stages: the stages that the placement gives this rank, by number; two copies of a
                stage on one rank are one.
            channels: opened for the lowered schedule's transfers.
            device: where tensors live.
            clock: records when each op ran.
            reducer: adds up the gradients that several ranks hold; none: no stage has copies.
            progress: told before each instruction, for a post-mortem.
        """
        self._lowered = lowered
        self._rank = rank
        self._program = lowered.programs[rank]
        self._stages = stages
        self._holds_last = any(stage.is_last for stage in stages.values())
        self._channels = channels
        self._device = device
        self._clock = clock
        self._reducer = reducer
        self._stepper: Stepper | None = None
        self._point = 0
        self._strays = Strays((), ())
        self._progress = progress
        self._share = 1.0 / lowered.schedule.num_micro_batches
        self._loss = torch.zeros((), device=device)
        self._seed: Tensors | None = None
        self._seed_of: tuple[torch.Size, torch.dtype, float] | None = None
        self._is_broken = False
        self._step = StepTable.none()
        self._slots = Slots()
        self._fused = {op for op in lowered.ops[rank] if op.kind == OpKind.BW}
        self._rebuilt = {op for op in lowered.ops[rank] if op.kind == OpKind.R}
        self._moves = Moves(lowered.ops[rank], stages, self._slots, lambda: self._step)
        self._actions = [self._compile(lowered, i) for i in self._program]
        self._frees = [self._freed(i) for i in self._program]
        self._all = range(len(self._program))
        self._without_update = [i for i in self._all if not _updates(self._program[i])]

    def step(
        self,
        batch: Batch,
        shapes: Shapes,
        *,
        saved_sizes: SavedSizes = _NONE_KEPT,
        weight: float = 1.0,
        update: bool = True,
    ) -> Tensor | None:
        """Run the program once on a mini-batch.

        Gradients accumulate into the parameters: of the mean of the micro-batches' losses.

        Args:
            batch: its micro-batches.
            shapes: by micro-batch and stage, what each stage but the last hands on.
            saved_sizes: of what moves to another rank: the bytes of each storage of it.
            weight: the loss, and with it every gradient, is multiplied by this.
            update: whether gradients are reduced and STEPs carried out; without, they stay for
                the next call to add to.

        Returns:
            The mean loss on the rank with the last stage, none elsewhere.

        Raises:
            RunFailure: an op failed or another rank is gone; names this rank and the instruction.
        """
        if self._is_broken:
            raise RunFailure(
                "a step of this pipeline has failed, and transfers of it are still open; end the "
                "process, or make a new process group and a new pipeline"
            )
        self._is_broken = True
        try:
            self._step_through(lambda: self._begin(batch, shapes, saved_sizes, weight), update)
        except BaseException:
            self._forget()
            self._channels.cut()  # or those who wait for this rank would, as long as it lives
            raise
        self._is_broken = False
        self._step = StepTable.none()
        return self._loss.clone() if self._holds_last else None

    def _step_through(self, begin: Callable[[], None], update: bool) -> None:
        begin()
        if self._stepper is not None:
            self._stepper.begin()
        before = range(self._point)
        self._run(before)
        if self._stepper is not None and self._stepper.late and not self._stepper.validate():
            self._call_back()
            begin()
            self._run(before)
        places = self._all if update else self._without_update
        self._run(place for place in places if place >= self._point)

    def _forget(self) -> None:
        """Hold nothing of a step that failed."""
        self._step = StepTable.none()
        for stage in self._stages.values():
            stage.forget()

    @property
    def stepper(self) -> Stepper | None:
        """Carries out the STEPs; none: the caller steps by itself."""
        return self._stepper

    @stepper.setter
    def stepper(self, stepper: Stepper | None) -> None:
        self._stepper = stepper
        self._point, self._strays = 0, Strays((), ())
        if stepper is not None and stepper.late:
            prefix = find_prefix(self._lowered)
            self._point = prefix.ends[self._rank]
            self._strays = prefix.strays(self._lowered, self._rank)

    @property
    def held_values(self) -> int:
        """How many values and open transfers are held now; none between steps."""
        return self._step.num_held

    def _begin(self, batch: Batch, shapes: Shapes, saved_sizes: SavedSizes, weight: float) -> None:
        num_slots = len(self._slots.numbers)
        self._step = StepTable.begun(batch, shapes, weight, num_slots, saved_sizes)
        self._loss.zero_()
        self._clock.begin()

    def _call_back(self) -> None:
        """Undo what was run before the validation point; all other ranks do so too.

        Transfers cannot be undone, only completed: the half started ones get their other end, with
        whatever happens to be in memory. Sends start before anything is waited for, so that no two
        ranks wait for each other. Receives are waited for one by one, which takes no more memory
        than one of them; the activations that are dropped first make room for it.
        """
        step = self._step
        step.values.clear()
        for stage in self._stages.values():
            stage.forget()
        open_ones = [pending for pending in step.leaving if pending is not None]
        open_ones += [self._channels.send(self._buffers(t), t) for t in self._strays.to_send]
        for pending in step.arriving:
            if pending is not None:
                pending.wait()
        for transfer in self._strays.to_receive:
            self._channels.receive(self._buffers(transfer), transfer).wait()
        for pending in open_ones:
            pending.wait()

    def _run(self, places: Iterable[int]) -> None:
        """Carry out the instructions at some places of the program."""
        values = self._step.values
        for index in places:
            if self._progress is not None:
                self._progress.at(index)
            try:
                self._actions[index]()
            except RunFailure:
                raise
            except Exception as error:
                raise RunFailure(self._describe(self._program[index], error)) from error
            for slot in self._frees[index]:
                values[slot] = None

    def _compile(self, lowered: Lowered, instruction: Instruction) -> Callable[[], None]:
        """What to do at an instruction, with all that is known beforehand looked up."""
        if instruction.action == Action.COMPUTE:
            return self._compile_op(lowered, instruction.compute)
        if instruction.action == Action.REDUCE:
            if self._reducer is None:
                raise SynthError("this schedule has copies of stages; it needs a GradientReducer")
            return partial(self._reducer.start, instruction.reduced)
        transfer = instruction.moved
        run = {Action.RECV: self._receive, Action.SEND: self._send, Action.SENT: self._sent}
        return partial(run[instruction.action], self._slots.number(transfer.value), transfer)

    def _compile_op(self, lowered: Lowered, op: Op) -> Callable[[], None]:
        arrivals = [
            self._slots.number(value)
            for value in lowered.effects.reads(op)
            if value.kind in _TRANSFERRED
        ]
        handlers: dict[OpKind, Callable[[Op], Callable[[], None]]] = {
            OpKind.F: self._compile_forward,
            OpKind.R: self._compile_rebuild,
            OpKind.B: self._compile_backward,
            OpKind.BW: self._compile_backward,
            OpKind.W: lambda op: partial(self._stages[op.stage].backward_weight, op.microbatch),
            OpKind.STEP: self._compile_step,
            OpKind.OFFLOAD: self._moves.offload,
            OpKind.RELOAD: self._moves.make_room,
            OpKind.KEEP: self._moves.make_room,
            OpKind.GIVE: self._moves.give,
        }
        return partial(self._compute, op, arrivals, handlers[op.kind](op))

    def _freed(self, instruction: Instruction) -> list[int]:
        numbers = self._slots.numbers
        return [numbers[value] for value in instruction.frees if value in numbers]

    def _buffers(self, transfer: Transfer) -> Tensors:
        """Empty tensors of a transfer's shapes."""
        kind, stage, microbatch, _ = transfer.value
        if kind in (ValueKind.OUT, ValueKind.BACK):
            return self._moves.buffers(stage, microbatch, self._device)
        boundary = self._step.shapes[microbatch][stage]
        if kind == ValueKind.ACT:
            return boundary.activations(self._device)
        return boundary.gradients(self._device)

    def _receive(self, slot: int, transfer: Transfer) -> None:
        buffers = self._buffers(transfer)
        self._step.arriving[slot] = self._channels.receive(buffers, transfer)

    def _send(self, slot: int, transfer: Transfer) -> None:
        tensors = self._step.values[slot]
        assert tensors is not None
        self._step.leaving[slot] = self._channels.send(tensors, transfer)

    def _sent(self, slot: int, transfer: Transfer) -> None:
        pending, self._step.leaving[slot] = self._step.leaving[slot], None
        assert pending is not None
        pending.wait()

    def _compute(self, op: Op, arrivals: list[int], work: Callable[[], None]) -> None:
        """Wait for the inputs that are under way, then run the op."""
        step = self._step
        for slot in arrivals:
            if step.arriving[slot] is not None:
                step.take_in(slot)
        if op.kind == OpKind.STEP and not step.updating:
            self._before_first_step()
        if self._clock.recording:
            with self._clock.measure(op):
                work()
        else:
            work()

    def _compile_forward(self, op: Op) -> Callable[[], None]:
        stage = self._stages[op.stage]
        source = self._slots.of(ValueKind.ACT, op.stage - 1, op) if op.stage else None
        run: Callable[..., Tensors] = partial(
            stage.forward, fused=self._is_fused(op), moved=self._moves.moves(op)
        )
        if op._replace(kind=OpKind.R) in self._rebuilt:
            run = stage.forward_light
        if stage.is_last:
            return partial(self._forward_to_loss, op, run, source)
        made = self._slots.of(ValueKind.ACT, op.stage, op)
        return partial(self._forward, op, run, source, made)

    def _compile_rebuild(self, op: Op) -> Callable[[], None]:
        stage = self._stages[op.stage]
        source = self._slots.of(ValueKind.ACT, op.stage - 1, op) if op.stage else None
        run = partial(stage.rebuild, fused=self._is_fused(op), moved=self._moves.moves(op))
        return partial(self._rebuild, op, run, source, stage.is_last)

    def _is_fused(self, op: Op) -> bool:
        """Whether an F's backward is a BW."""
        return op._replace(kind=OpKind.BW) in self._fused

    def _forward(self, op: Op, run: Callable[..., Tensors], source: int | None, made: int) -> None:
        arguments, entry = self._stage_input(op, source)
        keywords = self._step.batch.named(op.microbatch)
        outputs = run(op.microbatch, arguments, entry=entry, keywords=keywords)
        self._step.shapes[op.microbatch][op.stage].check(outputs, op.stage)
        self._step.values[made] = tuple(y.contiguous() for y in outputs)

    def _rebuild(self, op: Op, run: Callable[..., None], source: int | None, is_last: bool) -> None:
        arguments, entry = self._stage_input(op, source)
        keywords = self._step.batch.named(op.microbatch)
        targets = self._targets(op) if is_last else None
        run(op.microbatch, arguments, entry=entry, targets=targets, keywords=keywords)

    def _targets(self, op: Op) -> Any:
        targets = self._step.batch.targets
        return None if targets is None else targets[op.microbatch]

    def _forward_to_loss(self, op: Op, run: Callable[..., Tensors], source: int | None) -> None:
        step = self._step
        arguments, entry = self._stage_input(op, source)
        keywords = step.batch.named(op.microbatch)
        (loss,) = run(
            op.microbatch, arguments, entry=entry, targets=self._targets(op), keywords=keywords
        )
        if loss.numel() != 1:
            raise SynthError(
                f"the last stage gave a tensor of shape {tuple(loss.shape)}; it must give the "
                f"loss, one number: give the pipeline a loss function, or end the model in one"
            )
        weight = self._share * step.weight
        self._loss.add_(loss.reshape(()), alpha=weight)
        kind = (loss.shape, loss.dtype, weight)
        if kind != self._seed_of:  # the gradient of the mean by each loss: mostly the same
            self._seed, self._seed_of = (torch.full_like(loss, weight),), kind

    def _stage_input(self, op: Op, source: int | None) -> tuple[tuple[Any, ...], Boundary | None]:
        step = self._step
        if source is None:
            if step.batch.inputs is None:
                raise SynthError("this rank holds the first stage; its batch needs inputs")
            return step.batch.arguments(op.microbatch), None
        tensors = step.values[source]
        assert tensors is not None
        return tensors, step.shapes[op.microbatch][op.stage - 1]

    def _compile_backward(self, op: Op) -> Callable[[], None]:
        stage = self._stages[op.stage]
        backward = stage.backward_input if op.kind == OpKind.B else stage.backward
        source = None if stage.is_last else self._slots.of(ValueKind.GRAD, op.stage, op)
        made = self._slots.of(ValueKind.GRAD, op.stage - 1, op) if op.stage else None
        run = partial(self._backward, op.microbatch, backward, source, made)
        return self._moves.backward(op, run) if self._moves.moves(op) else run

    def _backward(
        self,
        microbatch: int,
        backward: Callable[[int, Tensors], Tensors],
        source: int | None,
        made: int | None,
    ) -> None:
        values = self._step.values
        gradients = self._seed if source is None else values[source]
        assert gradients is not None
        found = backward(microbatch, gradients)
        if made is not None:
            values[made] = found

    def _before_first_step(self) -> None:
        self._step.updating = True
        if self._reducer is not None:
            self._reducer.finish()
        if self._stepper is not None:
            self._stepper.synchronize()

    def _compile_step(self, op: Op) -> Callable[[], None]:
        """Copies of a stage on one rank are one module, and the STEP of the first is all theirs."""
        ops = self._lowered.ops[self._rank]
        first = next(o for o in ops if o.kind == OpKind.STEP and o.stage == op.stage)
        return partial(self._optimizer_step, op.stage) if op == first else lambda: None

    def _optimizer_step(self, stage: int) -> None:
        if self._stepper is not None:
            self._stepper.step(stage)

    def _describe(self, instruction: Instruction, error: Exception) -> str:
        numbers, arriving = self._slots.numbers, self._step.arriving
        waits = ", ".join(str(value) for value, slot in numbers.items() if arriving[slot])
        waiting = f" (receives open: {waits})" if waits else ""
        return f"rank {self._rank} failed in {instruction}{waiting}: {describe_failure(error)}"


def _updates(instruction: Instruction) -> bool:
    """Whether it is left out where gradients only accumulate."""
    if instruction.action == Action.COMPUTE:
        return instruction.compute.kind == OpKind.STEP
    return instruction.action == Action.REDUCE
