"""Training under a plan: one rank's part of `synth run`, from the plan to the report."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from synth.errors import TrainingDiverged
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.train_options import DEFAULT_STEPS, TrainOptions

from ..checkpoint import TrainingState
from ..execution.core.clock import OpClock
from ..execution.core.progress import RankProgress
from ..execution.core.tracer import Tracer
from ..execution.weights.versions import renew
from ..models import vocabulary_size
from ..optimize import StepSettings, held_bytes, widen_gradients
from ..pipeline import Pipeline
from ..profiling.meter import measure
from ..world import World
from .batches import Batches, MiniBatch
from .build_updates import build_updates, predicted_stages, step_settings
from .building import build_stages, prepare_device
from .data import TokenData, check_ids, load_tokens
from .function_data import FunctionData
from .iteration import Iteration, StepOutcome
from .layered_stage import Randomness
from .optimizer_headroom import extra_bytes
from .process_grid import Place
from .rank_result import RankResult
from .run_checkpoints import RunCheckpoints
from .update_counts import UpdateCounts

OnStep = Callable[[int, float, float], None]


class RankTrainer:
    """One rank: builds its stages, then trains step by step."""

    def __init__(
        self,
        plan: Plan,
        lowered: Lowered,
        options: TrainOptions,
        world: World,
        progress: RankProgress | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """Build this rank's layers on its device; every rank must call this at the same time.

        Args:
            plan: the plan to train under.
            lowered: its lowered form.
            options: the options of the run.
            world: this process among the others.
            progress: updated before each instruction, for a post-mortem.
            stop_requested: returns True if this rank is to end after the running step; all ranks
                then do.

        Raises:
            SynthError: the world, the data or the model does not fit the plan.
        """
        self._plan, self._options, self._world = plan, options, world
        self._progress, self._stop_requested = progress, stop_requested
        self._place = place = Place.of(world, plan.num_ranks, options.data_parallel)
        prepare_device(plan.workload, world.device)
        self._randomness = Randomness(options.seed, plan.workload.micro_batch_size)
        built = build_stages(
            plan, place.rank, world.device, options.seed, self._randomness, options.model
        )
        self._stages = built.stages
        self._data = self._load_data()
        self._clock = OpClock(world.device)
        self._tracer = Tracer(self._clock, options.trace_every or 1)
        spec = options.optimizer_of(plan.workload.optimizer)
        if spec.float32_gradients:
            widen_gradients(stage.module for stage in self._stages.values())
        self._pipeline = Pipeline(
            lowered,
            self._stages,
            group=place.ranks,
            data_parallel=place.peers,
            tied=built.tied,
            device=world.device,
            timeout_s=options.timeout_s,
            clock=self._clock,
            progress=progress,
            look_ahead=options.look_ahead,
            caps_bytes=plan.caps_bytes,
        )
        updated = {} if self._pipeline.updates_on_host else self._pipeline.updated
        self._extra_bytes = extra_bytes(
            plan,
            place.rank,
            {number: stage.module for number, stage in self._stages.items()},
            updated.values(),
            spec,
            predicted=predicted_stages(self._pipeline, options).values(),
        )
        self._optimizer = build_updates(plan, self._pipeline, options, spec)
        self._pipeline.stepper = self._optimizer
        self._iteration = Iteration(
            self._pipeline, self._optimizer, place.rank, self._randomness, place.num_pipelines
        )
        self._batches = Batches(
            self._data,
            plan,
            per_step=options.accumulate,
            inputs=0 in self._stages,
            targets=len(plan.partition) - 1 in self._stages,
            device=world.device,
            pipeline=place.pipeline,
            num_pipelines=place.num_pipelines,
        )
        self._update_counts = UpdateCounts(plan)
        self._checkpoints = RunCheckpoints.open(
            options.checkpoint,
            self._layers_by_name(),
            self._optimizer,
            timeout_s=options.timeout_s,
            shared=self._pipeline.shared_parameters,
            restarted=world.restarts > 0,
        )
        self._start = self._done = self._restore()
        self._batches.go_to(self._start.sequences)
        self._num_steps = self._iteration.least(self._own_steps(self._start))

    @property
    def num_steps(self) -> int:
        """The number of optimizer steps of the run, those before a resumed checkpoint included.

        It is the requested number, or less if the data of any rank ends before.
        """
        return self._num_steps

    @property
    def warning(self) -> str | None:
        """A warning for the user before training begins; None: there is none."""
        rate = self._options.learning_rate
        if rate.warmup_steps <= self._num_steps:
            return None
        return (
            f"warning: the learning rate rises for {rate.warmup_steps} steps, this run has "
            f"{self._num_steps}: it ends at {rate.at(self._num_steps - 1, self._num_steps):.3g} "
            f"and never reaches --lr {rate.peak:g}; give fewer --warmup-steps"
        )

    def train(self, on_step: OnStep | None = None) -> RankResult:
        """Run all steps; the second one (the first with all state allocated) measures memory.

        Args:
            on_step: called with (step, mean loss, seconds) after each step.

        Raises:
            RunFailure: an op failed, a rank died, or the loss is NaN or Inf.
        """
        world, first_step = self._world, self._start.step
        num_pipelines = self._place.num_pipelines
        processors = max(1, world.processors // num_pipelines)
        result = RankResult(world.rank, world.host, str(world.device), processors, first_step)
        result.num_pipelines = num_pipelines
        result.late, result.extra_bytes = self._optimizer.late, self._extra_bytes
        sequences = self._batches.sequences_per_step
        result.tokens_per_step = sequences * self._plan.workload.sequence_length
        for step in range(first_step, self._num_steps):
            outcome = self._run(step, self._batches.take(), result)
            is_last = step + 1 == self._num_steps
            saves = is_last or outcome.stops or self._checkpoints.is_due(step + 1)
            self._account(outcome, saves, result, on_step)
            if outcome.stops and not is_last:
                result.stopped_at = step + 1
                break
        else:
            result.remark = self._remark()
        result.traced = list(self._tracer.steps)
        self._checkpoints.wait()
        result.failed_checkpoint = self._checkpoints.failed_step
        return result

    def _run(self, step: int, batches: list[MiniBatch], result: RankResult) -> StepOutcome:
        """Take one step, in all that measures it."""
        start = self._start
        measured_step = min(start.step + 1, self._num_steps - 1)
        if self._progress is not None:
            self._progress.begin_step(step)
        self._tracer.begin(countable=step > measured_step)
        outcome = self._iteration.run(
            step,
            batches,
            self._settings(step),
            stops=self._stop_requested(),
            window=self._memory_window(result) if step == measured_step else None,
        )
        self._tracer.end(step, outcome.program_seconds * 1e6)
        if self._options.look_ahead:
            result.early_ops.append(self._pipeline.num_early_ops)
        return outcome

    def _account(
        self, outcome: StepOutcome, saves: bool, result: RankResult, on_step: OnStep | None
    ) -> None:
        """Record the outcome of a step, and save a checkpoint if one is due."""
        losses = outcome.losses
        if saves:
            losses |= self._iteration.settle()
        self._count_steps(losses)
        result.losses += losses.values()
        result.step_seconds.append(outcome.seconds)
        result.program_seconds.append(outcome.program_seconds)
        if on_step is not None:
            for number, loss in losses.items():
                on_step(number, loss, outcome.seconds)
        self._checkpoints.poll()
        if saves:
            self._checkpoints.save(self._done)

    @contextmanager
    def _memory_window(self, result: RankResult) -> Iterator[None]:
        """Measure the memory of a step and store it in the result."""
        self._checkpoints.wait()  # its thread's allocations are not the step's
        modules = [stage.module for stage in self._stages.values()]
        if self._pipeline.updates_on_host:
            result.static_bytes = held_bytes(modules)
        else:
            modules += self._pipeline.updated.values()
            result.static_bytes = held_bytes(modules, self._optimizer)
        self._optimizer.finish()  # its norm would be freed meanwhile by another thread
        seen_bytes, device = 0, self._world.device
        with measure(device) as found:
            if self._pipeline.lowered.versions is not None and device.type == "cpu":
                stages = self._stages.values()
                seen_bytes = renew({p: None for stage in stages for p in stage.parameters()})
            yield
            self._optimizer.finish()
        result.peak_bytes = result.static_bytes - seen_bytes + found.peak_bytes

    def _settings(self, step: int) -> StepSettings:
        options = self._options
        return step_settings(options, options.learning_rate.at(step, self._num_steps))

    def _count_steps(self, mean_losses: dict[int, float]) -> None:
        """A step counts if its loss is a number."""
        for step, mean_loss in mean_losses.items():
            if not math.isfinite(mean_loss):
                self._checkpoints.wait()  # the last good one is still being written, perhaps
                raise TrainingDiverged(
                    f"the loss of step {step} is {mean_loss}; lower --lr, or clip with --clip"
                )
            self._done = self._done.replace(
                step=step + 1,
                sequences=self._done.sequences + self._batches.sequences_per_step,
                updates=self._update_counts.after(1, self._updates_of(self._done)),
            )

    def _remark(self) -> str | None:
        """A remark if the run had nothing to do, or its data ended early; else None."""
        options, num_steps = self._options, self._num_steps
        if self._start.step == num_steps:
            return f"nothing is left to do: the checkpoint holds all {num_steps} steps of this run"
        if num_steps == self._requested_steps:
            return None
        of_requested = "" if options.steps is None else f" of {options.steps}"
        return (
            f"the data ended after {num_steps}{of_requested} steps "
            f"({options.epochs} epoch(s) of {self._data.sequences_per_epoch} sequences)"
        )

    @property
    def _requested_steps(self) -> int | None:
        """The requested number of steps; None: until the data ends."""
        options = self._options
        return options.steps or (None if options.epochs else DEFAULT_STEPS)

    def _own_steps(self, start: TrainingState) -> int:
        """The number of steps of a run from `start`, as far as this rank's data allows."""
        left, requested = self._batches.steps_left(start), self._requested_steps
        limits = (requested, None if left is None else start.step + left)
        return min(limit for limit in limits if limit is not None)

    def _restore(self) -> TrainingState:
        """Return where training stands: at its beginning, or at a checkpoint."""
        plan, options = self._plan, self._options
        fresh = TrainingState(
            step=0,
            sequences=0,
            seed=options.seed,
            model=options.model or plan.workload.model,
            layers=plan.layers,
            plan=plan.name,
            updates=self._update_counts.none,
        )
        if not self._checkpoints.are_wanted:
            return fresh
        # Post-validation does not change results, so the checkpoint may differ in it.
        spec = options.optimizer_of(plan.workload.optimizer).replace(post_validation=False)
        fresh = fresh.replace(optimizer=str(spec), data=self._data.fingerprint())
        found = self._checkpoints.restore(
            lambda state: fresh.check_goes_on(state, self._own_steps(state), options.checkpoint)
        )
        if found is None:
            return fresh
        updates = self._updates_of(found)
        self._update_counts.restore(updates, self._optimizer)
        return fresh.replace(step=found.step, sequences=found.sequences, updates=updates)

    def _updates_of(self, state: TrainingState) -> tuple[int, ...]:
        """By layer its updates; of a file that has none, those of as many steps of this plan."""
        counts = self._update_counts
        return state.updates or counts.after(state.step, counts.none)

    def _layers_by_name(self) -> dict[str, nn.Module]:
        plan = self._plan
        return {
            plan.layers[index]: layer
            for number, stage in self._stages.items()
            if number in self._pipeline.updated
            for index, layer in zip(plan.layers_of(number), stage.layers, strict=True)
        }

    def _load_data(self) -> TokenData | FunctionData:
        """All of it; token ids are checked where the layer is that knows which there may be."""
        options, workload = self._options, self._plan.workload
        if options.inputs is not None:
            return FunctionData(
                options.inputs,
                workload.micro_batch_size,
                options.seed,
                options.epochs,
                workload.sequence_length,
            )
        options.check_source()
        assert options.data is not None
        tokens = load_tokens(options.data, workload.sequence_length)
        first = self._stages.get(0)
        if first is not None:
            check_ids(options.data, tokens, vocabulary_size(first.layers[0]))
        return TokenData(tokens, workload.sequence_length, options.seed, options.epochs)
