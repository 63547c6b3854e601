"""Watching the machine while a profile is measured on it."""

import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from synth.profile.measurement_conditions import Conditions

# The time constant of the kernel's 1-minute load average.
_LOAD_DECAY_S = 60.0

_ASKING_S = 20


def load_average() -> float | None:
    """Return the 1-minute load average; None if the system does not provide it."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def processes_on(device: torch.device) -> int | None:
    """Count the processes that compute on a CUDA device; None if the driver does not report them.

    From inside most containers the driver sees no processes, and then lists none.
    """
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        return None
    query = ["nvidia-smi", f"--id=GPU-{uuid}", "--query-compute-apps=pid", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_ASKING_S)
    except (OSError, subprocess.SubprocessError):
        return None
    listed = done.stdout.split() if done.returncode == 0 else []
    return len(listed) if listed and all(pid.isdigit() for pid in listed) else None


@dataclass(frozen=True)
class Senses:
    """The clocks and counters that a watch reads; tests replace them."""

    load: Callable[[], float | None] = load_average
    wall_s: Callable[[], float] = time.monotonic
    thread_s: Callable[[], float] = time.thread_time
    processes: Callable[[torch.device], int | None] = processes_on
    num_processors: int = field(default_factory=lambda: os.cpu_count() or 1)


class MachineWatch:
    """Notes how busy the machine is, from when it is made until it is asked."""

    def __init__(
        self, *, processes: int = 1, threads: int = 1, senses: Senses | None = None
    ) -> None:
        """Begin to watch.

        Args:
            processes: the most processes that this command runs at once on this machine.
            threads: the threads that compute in the measuring process.
            senses: the clocks and counters to read.
        """
        self._senses = senses or Senses()
        self._own_load = max(processes, threads)
        self._can_compare_clocks = threads == 1
        self._start_s = self._senses.wall_s()
        self._load_start = self._senses.load()
        self._measured_s = self._on_processor_s = 0.0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the `with` block, in which the thread does nothing but compute, as measured."""
        wall_s, thread_s = self._senses.wall_s(), self._senses.thread_s()
        yield
        self._measured_s += self._senses.wall_s() - wall_s
        self._on_processor_s += self._senses.thread_s() - thread_s

    def conditions(self, device: torch.device, spread: float) -> Conditions:
        """Return the conditions of measurements on a device, with the spread of their samples.

        On CUDA ops run on the device, so the host's load and its thread's time say little about
        them.
        """
        if device.type == "cuda":
            there = self._senses.processes(device)
            others = None if there is None else max(0, there - 1)
            return Conditions(other_processes=others, spread=spread)
        return Conditions(
            load_start=self._per_processor(self._load_start, 0.0),
            load_end=self._per_processor(self._senses.load(), self._added_load()),
            waiting_share=self._waiting_share(),
            spread=spread,
        )

    def _added_load(self) -> float:
        """The most that this command itself has added to the load average since the beginning."""
        lasted_s = self._senses.wall_s() - self._start_s
        return self._own_load * (1 - math.exp(-lasted_s / _LOAD_DECAY_S))

    def _per_processor(self, load: float | None, own: float) -> float | None:
        if load is None:
            return None
        return round(max(0.0, load - own) / self._senses.num_processors, 3)

    def _waiting_share(self) -> float | None:
        """The share of measured time that the thread waited; None with several threads.

        One thread of several waits for the others, too.
        """
        if not self._can_compare_clocks or not self._measured_s:
            return None
        return round(max(0.0, 1 - self._on_processor_s / self._measured_s), 4)
