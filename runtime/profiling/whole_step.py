"""Measuring a whole step of a few layers with the executor, beside the sum of its parts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from synth.costs.costs import Costs
from synth.costs.partition_costs import partition_costs
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.whole_step import HeldPeak, Turns, WholeStep, sum_of_parts_us
from synth.schedule.lowering.lower import Lowered, lower
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes

from ..batch import Batch
from ..execution.base.clock import OpClock
from ..execution.transport.in_process.ranks import InProcessGroup, InProcessRanks
from ..input_function import MicroBatch
from ..models.layered_stage import LayerCall, LayeredStage, Randomness
from ..models.ties import Tie, keep_tied
from ..optimize import held_bytes, widen_gradients, zero_gradient
from ..pipeline import Pipeline
from .meter import measure
from .rank_processes import RankProcesses, together
from .sample import copied
from .short_model import ShortLayer, calls_of_own, fitting
from .turns import in_turns, samples_of

T = TypeVar("T")

HELD = (1, 2, 4)

# The first step observes which weight gradients can wait.
_WARM_UP = 1

# The part of the free memory that a step may take by its planned peak.
_USED_SHARE = 0.8

_TIMEOUT_S = 600.0


class WholeStepRun:
    """A few layers that fit on a device, to be run as the one stage of one rank."""

    def __init__(
        self,
        layers: Sequence[ShortLayer],
        profile: Profile,
        device: torch.device,
        *,
        ties: Sequence[Tie] = (),
        most_bytes: int | None = None,
        processes: RankProcesses | None = None,
    ) -> None:
        """Prepare nothing yet.

        Args:
            layers: from the inputs to the loss.
            profile: of the whole model, with the rises of ops that no step is committed in.
            device: the device to run them on.
            ties: the parameters that layers of the model share.
            most_bytes: the largest planned peak that is tried; None: any.
            processes: that run the layers together; None: this one runs them alone.
        """
        self._layers, self._device, self._ties = list(layers), device, ties
        self._part, self._most_bytes = _part(profile, layers), most_bytes
        self._processes = processes

    @classmethod
    def fitting(
        cls,
        layers: Sequence[ShortLayer],
        profile: Profile,
        device: torch.device,
        *,
        ties: Sequence[Tie] = (),
        free_bytes: int | None = None,
        processes: RankProcesses | None = None,
    ) -> Self | None:
        """Make a run of as many of the layers as fit; None: too many are needed.

        Args:
            free_bytes: of the device; None: not known.
            processes: that run the layers together, if they fit on each of them; None: this one
                runs them alone.
        """
        most_bytes = None if free_bytes is None else int(free_bytes * _USED_SHARE)

        def fits(chosen: Sequence[ShortLayer]) -> bool:
            if most_bytes is None:
                return True
            planned_bytes = _planned(_part(profile, chosen), 1)
            return all(together(processes, lambda: planned_bytes <= most_bytes))

        chosen = fitting(layers, fits, lambda name: profile.layer_profiles[name].static_bytes)
        if not chosen:
            return None
        return cls(chosen, profile, device, ties=ties, most_bytes=most_bytes, processes=processes)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layers."""
        return tuple(entry.name for entry in self._part.layers)

    def measure(self, batch: MicroBatch, *, rounds: int, clock: OpClock | None = None) -> WholeStep:
        """Run steps: one for each number of held micro-batches, and some to take the time.

        The time is that of the slowest process, and the peaks are those of the fullest.

        Args:
            batch: the micro-batch, which each of those held is a copy of.
            rounds: the steps whose times are taken.
            clock: records the times of ops; None: the device's.
        """
        clock = clock or OpClock(self._device)
        with self._stage() as (stage, calls):
            run = self._step(stage, batch, clock)
            lowered = _lowered(self._part, 1)
            for _ in range(_WARM_UP):
                self._together(lambda: run.step(lowered))
            peaks = self._peaks(run, held_bytes([call.module for call in calls]))
            times_us = self._together(lambda: median(run.times_us(lowered, rounds)))
        return WholeStep(
            layers=self.names,
            parts_us=sum_of_parts_us(map(self._part.layer_profile, range(len(self.names)))),
            whole_us=round(max(times_us), 3),
            peaks=peaks,
        )

    def in_turns(self, batch: MicroBatch, *, rounds: int, clock: OpClock) -> Turns:
        """Measure the time again, in turns with that of each layer alone."""
        with self._stage() as (stage, calls):
            run = self._step(stage, batch, clock)
            lowered = _lowered(self._part, 1)
            samples = samples_of(calls, run.batch)
            found = self._together(
                lambda: in_turns(lambda: run.times_us(lowered, 1)[0], samples, clock, rounds)
            )
        return max(found, key=lambda turns: turns.whole_us)

    def _step(self, stage: LayeredStage, batch: MicroBatch, clock: OpClock) -> "_Step":
        saves_inputs = self._part.layer_profile(0).input_until != OpKind.F
        return _Step(stage, batch, self._device, clock, saves_inputs=saves_inputs)

    def _peaks(self, run: "_Step", static_bytes: int) -> tuple[HeldPeak, ...]:
        """Measure the peaks, with B and W or with BW, whichever comes nearer the plan.

        A profile has one number for what F saves, the larger one of both ways: under autocast an F
        before BW saves casts of weights, and one before B and W does not.
        """
        firsts = [self._peak(run, 1, fused, static_bytes) for fused in (False, True)]
        differences = [round(peak.difference, 3) for peak in firsts]
        fused = differences[True] > differences[False]
        peaks = [firsts[fused]]
        for number in HELD[1:]:
            if self._fits(_planned(self._part, number, fused)):
                peaks.append(self._peak(run, number, fused, static_bytes))
        return tuple(peaks)

    def _peak(self, run: "_Step", held: int, fused: bool, static_bytes: int) -> HeldPeak:
        lowered = _lowered(self._part, held, fused)
        found = self._together(
            lambda: HeldPeak(
                micro_batches=held,
                planned_bytes=peak_bytes(lowered)[0],
                measured_bytes=static_bytes + run.rise_bytes(lowered),
            )
        )
        return max(found, key=lambda peak: peak.measured_bytes)

    def _fits(self, planned_bytes: int) -> bool:
        most_bytes = self._most_bytes
        return all(self._together(lambda: most_bytes is None or planned_bytes <= most_bytes))

    def _together(self, own: Callable[[], T]) -> list[T]:
        return together(self._processes, own)

    @contextmanager
    def _stage(self) -> Iterator[tuple[LayeredStage, list[LayerCall]]]:
        """Bring the layers to the device as one stage, with gradients; and back to the host."""
        calls: list[LayerCall] = []
        self._together(lambda: calls.extend(self._prepared()))
        modules = [call.module for call in calls]
        parameters = _trained(modules)
        try:
            yield (
                LayeredStage(calls, is_first=True, is_last=True, randomness=Randomness(0, 1)),
                calls,
            )
        finally:
            for parameter in parameters:
                parameter.grad = None
            for module in modules:
                module.to("cpu")

    def _prepared(self) -> list[LayerCall]:
        calls = calls_of_own(self._layers)
        modules = [call.module.to(self._device) for call in calls]
        keep_tied({call.index: call.module for call in calls}, self._ties)
        if self._part.workload.optimizer.float32_gradients:
            widen_gradients(modules)
        for parameter in _trained(modules):
            parameter.grad = zero_gradient(parameter)
        return calls


