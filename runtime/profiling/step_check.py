"""Comparing the layers that were measured one by one with a whole step of some of them."""

import time

import torch

from synth.errors import SynthError
from synth.profile import Profile
from synth.units import counted, format_bytes

from ..execution.base.clock import OpClock
from ..free_memory import available_bytes
from ..input_function import MicroBatch
from .layer_source import LayerSource
from .layer_walk import VisitedLayer
from .options import ProfilingOptions
from .rank_processes import together
from .short_model import ShortModel
from .whole_step import WholeStepRun

_CPU = torch.device("cpu")

# Rounds of the whole step per measured iteration of a layer: it has up to two layers of a kind.
_ROUNDS_SHARE = 4
_FEWEST_ROUNDS = 3


class StepCheck:
    """Keeps a few layers of each kind while they are measured, then runs them as one stage."""

    def __init__(
        self, source: LayerSource, device: torch.device, options: ProfilingOptions
    ) -> None:
        self._source, self._device, self._options = source, device, options
        self._short = ShortModel(lambda: self._free_bytes(_CPU))
        self._num_visited = 0

    def add(self, visited: VisitedLayer) -> None:
        """Take the next layer of the walk, after it was measured."""
        if self._options.on_whole_step is not None:
            self._short.add(self._num_visited, visited, self._source.calls[self._num_visited])
            self._num_visited += 1

    def run(self, profile: Profile, batch: MicroBatch) -> None:
        """Measure the whole step and report it, or tell why it could not be.

        Args:
            profile: of all layers, with the rises of ops in which no step is committed.
        """
        report, tell = self._options.on_whole_step, self._options.tell
        if report is None:
            return
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        free_bytes = self._free_bytes(self._device)
        processes = self._options.processes
        is_any_missing = any(together(processes, lambda: self._short.missing is not None))
        run = WholeStepRun.fitting(
            () if is_any_missing else self._short.layers,
            profile,
            self._device,
            ties=self._source.ties,
            free_bytes=free_bytes,
            processes=processes,
        )
        if run is None:
            free = "" if free_bytes is None else f" of {format_bytes(free_bytes)}"
            tell(
                f"no whole step is compared with its parts: the layers that it needs, with their "
                f"gradients and activations, do not fit in the free memory{free}"
            )
            return
        tell(f"measuring a whole step of {counted(len(run.names), 'layer')}")
        rounds = max(_FEWEST_ROUNDS, self._options.iterations // _ROUNDS_SHARE)
        try:
            step = run.measure(batch, rounds=rounds)
            if step.is_time_off:
                tell("measuring it in turns with its parts, as they differ by more than 3 %")
                turns = run.in_turns(batch, rounds=rounds, clock=self._clock_of_turns())
                step = step.replace(turns=turns)
        except (SynthError, RuntimeError) as error:
            tell(f"no whole step is compared with its parts, as it failed: {error}")
            return
        report(step)

    def _clock_of_turns(self) -> OpClock:
        """Return a clock of processor time where one thread computes, so that others do not count.

        Of several threads, or processes that wait for each other, it would miss a part.
        """
        is_alone = torch.get_num_threads() == 1 and self._options.processes is None
        is_counted = is_alone and self._device.type == "cpu"
        return OpClock(self._device, host_ns=time.thread_time_ns if is_counted else None)

    def _free_bytes(self, device: torch.device) -> int | None:
        own, processes = available_bytes(device), self._options.processes
        return own if processes is None else processes.least(own)
