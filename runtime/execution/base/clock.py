"""Times of ops and of waits for transfers: host clock on CPU, events on CUDA.

Recording never synchronises the device. It can be switched off for all but one step in N; the other
steps then cost one test per op.
"""

import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from synth.schedule.measured.execution_trace import Communication, OpSpan
from synth.schedule.measured.rank_log import RankLog, Ready, Wait, in_turns
from synth.schedule.ops import Op

# On systems that do not count a thread's sleeps, a shorter wait is the cost of the call itself.
_ASKING_US = 50
_THREAD = getattr(resource, "RUSAGE_THREAD", None)


class OpClock:
    """Records the events between one `begin` and the next.

    `recording` may be changed between steps.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        recording: bool = True,
        host_ns: Callable[[], int] | None = None,
    ) -> None:
        """Record nothing yet.

        Args:
            device: that runs the ops.
            recording: False: nothing is recorded until it is True.
            host_ns: the host's clock for ops on a CPU; None: its monotonic time.
        """
        self.recording = recording
        self._host_ns = host_ns
        self._device, self._on_cuda = device, device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._num_events = 0
        self._lock = threading.Lock()
        self._zero: Any = 0
        self._zero_ns = 0
        self._forget()

    def _forget(self) -> None:
        self._ops: list[tuple[Op, Any, Any]] = []
        self._ready: list[tuple[Communication, Any]] = []
        self._waits: list[tuple[Communication, Any, Any, bool | None]] = []
        self._num_events = 0

    def begin(self) -> None:
        """Set the zero of time, and forget earlier events."""
        self._forget()
        self._zero_ns = time.perf_counter_ns()
        if self.recording:
            self._zero = self._now()

    def measure(self, op: Op) -> "_Measured":
        """Record the op that the `with` block runs."""
        return _Measured(self, self._ops, op)

    def ready(self, communication: Communication) -> None:
        """Record that this rank's end of a transfer or reduction is ready now."""
        if self.recording:
            self._ready.append((communication, self._now()))

    @contextmanager
    def wait(self, communication: Communication) -> Iterator[None]:
        """Record the `with` block as a wait for a transfer or reduction."""
        if not self.recording:
            yield
            return
        slept, start = self._voluntary_switches(), self._now()
        yield
        end = self._now()
        blocked = None if slept is None else self._voluntary_switches() != slept
        self._waits.append((communication, start, end, blocked))

    @property
    def zero_ns(self) -> int:
        """The host's monotonic time at `begin`, in nanoseconds; common to the ranks of a host."""
        return self._zero_ns

    def moments_us(self) -> list[tuple[Op, float, float]]:
        """Start and end of every recorded op, in microseconds since `begin`."""
        if self._on_cuda:
            torch.cuda.synchronize(self._device)
        return [(op, self._since(start), self._since(end)) for op, start, end in self._ops]

    def log(self) -> RankLog:
        """Return everything recorded since `begin`, in whole microseconds, by `in_turns`."""
        moments_us = self.moments_us()
        return RankLog(
            self._device_zero_ns() if self._on_cuda else self._zero_ns,
            in_turns([OpSpan(op, round(start), round(end)) for op, start, end in moments_us]),
            [Ready(communication, round(self._since(at))) for communication, at in self._ready],
            [
                self._wait_of(communication, self._since(start), self._since(end), blocked)
                for communication, start, end, blocked in self._waits
            ],
        )

    def _device_zero_ns(self) -> int:
        """The host's time at which the device, now idle, reached the zero of time.

        It reached it later than the host where it still worked on the step before.
        """
        event = self._now()
        torch.cuda.synchronize(self._device)
        return time.perf_counter_ns() - round(self._since(event) * 1000)

    def _wait_of(
        self, communication: Communication, start: float, end: float, blocked: bool | None
    ) -> Wait:
        if blocked is None:
            blocked = end - start >= _ASKING_US
        return Wait(communication, round(start), round(end), blocked)

    def _voluntary_switches(self) -> int | None:
        """The number of voluntary context switches of this thread; None: unknown.

        On a busy machine a wait may take long because the thread was preempted, although its data
        had arrived. Preemption is an involuntary switch and is not counted.
        """
        if self._on_cuda or _THREAD is None:
            return None
        return resource.getrusage(_THREAD).ru_nvcsw

    def _now(self) -> Any:
        """Return an event on CUDA, nanoseconds on CPU."""
        if not self._on_cuda:
            return time.perf_counter_ns() if self._host_ns is None else self._host_ns()
        with self._lock:  # links that carry weights have threads of their own
            if self._num_events == len(self._events):
                made = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                self._events.append(made)
            event = self._events[self._num_events]
            self._num_events += 1
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _since(self, moment: Any) -> float:
        if self._on_cuda:
            return float(self._zero.elapsed_time(moment)) * 1000
        return float(moment - self._zero) / 1000


class _Measured:
    """A `with` block between two moments; cheaper than a generator."""

    __slots__ = ("_clock", "_records", "_start", "_what")

    def __init__(self, clock: OpClock, records: list[Any], what: Any) -> None:
        self._clock = clock
        self._records = records
        self._what = what
        self._start: Any = None

    def __enter__(self) -> None:
        if self._clock.recording:
            self._start = self._clock._now()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._clock.recording and error is None:
            self._records.append((self._what, self._start, self._clock._now()))