class _Step:
    """Steps of one stage that is the whole pipeline."""

    def __init__(
        self,
        stage: LayeredStage,
        batch: MicroBatch,
        device: torch.device,
        clock: OpClock,
        *,
        saves_inputs: bool,
    ) -> None:
        self._stage, self._device, self._clock = stage, device, clock
        self._saves_inputs = saves_inputs
        on_device = pytree.tree_map_only(Tensor, lambda t: t.to(device), tuple(batch))
        self.batch = MicroBatch(*on_device)

    def step(self, lowered: Lowered) -> None:
        """Run one step."""
        self._pipeline(lowered).step(self._copies(lowered))

    def rise_bytes(self, lowered: Lowered) -> int:
        """Return the rise of memory above its level between steps.

        What the first layer saves of its inputs is a part of it, as in the layer's profile. Inputs
        that it saves nothing of are the batch's.
        """
        pipeline, copies = self._pipeline(lowered), self._copies(lowered)
        if self._saves_inputs:
            inputs = _Copies(self.batch.inputs, lowered.schedule.num_micro_batches)
            copies = replace(copies, inputs=inputs)
        with measure(self._device) as found:
            pipeline.step(copies)
        return found.peak_bytes

    def times_us(self, lowered: Lowered, rounds: int) -> list[float]:
        """Return the times from the first F to the end of the last W, by round."""
        pipeline, found = self._pipeline(lowered), []
        for _ in range(rounds):
            copies = self._copies(lowered)
            self._clock.begin()
            pipeline.step(copies)
            moments_us = [m for m in self._clock.moments_us() if m[0].kind != OpKind.STEP]
            found.append(moments_us[-1][2] - moments_us[0][1])
        return found

    def _pipeline(self, lowered: Lowered) -> Pipeline:
        group = InProcessGroup(InProcessRanks(1, _TIMEOUT_S, 0), 0, (0,), _TIMEOUT_S)
        return Pipeline(
            lowered, {0: self._stage}, group=group, clock=self._clock, device=self._device
        )

    def _copies(self, lowered: Lowered) -> Batch:
        """Copy the micro-batch for each one of the step, since a layer may change its inputs."""
        (inputs, targets), count = self.batch, range(lowered.schedule.num_micro_batches)
        return Batch([copied(inputs) for _ in count], [copied(targets) for _ in count])


