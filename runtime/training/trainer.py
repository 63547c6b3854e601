"""Training under a plan: one rank's part of `synth run`, from the plan to the report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import nn

from synth.run_options.train_options import TrainOptions
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.system.processor_waits import ProcessorWatch

from ..execution.base.clock import OpClock
from ..execution.program.progress import RankProgress
from ..execution.program.tracer import Tracer
from ..execution.weights.versions import renew
from ..models.layered_stage import Randomness
from ..optimize import StepSettings, held_bytes, widen_gradients
from ..pipeline import Pipeline
from ..pipeline.groups import Ranks
from ..profiling.meter import measure
from ..rank_result import FIRST_TIMED, RankResult
from ..world import World, prepare_device
from .batches import Batches, MiniBatch
from .build_updates import build_updates, predicted_stages, step_settings
from .building import build_stages
from .iteration import Iteration, StepOutcome
from .optimizer_headroom import extra_bytes
from .process_grid import Place, mesh_of
from .run_checkpoints import RunCheckpoints
from .run_data import RunData, open_data
from .run_state import RunState
from .run_weights import RunWeights

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
        *,
        group: Ranks | None = None,
        data: RunData | None = None,
        clock: OpClock | None = None,
    ) -> None:
        """Build this rank's layers on its device; every rank must call this at the same time.

        Args:
            plan: the plan to train under.
            world: this process among the others.
            progress: updated before each instruction, for a post-mortem.
            stop_requested: returns True if this rank is to end after the running step; all ranks
                then do.
            group: the ranks of the pipeline; None: the processes of the world.
            data: what to train on; None: what the options name.
            clock: of the ops; None: one of its own.

        Raises:
            SynthError: the world, the data or the model does not fit the plan.
        """
        self._plan, self._options, self._world = plan, options, world
        self._progress, self._stop_requested = progress, stop_requested
        self._place = place = Place.of(world, mesh_of(plan, options))
        prepare_device(plan.workload, world.device)
        self._randomness = Randomness(options.seed, plan.workload.micro_batch_size)
        built = build_stages(
            plan,
            place.rank,
            world.device,
            options.seed,
            self._randomness,
            options.model,
            options.inputs,
            empty=options.weights.weights_from is not None,
            divide=place.division(options.parallelize),
        )
        self._stages = built.stages
        data = data or open_data(options, plan.workload, self._stages.get(0))
        clock = clock or OpClock(world.device)
        self._tracer = Tracer(clock, options.trace_every or 1)
        self._spec = options.optimizer_of(plan.workload.optimizer)
        self._pipeline = self._connect(lowered, built.tied, clock, group or place.ranks)
        self._extra_bytes = self._find_extra_bytes()
        self._optimizer = build_updates(plan, self._pipeline, options, self._spec)
        self._pipeline.stepper = self._optimizer
        self._iteration = Iteration(
            self._pipeline, self._optimizer, place.rank, self._randomness, place.processes_per_rank
        )
        self._batches = Batches(
            data,
            self._plan,
            per_step=self._options.accumulate,
            inputs=0 in self._stages,
            targets=len(self._plan.partition) - 1 in self._stages,
            device=self._world.device,
            pipeline=self._place.pipeline,
            num_pipelines=self._place.mesh.data,
        )
        self._checkpoints = self._open_checkpoints()
        self._state = RunState(plan, options, data, self._batches, self._checkpoints)
        self._state.restore(self._optimizer)
        self._weights = RunWeights(options.weights, self._layers_by_name(), self._pipeline)
        if self._state.start.step == 0:
            self._weights.load(self._optimizer)
        self._pipeline.broadcast_buffers()
        self._num_steps = self._iteration.least(self._state.own_steps)

    def _connect(
        self,
        lowered: Lowered,
        tied: Mapping[str, Sequence[nn.Parameter]],
        clock: OpClock,
        group: Ranks | None,
    ) -> Pipeline:
        """Connect this rank to the others; all ranks call this at the same time."""
        if self._spec.float32_gradients:
            widen_gradients(stage.module for stage in self._stages.values())
        return Pipeline(
            lowered,
            self._stages,
            group=group,
            data_parallel=self._place.peers,
            tied=tied,
            device=self._world.device,
            timeout_s=self._options.timeout_s,
            clock=clock,
            progress=self._progress,
            look_ahead=self._options.look_ahead,
            caps_bytes=self._plan.caps_bytes,
        )

    def _find_extra_bytes(self) -> int:
        """Count the bytes of updates that the plan does not, which must fit; see `extra_bytes`."""
        updated = {} if self._pipeline.updates_on_host else self._pipeline.updated
        return extra_bytes(
            self._plan,
            self._place.rank,
            {number: stage.module for number, stage in self._stages.items()},
            updated.values(),
            self._spec,
            predicted=predicted_stages(self._pipeline, self._options).values(),
        )

    def _open_checkpoints(self) -> RunCheckpoints:
        """Open the folder of checkpoints; all ranks call this at the same time."""
        return RunCheckpoints.open(
            self._options.checkpoint,
            self._layers_by_name(),
            self._optimizer,
            timeout_s=self._options.timeout_s,
            shared=self._pipeline.shared_parameters,
            restarted=self._world.restarts > 0,
        )

    def _layers_by_name(self) -> dict[str, nn.Module]:
        """The layers whose parameters this rank updates."""
        plan = self._plan
        return {
            plan.layers[index]: layer
            for number, stage in self._stages.items()
            if number in self._pipeline.updated
            for index, layer in zip(plan.layers_of(number), stage.layers, strict=True)
        }

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
        result = self._begin_result()
        machine = None
        for step in range(self._state.start.step, self._num_steps):
            if len(result.step_seconds) == FIRST_TIMED:
                machine = ProcessorWatch()
            outcome = self._run(step, self._batches.take(), result)
            is_last = step + 1 == self._num_steps
            saves = is_last or outcome.stops or self._checkpoints.is_due(step + 1)
            self._account(outcome, saves, result, on_step)
            if outcome.stops and not is_last:
                result.stopped_at = step + 1
                break
        else:
            result.remark = self._state.remark(self._num_steps)
        result.traced = list(self._tracer.steps)
        result.processor_times = None if machine is None else machine.look()
        self._checkpoints.wait()
        result.failed_checkpoint = self._checkpoints.failed_step
        if result.stopped_at is None:
            self._weights.export(self._optimizer)
        return result

    def _begin_result(self) -> RankResult:
        """Make the record of this rank, with what is known before the first step."""
        world, mesh = self._world, self._place.mesh
        return RankResult(
            world.rank,
            world.host,
            str(world.device),
            max(1, world.processors // self._place.processes_per_rank),
            self._state.start.step,
            num_pipelines=mesh.data,
            late=self._optimizer.late,
            extra_bytes=self._extra_bytes,
            tokens_per_step=self._batches.sequences_per_step * self._plan.workload.sequence_length,
        )

    def _run(self, step: int, batches: list[MiniBatch], result: RankResult) -> StepOutcome:
        """Take one step, in all that measures it."""
        measured_step = min(self._state.start.step + 1, self._num_steps - 1)
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
        losses = dict(outcome.losses)
        if saves:
            losses |= self._iteration.settle()
        self._state.count(losses)
        result.losses += losses.values()
        result.step_seconds.append(outcome.seconds)
        result.program_seconds.append(outcome.program_seconds)
        if on_step is not None:
            for number, loss in losses.items():
                on_step(number, loss, outcome.seconds)
        self._checkpoints.poll()
        if saves:
            self._checkpoints.save(self._state.done)

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
        renewed_bytes, device = 0, self._world.device
        with measure(device) as found:
            if self._pipeline.lowered.versions is not None and device.type == "cpu":
                # A STEP gives parameters new memory, and the old is freed after its last reader.
                # On a CPU this is seen only for memory allocated within the window.
                stages = self._stages.values()
                renewed_bytes = renew({p: None for stage in stages for p in stage.parameters()})
            yield
            self._optimizer.finish()
        result.peak_bytes = result.static_bytes - renewed_bytes + found.peak_bytes

    def _settings(self, step: int) -> StepSettings:
        options = self._options
        return step_settings(options, options.learning_rate.at(step, self._num_steps))
