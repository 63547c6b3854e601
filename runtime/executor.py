"""The executor: replays one rank's lowered program, op by op, with exactly the planned memory.

It decides nothing. The program says when a receive is posted, when a send is waited for and when a
value dies; the executor's table of values holds just those that the plan's memory counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from synth.errors import RunFailure
from synth.kinds import OpKind
from synth.schedule.lower import Action, Instruction, Lowered
from synth.schedule.ops import Op, Value, ValueKind

from .channels import Channels, Pending, describe_failure
from .clock import Clock
from .progress import Progress
from .stage import Stage

Handler = Callable[[Op], None]


class Stepper(Protocol):
    """Whoever carries out STEP."""

    def synchronize(self) -> None:
        """Called before each STEP: what needs all ranks, such as a global norm."""
        ...

    def step(self, stage: int) -> None:
        """Update one stage's parameters."""
        ...


@dataclass(frozen=True)
class Boundary:
    """Shape and dtype of the tensor between a stage and the next."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Batch:
    """One mini-batch's micro-batches; a rank gets inputs if it holds the first stage, targets if
    it holds the last."""

    inputs: Sequence[Tensor] | None = None
    targets: Sequence[Tensor] | None = None


@dataclass
class _Step:
    """What lives during one step."""

    batch: Batch
    values: dict[Value, Tensor] = field(default_factory=dict)
    arriving: dict[Value, Pending] = field(default_factory=dict)
    leaving: dict[Value, Pending] = field(default_factory=dict)


class Executor:
    """Runs a rank's program once per `step`."""

    def __init__(
        self,
        lowered: Lowered,
        rank: int,
        stages: Mapping[int, Stage],
        channels: Channels,
        boundaries: Sequence[Boundary],
        *,
        device: torch.device,
        clock: Clock,
        stepper: Stepper | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Prepare a rank.

        Args:
            lowered: a verified schedule, lowered.
            rank: whose program to run.
            stages: the stages that the placement gives this rank, by number.
            channels: opened for the lowered schedule's transfers.
            boundaries: for every stage but the last, what it hands on.
            device: where tensors live.
            clock: records when each op ran.
            stepper: carries out each STEP; none: the caller steps by itself.
            progress: told before each instruction, for a post-mortem.
        """
        self._rank = rank
        self._program = lowered.programs[rank]
        self._stages = stages
        self._holds_last = any(stage.is_last for stage in stages.values())
        self._channels = channels
        self._boundaries = boundaries
        self._device = device
        self._clock = clock
        self._stepper = stepper
        self._progress = progress
        self._share = 1.0 / lowered.schedule.num_micro_batches
        self._loss = torch.zeros((), device=device)
        self._seed: Tensor | None = None
        self._step = _Step(Batch())
        self._handlers: dict[OpKind, Handler] = {
            OpKind.F: self._forward,
            OpKind.B: self._backward_input,
            OpKind.W: self._backward_weight,
            OpKind.BW: self._backward,
            OpKind.STEP: self._optimizer_step,
        }
        arrivals = {i.moved.value for i in self._program if i.action == Action.RECV}
        self._inputs = [
            [v for v in lowered.effects.reads(i.compute) if v in arrivals]
            if i.action == Action.COMPUTE
            else []
            for i in self._program
        ]

    def step(self, batch: Batch) -> Tensor | None:
        """Run the program once on a mini-batch.

        Gradients accumulate into the parameters: of the mean of the micro-batches' losses.

        Returns:
            The mean loss on the rank with the last stage, none elsewhere.

        Raises:
            RunFailure: an op failed or another rank is gone; names this rank and the instruction.
        """
        self._step = _Step(batch)
        self._loss.zero_()
        self._clock.begin()
        for index, instruction in enumerate(self._program):
            if self._progress is not None:
                self._progress.at(index)
            try:
                self._execute(instruction, self._inputs[index])
            except RunFailure:
                raise
            except Exception as error:
                raise RunFailure(self._describe(instruction, error)) from error
        self._step.batch = Batch()
        return self._loss.clone() if self._holds_last else None

    @property
    def held_values(self) -> int:
        """How many values and open transfers are held now; none between steps."""
        step = self._step
        return len(step.values) + len(step.arriving) + len(step.leaving)

    def _execute(self, instruction: Instruction, inputs: list[Value]) -> None:
        step = self._step
        match instruction.action:
            case Action.COMPUTE:
                for value in inputs:
                    if value in step.arriving:
                        step.values[value] = step.arriving[value].wait()
                        del step.arriving[value]
                op = instruction.compute
                if op.kind == OpKind.STEP and self._stepper is not None:
                    self._stepper.synchronize()
                with self._clock.measure(op):
                    self._handlers[op.kind](op)
            case Action.RECV:
                transfer = instruction.moved
                boundary = self._boundaries[transfer.value.stage]
                buffer = torch.empty(boundary.shape, dtype=boundary.dtype, device=self._device)
                step.arriving[transfer.value] = self._channels.receive(buffer, transfer)
            case Action.SEND:
                transfer = instruction.moved
                tensor = step.values[transfer.value]
                step.leaving[transfer.value] = self._channels.send(tensor, transfer)
            case Action.SENT:
                step.leaving.pop(instruction.moved.value).wait()
        for value in instruction.frees:
            step.values.pop(value, None)

    def _forward(self, op: Op) -> None:
        stage, step = self._stages[op.stage], self._step
        targets = None
        if stage.is_last:
            assert step.batch.targets is not None
            targets = step.batch.targets[op.microbatch]
        y = stage.forward(op.microbatch, self._stage_input(op), targets)
        if stage.is_last:
            self._loss.add_(y, alpha=self._share)
            if self._seed is None:  # the gradient of the mean by each loss; kept from then on
                self._seed = torch.full_like(y, self._share)
        else:
            step.values[Value(ValueKind.ACT, op.stage, op.microbatch, op.replica)] = y.contiguous()

    def _stage_input(self, op: Op) -> Tensor:
        if op.stage == 0:
            assert self._step.batch.inputs is not None
            return self._step.batch.inputs[op.microbatch]
        return self._step.values[Value(ValueKind.ACT, op.stage - 1, op.microbatch, op.replica)]

    def _gradient(self, op: Op) -> Tensor:
        if self._stages[op.stage].is_last:
            assert self._seed is not None
            return self._seed
        return self._step.values[Value(ValueKind.GRAD, op.stage, op.microbatch, op.replica)]

    def _hand_back(self, op: Op, gradient: Tensor | None) -> None:
        if gradient is not None:
            value = Value(ValueKind.GRAD, op.stage - 1, op.microbatch, op.replica)
            self._step.values[value] = gradient.contiguous()

    def _backward_input(self, op: Op) -> None:
        stage = self._stages[op.stage]
        self._hand_back(op, stage.backward_input(op.microbatch, self._gradient(op)))

    def _backward_weight(self, op: Op) -> None:
        self._stages[op.stage].backward_weight(op.microbatch)

    def _backward(self, op: Op) -> None:
        stage = self._stages[op.stage]
        self._hand_back(op, stage.backward(op.microbatch, self._gradient(op)))

    def _optimizer_step(self, op: Op) -> None:
        if self._stepper is not None:
            self._stepper.step(op.stage)

    def _describe(self, instruction: Instruction, error: Exception) -> str:
        waits = ", ".join(str(value) for value in self._step.arriving)
        waiting = f" (receives open: {waits})" if waits else ""
        return f"rank {self._rank} failed in {instruction}{waiting}: {describe_failure(error)}"
