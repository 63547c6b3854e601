"""Training under a plan: one rank's part of `synth run`, from the plan to the report."""

import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from synth.errors import RunFailure, SynthError
from synth.schedule.file import Plan
from synth.schedule.lower import Lowered

from .batch import Batch
from .building import build_stages, prepare_device
from .channels import describe_failure
from .clock import Clock
from .data import TokenData, load_tokens
from .meter import measure
from .models import vocabulary_size
from .optimize import StepSettings, build_steps, held_bytes
from .pipeline import Pipeline
from .progress import Progress
from .rank_result import RankResult
from .train_options import TrainOptions
from .world import World

OnStep = Callable[[int, float, float], None]


class RankTrainer:
    """One rank: builds its stages, then trains step by step."""

    def __init__(
        self,
        plan: Plan,
        lowered: Lowered,
        options: TrainOptions,
        world: World,
        progress: Progress | None = None,
    ) -> None:
        """Build this rank's layers on its device; every rank must call this at the same time.

        Raises:
            SynthError: the world, the data or the model is not what the plan needs.
        """
        self._plan, self._options, self._world = plan, options, world
        self._progress = progress
        _check_world(plan, world)
        prepare_device(plan.workload, world.device)
        self._stages = build_stages(plan, world.rank, world.device, options.seed)
        self._data = self._load_data()
        self._clock = Clock(world.device)
        self._pipeline = Pipeline(
            lowered,
            self._stages,
            device=world.device,
            timeout_s=options.timeout_s,
            clock=self._clock,
            progress=progress,
        )
        self._optimizer = build_steps(
            {number: stage.module for number, stage in self._stages.items()},
            plan.workload.optimizer,
            StepSettings(options.learning_rate),
            device=world.device,
            clip_norm=options.clip_norm,
            group=dist.new_group(timeout=timedelta(seconds=options.timeout_s)),
            owned=self._pipeline.owns,
        )
        self._pipeline.stepper = self._optimizer

    def train(self, on_step: OnStep | None = None) -> RankResult:
        """Run all steps; the second one (the first with all state allocated) measures memory.

        Args:
            on_step: told (step, mean loss, seconds) after each step.

        Raises:
            RunFailure: an op failed, a rank died, or the loss is no number any more.
        """
        world = self._world
        result = RankResult(world.rank, world.host, str(world.device), world.processors)
        measured_step = min(1, self._options.steps - 1)
        for step in range(self._options.steps):
            if self._progress is not None:
                self._progress.begin_step(step)
            batch = self._batch(step)
            start = time.perf_counter()
            if step == measured_step:
                loss = self._measured_step(batch, result)
            else:
                loss = self._step(batch)
            result.losses.append(self._share_loss(loss, step))
            result.step_seconds.append(time.perf_counter() - start)
            if step > measured_step:
                result.spans.append(self._clock.spans())
                result.zero_ns.append(self._clock.zero_ns)
            if on_step is not None:
                on_step(step, result.losses[-1], result.step_seconds[-1])
        return result

    def _step(self, batch: Batch) -> Tensor | None:
        self._optimizer.begin()
        return self._pipeline.step(batch)

    def _measured_step(self, batch: Batch, result: RankResult) -> Tensor | None:
        result.static_bytes = held_bytes(
            (stage.module for stage in self._stages.values()), self._optimizer
        )
        with measure(self._world.device) as found:
            loss = self._step(batch)
        result.peak_bytes = result.static_bytes + found.peak_bytes
        return loss

    def _share_loss(self, loss: Tensor | None, step: int) -> float:
        """The last stage's loss, on every rank."""
        value = torch.zeros(1, device=self._world.device)
        if loss is not None:
            value += loss.detach().float()
        try:
            dist.all_reduce(value)
        except RuntimeError as error:
            raise RunFailure(
                f"rank {self._world.rank} failed in the sum of the losses of step {step}: "
                f"{describe_failure(error)}"
            ) from error
        if not torch.isfinite(value):
            raise RunFailure(
                f"the loss of step {step} is {float(value)}; lower --lr, or clip with --clip"
            )
        return float(value)

    def _batch(self, step: int) -> Batch:
        device = self._world.device
        pairs = list(
            self._data.mini_batch(
                step, self._plan.num_micro_batches, self._plan.workload.micro_batch_size
            )
        )
        first = 0 in self._stages
        last = len(self._plan.partition) - 1 in self._stages
        return Batch(
            [x.to(device) for x, _ in pairs] if first else None,
            [y.to(device) for _, y in pairs] if last else None,
        )

    def _load_data(self) -> TokenData:
        length = self._plan.workload.sequence_length
        first = self._stages.get(0)
        vocabulary = vocabulary_size(first.layers[0]) if first is not None else None
        tokens = load_tokens(self._options.data, length, vocabulary)
        return TokenData(tokens, length, self._options.seed)


def _check_world(plan: Plan, world: World) -> None:
    if world.size != plan.num_ranks:
        raise SynthError(
            f"the plan is for {plan.num_ranks} ranks, this run has {world.size} processes; start "
            f"{plan.num_ranks} (torchrun --nproc-per-node), or solve again with "
            f"--ranks {world.size}"
        )
