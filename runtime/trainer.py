"""Training under a plan: one rank's part of `synth run`, from the plan to the report."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from synth.errors import Mismatch, RunFailure, SynthError
from synth.profile import Workload
from synth.record import Record
from synth.schedule.file import Plan
from synth.schedule.lower import Lowered
from synth.schedule.spans import Span

from .channels import describe_failure, open_channels
from .clock import Clock
from .data import TokenData, load_tokens
from .executor import Batch, Boundary, Executor
from .meter import measure
from .models import ModelSpec, build_layers, vocabulary_size
from .optimizer import SynchronousAdamW, adamw_static_bytes
from .progress import Progress
from .stage import Stage
from .world import World

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TrainOptions(Record):
    """What a run may choose; everything else the plan says."""

    data: Path
    steps: int = 20
    learning_rate: float = 1e-3
    clip_norm: float | None = 1.0
    seed: int = 0
    device: str = "auto"
    timeout_s: float = 300.0


@dataclass
class RankResult:
    """What one rank measured."""

    rank: int
    host: str
    device: str
    processors: int
    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    static_bytes: int = 0
    peak_bytes: int = 0
    zero_ns: list[int] = field(default_factory=list)
    spans: list[list[Span]] = field(default_factory=list)


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
        self._optimizer = SynchronousAdamW(
            {number: stage.layers for number, stage in self._stages.items()},
            device=world.device,
            learning_rate=options.learning_rate,
            clip_norm=options.clip_norm,
        )
        self._clock = Clock(world.device)
        self._executor = Executor(
            lowered,
            world.rank,
            self._stages,
            open_channels(world.device, lowered.transfers, options.timeout_s),
            self._find_boundaries(),
            device=world.device,
            clock=self._clock,
            stepper=self._optimizer,
            progress=progress,
        )

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
        self._optimizer.begin_step()
        return self._executor.step(batch)

    def _measured_step(self, batch: Batch, result: RankResult) -> Tensor | None:
        result.static_bytes = self._optimizer.static_bytes()
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

    def _find_boundaries(self) -> list[Boundary]:
        """Pass one micro-batch through without autograd, so that every rank knows the shapes."""
        plan, device = self._plan, self._world.device
        x, y = next(self._data.mini_batch(0, 1, plan.workload.micro_batch_size))
        x, y = x.to(device), y.to(device)
        boundaries: list[Boundary] = []
        for number in range(len(plan.partition) - 1):
            found: list[Boundary | None] = [None]
            owner = plan.placement[0][number]
            if owner == self._world.rank:
                if boundaries:
                    x = torch.zeros(boundaries[-1].shape, dtype=boundaries[-1].dtype, device=device)
                output = self._stages[number].output_like(x)
                found = [Boundary(tuple(output.shape), output.dtype)]
            dist.broadcast_object_list(found, owner)
            assert found[0] is not None
            boundaries.append(found[0])
        return boundaries


def prepare_device(workload: Workload, device: torch.device) -> None:
    """Set what the profile was measured with: on CPU, the number of threads."""
    if device.type == "cpu":
        torch.set_num_threads(workload.threads)


def build_stages(plan: Plan, rank: int, device: torch.device, seed: int) -> dict[int, Stage]:
    """Build the stages that the placement gives a rank, and no others.

    Raises:
        SynthError: the workload's dtype is unknown, or its model cannot be built.
    """
    workload = plan.workload
    spec = ModelSpec(workload.model, workload.arguments)
    dtype = dtype_of(workload.dtype)
    last = len(plan.partition) - 1
    stages = {}
    for number, _ in plan.schedule().placement.held[rank]:
        layers = build_layers(
            spec,
            seed=seed,
            indices=plan.layers_of(number),
            names=plan.layers,
            device=device,
            dtype=dtype,
        )
        _check_bytes(plan, number, layers.values())
        stages[number] = Stage(list(layers.values()), is_first=number == 0, is_last=number == last)
    return stages


def _check_bytes(plan: Plan, stage: int, layers: Iterable[nn.Module]) -> None:
    """A stage's static bytes must be those that the plan counts."""
    needed = plan.costs.stages[stage].static_bytes
    found = sum(adamw_static_bytes(layer) for layer in layers)
    if found != needed:
        raise Mismatch(
            f"stage {stage} (layers {', '.join(plan.layers[i] for i in plan.layers_of(stage))}) "
            f"holds {found} static bytes, the plan counts {needed}: the model or the plan has "
            f"changed since it was profiled; profile and solve again"
        )


def dtype_of(name: str) -> torch.dtype:
    """The parameters' dtype by name.

    Raises:
        SynthError: no such dtype.
    """
    if name not in DTYPES:
        raise SynthError(f"dtype {name!r} is unknown; known: {', '.join(DTYPES)}")
    return DTYPES[name]


def _check_world(plan: Plan, world: World) -> None:
    if world.size != plan.num_ranks:
        raise SynthError(
            f"the plan is for {plan.num_ranks} ranks, this run has {world.size} processes; start "
            f"{plan.num_ranks} (torchrun --nproc-per-node), or solve again with "
            f"--ranks {world.size}"
        )
