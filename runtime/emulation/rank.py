"""One rank of an emulated run, from the plan to its measurements."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
from pydantic import NonNegativeInt

from synth.costs import HOST
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.record import Record
from synth.schedule.look_ahead import LookAhead
from synth.schedule.lowering.lower import Lowered
from synth.schedule.memory import static_bytes

from ..batch import Batch
from ..execution.core.clock import OpClock
from ..execution.core.compiled_program import CompiledProgram
from ..execution.core.executor import Executor
from ..execution.core.out_of_order import OutOfOrder
from ..execution.core.progress import RankProgress
from ..execution.core.stepper import Stepper
from ..execution.core.tracer import Tracer
from ..execution.transport.groups import Group
from ..execution.transport.open_channels import open_channels
from ..execution.transport.traced_channels import TracedChannels
from ..execution.transport.watched_channels import WatchedReceives
from ..execution.transport.with_host import WithHost
from ..optimize import GradientNorm
from ..profiling.meter import measure
from ..training.rank_result import RankResult
from ..world import World
from .device_time import DeviceTime, now_ns
from .gradient_sums import EmulatedReducer
from .host_link import EmulatedHostLink
from .links import EmulatedLinks
from .pace import Disturbance, Pace
from .stage import EmulatedStage, boundary_of, moved_bytes

_CPU = torch.device("cpu")


class EmulationOptions(Record):
    """The options of an emulated run; everything else is in the plan."""

    emulated: Literal[True] = True
    steps: int = 8
    timeout_s: float = 300.0
    patience_s: float = 120.0
    trace_every: int = 1
    post_validation: bool = False
    look_ahead: NonNegativeInt = 0
    caps_bytes: tuple[int, ...] | None = None
    """The memory limits that look-ahead keeps; None: each rank's planned peak."""
    disturbance: Disturbance = Disturbance()
    device: Literal["cpu"] = "cpu"
    restarts: Literal[0] = 0
    data_parallel: Literal[1] = 1

    def resolved(self) -> "EmulationOptions":
        """The same for a process in another folder."""
        return self


class _Steps:
    """STEPs that take their time, after a sum over all ranks like that of the global norm."""

    late = False

    def __init__(self, stages: Mapping[int, EmulatedStage], device: DeviceTime) -> None:
        self._stages = stages
        self._device = device

    def begin(self) -> None:
        """Do nothing: there are no gradients."""

    def validate(self) -> bool:
        """Return True: no step is ever wrong."""
        return True

    def synchronize(self) -> None:
        """Wait for all ranks."""
        asked_ns, late_ns = now_ns(), torch.tensor([self._device.late_ns])
        dist.all_reduce(late_ns, dist.ReduceOp.MAX)
        self._device.arrived(0, asked_ns, int(late_ns))

    def step(self, stage: int) -> None:
        """STEP of one stage."""
        self._stages[stage].step()

    def finish(self) -> bool:
        """Return True: no step is open."""
        return True


class _LateSteps:
    """STEPs that take their time and do not wait: the norm is gathered after them."""

    late = True

    def __init__(self, stages: Mapping[int, EmulatedStage], group: Group) -> None:
        self._stages = stages
        alone = group.subgroup(range(group.size), purpose="norm")
        self._norm = GradientNorm(None, _CPU, alone)
        self._open = False

    def begin(self) -> None:
        """Do nothing: there are no gradients."""

    def validate(self) -> bool:
        """Wait for the norm; no step is ever wrong."""
        return self.finish()

    def synchronize(self) -> None:
        """Start gathering the norm."""
        self._norm.start(())
        self._open = True

    def step(self, stage: int) -> None:
        """STEP of one stage."""
        self._stages[stage].step()

    def finish(self) -> bool:
        """Wait for the norm."""
        if self._open:
            self._norm.verdict()
            self._open = False
        return True