class _Copies(Sequence[Any]):
    """As many copies of a tree of tensors, each made when it is taken and held by who takes it."""

    def __init__(self, tree: Any, count: int) -> None:
        self._tree, self._count = tree, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        return copied(self._tree)


def _trained(modules: Sequence[nn.Module]) -> set[nn.Parameter]:
    return {p for module in modules for p in module.parameters() if p.requires_grad}


def _part(profile: Profile, layers: Sequence[ShortLayer]) -> Profile:
    """The profile of some layers, without an optimizer's state."""
    entries = [layer.entry for layer in layers]
    names = {entry.name for entry in entries}
    tied = [
        one.replace(layers=within, optimizer_bytes=0)
        for one in profile.tied_parameters or ()
        if len(within := tuple(name for name in one.layers if name in names)) > 1
    ]
    return profile.replace(
        layers=tuple(entries),
        layer_profiles={
            entry.profile: profile.layer_profiles[entry.profile].replace(optimizer_bytes=0)
            for entry in entries
        },
        tied_parameters=tuple(tied) or None,
    )


def _lowered(part: Profile, held: int, fused: bool = False) -> Lowered:
    """All layers as one stage: F of each micro-batch, then B and W, or BW, of each."""
    kinds = (OpKind.BW,) if fused else (OpKind.B, OpKind.W)
    forwards = [Op(OpKind.F, 0, microbatch) for microbatch in range(held)]
    backwards = [Op(kind, 0, microbatch) for microbatch in range(held) for kind in kinds]
    schedule = Schedule.linear("whole step", held, [[*forwards, *backwards, Op(OpKind.STEP, 0)]])
    return lower(schedule, _costs(part))


def _costs(part: Profile) -> Costs:
    [stage] = partition_costs(part, [len(part.layers)]).stages
    # No STEP runs: the optimizer is not there.
    rises = {**stage.rise_bytes, OpKind.STEP: 0}
    return Costs(stages=(stage.replace(rise_bytes=rises),))


def _planned(part: Profile, held: int, fused: bool = False) -> int:
    return peak_bytes(_lowered(part, held, fused))[0]
