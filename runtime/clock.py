"""When each op ran: the host's clock on CPU, events on CUDA; recording never synchronises."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from synth.schedule.ops import Op
from synth.schedule.spans import Span


class Clock:
    """Records the ops between one `begin` and the next; read them with `spans`."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._records: list[tuple[Op, Any, Any]] = []
        self._zero: Any = 0
        self._zero_ns = 0

    def begin(self) -> None:
        """Set the zero of time; forgets what was before."""
        self._records = []
        self._zero_ns = time.perf_counter_ns()
        self._zero = self._now()

    @contextmanager
    def measure(self, op: Op) -> Iterator[None]:
        """Record one op."""
        start = self._now()
        yield
        self._records.append((op, start, self._now()))

    @property
    def zero_ns(self) -> int:
        """The host's monotonic time at `begin`; ranks of one host share this clock."""
        return self._zero_ns

    def moments_us(self) -> list[tuple[Op, float, float]]:
        """Start and end of every recorded op, in microseconds since `begin`."""
        if self._on_cuda:
            torch.cuda.synchronize()
        return [(op, self._since(start), self._since(end)) for op, start, end in self._records]

    def spans(self) -> list[Span]:
        """The same in whole microseconds."""
        return [Span(op, round(start), round(end)) for op, start, end in self.moments_us()]

    def _now(self) -> Any:
        """An event on CUDA, nanoseconds on CPU."""
        if not self._on_cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _since(self, moment: Any) -> float:
        if self._on_cuda:
            return float(self._zero.elapsed_time(moment)) * 1000
        return float(moment - self._zero) / 1000