class RankEmulation:
    """One rank: the real executor on simulated stages and paced links."""

    def __init__(
        self,
        lowered: Lowered,
        options: EmulationOptions,
        world: World,
        progress: RankProgress | None = None,
    ) -> None:
        """Prepare a rank; every rank must call this at the same time.

        Raises:
            SynthError: as many processes as the plan has ranks are needed, on one machine; weights
                have versions.
        """
        if lowered.versions is not None:
            raise SynthError(
                "this schedule keeps several versions of the weights, which simulated devices do "
                "not hold; run it, or emulate one that flushes the pipeline"
            )
        group = Group.world(options.timeout_s)
        _check_world(lowered, world, group)
        self._options, self._world, self._progress = options, world, progress
        self._num_micro_batches = lowered.schedule.num_micro_batches
        self._static_bytes = static_bytes(lowered, world.rank)
        self._device = device = DeviceTime()
        costs = lowered.costs.stages
        last = len(costs) - 1
        pace = Pace(options.disturbance, world.rank)
        stages = {
            s: EmulatedStage(
                costs[s],
                costs[s - 1].output_bytes if s else None,
                device,
                is_last=s == last,
                op_us=partial(_op_us, pace, s),
            )
            for s, _ in lowered.schedule.placement.held[world.rank]
        }
        self._shapes = [[boundary_of(c.output_bytes) for c in costs]] * self._num_micro_batches
        self._clock = OpClock(_CPU)
        self._tracer = Tracer(self._clock, options.trace_every)
        between = [t for t in lowered.transfers if HOST not in (t.source, t.target)]
        watched = WatchedReceives() if options.look_ahead else None
        channels = open_channels(_CPU, between, options.timeout_s, group, lowered, watched)
        paced = EmulatedLinks(channels, device, pace, watched)
        links = WithHost(paced, EmulatedHostLink(device))
        self._saved_sizes = {
            (op.stage, op.microbatch): (moved_bytes(costs[op.stage]),)
            for ops in lowered.ops
            for op in ops
            if op.kind == OpKind.HOST_FOR
        }
        program = CompiledProgram(
            lowered,
            world.rank,
            stages,
            TracedChannels(links, self._clock),
            device=_CPU,
            clock=self._clock,
            reducer=EmulatedReducer(lowered, group, self._clock, device),
            progress=progress,
        )
        self._executor = Executor(
            program, out_of_order=_look_ahead(lowered, world.rank, options, paced)
        )
        self._steps: Stepper = (
            _LateSteps(stages, group) if options.post_validation else _Steps(stages, device)
        )
        self._executor.stepper = self._steps

    def run(self, on_step: Callable[[int, float, float], None] | None = None) -> RankResult:
        """Run all steps; the second one measures memory. There is no loss."""
        world, steps = self._world, self._options.steps
        result = RankResult(world.rank, world.host, "emulated", world.size)
        result.static_bytes = self._static_bytes
        result.late = self._options.post_validation
        measured_step = min(1, steps - 1)
        end_ns = now_ns()
        for step in range(steps):
            if self._progress is not None:
                self._progress.begin_step(step)
            overlaps = self._options.post_validation and step > measured_step + 1
            if not overlaps:
                dist.barrier()
                self._device.begin()
            self._tracer.begin(countable=step > measured_step)
            start_ns = end_ns if overlaps else now_ns()
            if step == measured_step:
                # No thread of gloo's may allocate when the window opens or closes.
                self._steps.finish()
                with measure(_CPU) as found:
                    self._step()
                    self._steps.finish()
                result.peak_bytes = self._static_bytes + found.peak_bytes
            else:
                self._step()
            end_ns = now_ns()
            if self._options.look_ahead:
                result.early_ops.append(self._executor.num_early)
            seconds = (end_ns - start_ns) / 1e9
            result.step_seconds.append(seconds)
            result.program_seconds.append(seconds)
            self._tracer.end(step, seconds * 1e6)
            if on_step is not None:
                on_step(step, float("nan"), seconds)
        # Nothing may be under way when the process group goes.
        self._steps.finish()
        result.traced = list(self._tracer.steps)
        return result

    @property
    def held_values(self) -> int:
        """The number of boundary values and transfers held now; 0 between steps."""
        return self._executor.held_values

    def _step(self) -> None:
        inputs = [()] * self._num_micro_batches
        self._executor.step(Batch(inputs=inputs), self._shapes, saved_sizes=self._saved_sizes)


def _op_us(pace: Pace, stage: int, kind: OpKind, planned_us: int) -> int:
    return pace.op_us(kind, stage, planned_us)


def _look_ahead(
    lowered: Lowered, rank: int, options: EmulationOptions, links: EmulatedLinks
) -> OutOfOrder | None:
    if not options.look_ahead:
        return None
    cap_bytes = None if options.caps_bytes is None else options.caps_bytes[rank]
    chooser = LookAhead(lowered, rank, options.look_ahead, cap_bytes)
    return OutOfOrder(chooser, lowered.programs[rank], links)


def _check_world(lowered: Lowered, world: World, group: Group) -> None:
    if world.size != lowered.num_ranks:
        raise SynthError(
            f"the plan is for {lowered.num_ranks} ranks, this run has {world.size} processes; "
            f"start {lowered.num_ranks}"
        )
    hosts = sorted(set(group.gather(world.host)))
    if len(hosts) > 1:
        raise SynthError(
            f"an emulation needs all ranks on one machine, whose clock they share; they are on "
            f"{', '.join(hosts)}"
        )
