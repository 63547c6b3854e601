"""One rank of an emulated run, from the plan to its measurements."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import chain

import torch
import torch.distributed as dist

from synth.costs.costs import HOST
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.run_options.emulation_options import EmulationOptions
from synth.schedule.look_ahead import LookAhead
from synth.schedule.lowering.effects import ACT, GRAD
from synth.schedule.lowering.lower import Lowered
from synth.schedule.ops import Value
from synth.schedule.rank_memory import static_bytes
from synth.system.processor_waits import ProcessorWatch

from ..batch import Batch
from ..execution.base.clock import OpClock
from ..execution.base.rank_context import RankContext
from ..execution.base.step_table import SavedSizes
from ..execution.gradients.reductions import Reductions
from ..execution.program.compiled_program import CompiledProgram
from ..execution.program.executor import Executor
from ..execution.program.out_of_order import OutOfOrder
from ..execution.program.progress import RankProgress
from ..execution.program.tracer import Tracer
from ..execution.transport.groups import Group
from ..execution.transport.host.with_host import WithHost
from ..execution.transport.open_channels import open_channels
from ..execution.transport.traced_channels import TracedChannels
from ..execution.transport.watched_channels import WatchedReceives
from ..execution.weights.keeping import check_activations_stay, ranks_share_host
from ..profiling.meter import measure
from ..rank_result import FIRST_TIMED, RankResult
from ..world import World
from .collectives import PacedCollectives
from .emulated_clock import EmulatedClock, now_ns
from .emulated_stage import EmulatedStage, boundary_of, moved_bytes
from .gradient_sums import EmulatedReducer
from .host_link import EmulatedHostLink
from .kept import keep_emulated
from .links import EmulatedLinks
from .pace import Pace
from .steps import make_steps, step_durations
from .thread_order import EmulatedOrder

_CPU = torch.device("cpu")


class RankEmulation:
    """One rank: the real executor on emulated stages and paced links."""

    def __init__(
        self,
        lowered: Lowered,
        options: EmulationOptions,
        world: World,
        progress: RankProgress | None = None,
    ) -> None:
        """Prepare a rank; every rank must call this at the same time.

        Raises:
            SynthError: as many processes as the plan has ranks are needed, on one machine; or the
                executor does not replay such a schedule, with these options.
        """
        check_replayable(lowered, options)
        group = Group.world(options.timeout_s)
        _check_world(lowered, world, group)
        self._options, self._world, self._progress = options, world, progress
        self._num_micro_batches = lowered.schedule.num_micro_batches
        self._static_bytes = static_bytes(lowered, world.rank)
        self._device = device = EmulatedClock()
        pace = Pace(options.disturbance, world.rank)
        self._stages = _make_stages(lowered, world.rank, device, pace)
        costs = lowered.costs.stages
        self._shapes = [[boundary_of(c) for c in costs]] * self._num_micro_batches
        self._saved_sizes = _saved_sizes(lowered)
        clock = OpClock(_CPU)
        self._tracer = Tracer(clock, options.trace_every)
        self._executor = self._connect(lowered, group, pace, clock)
        late = options.post_validation
        self._steps = make_steps(lowered, group, self._stages, device, late=late)
        self._executor.stepper = self._steps

    def _connect(self, lowered: Lowered, group: Group, pace: Pace, clock: OpClock) -> Executor:
        """Connect this rank to the others by paced links; all ranks call this at the same time."""
        options, rank, device = self._options, self._world.rank, self._device
        between = [t for t in lowered.transfers if HOST not in (t.source, t.target)]
        watched = WatchedReceives() if options.look_ahead else None
        channels = open_channels(_CPU, between, options.timeout_s, group, lowered, watched)
        paced = EmulatedLinks(channels, device, pace, watched)
        collectives = PacedCollectives(device)
        kept = keep_emulated(lowered, group, collectives)
        context = RankContext(
            lowered=lowered,
            rank=rank,
            stages=self._stages,
            channels=TracedChannels(WithHost(paced, EmulatedHostLink(device)), clock),
            device=_CPU,
            clock=clock,
        )
        reducer = EmulatedReducer(lowered, group, clock, collectives) if kept is None else None
        program = CompiledProgram(
            context,
            kept=kept,
            order=EmulatedOrder(device),
            reductions=Reductions(reducer),
            progress=self._progress,
        )
        return Executor(program, out_of_order=_look_ahead(lowered, rank, options, paced))

    def run(self, on_step: Callable[[int, float, float], None] | None = None) -> RankResult:
        """Run all steps; the second one measures memory. There is no loss."""
        world, steps = self._world, self._options.steps
        result = RankResult(world.rank, world.host, "emulated", world.size)
        result.static_bytes = self._static_bytes
        result.late = self._options.post_validation
        measured_step = min(1, steps - 1)
        end_ns = now_ns()
        machine = None
        for step in range(steps):
            if step == FIRST_TIMED:
                machine = ProcessorWatch()
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
                    renewed = [old for stage in self._stages.values() for old in stage.renew()]
                    self._step()
                    self._steps.finish()
                seen_bytes = sum(old.nbytes for old in renewed)
                result.peak_bytes = self._static_bytes - seen_bytes + found.peak_bytes
                renewed.clear()
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
        result.processor_times = None if machine is None else machine.look()
        return result

    @property
    def held_values(self) -> int:
        """The number of boundary values and transfers held now; 0 between steps."""
        return self._executor.held_values

    def _step(self) -> None:
        inputs = [()] * self._num_micro_batches
        self._executor.step(Batch(inputs=inputs), self._shapes, saved_sizes=self._saved_sizes)


def check_replayable(lowered: Lowered, options: EmulationOptions) -> None:
    """Refuse what the executor or emulated devices do not replay."""
    stays = lowered.visits is None and lowered.versions is None
    if options.post_validation and not stays:
        raise SynthError(
            "steps cannot be validated afterwards with weight passing or with updates between ops; "
            "leave out --post-validation"
        )
    if lowered.visits is not None:
        check_activations_stay(lowered)
    if ranks_share_host(lowered):
        raise SynthError(
            "ranks leave values for each other in the host's memory in this schedule, and an "
            "emulated link to the host knows only what its own rank has left; run it, or emulate "
            "one whose stages stay with their homes, such as mobius"
        )


def _make_stages(
    lowered: Lowered, rank: int, device: EmulatedClock, pace: Pace
) -> dict[int, EmulatedStage]:
    costs, steps_us = lowered.costs.stages, step_durations(lowered, rank)
    at_once = _at_once_us(lowered)
    return {
        stage: EmulatedStage(
            costs[stage],
            costs[stage - 1] if stage else None,
            device,
            is_last=stage == len(costs) - 1,
            has_versions=lowered.versions is not None,
            op_us=partial(_op_us, pace, stage, steps_us.get(stage, 0)),
            at_once_us=at_once[stage],
            own_bytes={
                value.kind: lowered.effects.own_bytes_of(value)
                for value in (Value(ACT, stage, 0, replica), Value(GRAD, stage - 1, 0, replica))
            },
        )
        for stage, replica in lowered.schedule.placement.held[rank]
    }


def _at_once_us(lowered: Lowered) -> defaultdict[int, dict[tuple[OpKind, int], int]]:
    """By stage the times of ops that run at once with another one, by kind and micro-batch."""
    found: defaultdict[int, dict[tuple[OpKind, int], int]] = defaultdict(dict)
    ops = [*chain(*lowered.ops)]
    for first in lowered.arrays.overlapped.tolist():
        for node in (first, first + 1):
            op = ops[node]
            found[op.stage][op.kind, op.microbatch] = lowered.durations_us[node]
    return found


def _saved_sizes(lowered: Lowered) -> SavedSizes:
    """By stage and micro-batch the bytes of the activations that leave for the host."""
    costs = lowered.costs.stages
    return {
        (op.stage, op.microbatch): (moved_bytes(costs[op.stage]),)
        for ops in lowered.ops
        for op in ops
        if op.kind == OpKind.HOST_FOR
    }


def _op_us(pace: Pace, stage: int, step_us: int, kind: OpKind, planned_us: int) -> int:
    return pace.op_us(kind, stage, step_us if kind == OpKind.STEP else planned_us)


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
