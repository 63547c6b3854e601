"""When each op ran: the host's clock on CPU, events on CUDA; a step never synchronises."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from synth.schedule.ops import Op
from synth.schedule.spans import Span

_Moment = int | torch.cuda.Event


class Clock:
    """Records op spans of the step that runs; read them with `spans` after it."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._records: list[tuple[Op, _Moment, _Moment]] = []
        self._zero: _Moment = 0
        self._zero_ns = 0
        self.enabled = True

    def begin(self) -> None:
        """Start a step; forgets the one before."""
        self._records = []
        self._zero_ns = time.perf_counter_ns()
        self._zero = self._now()

    @contextmanager
    def measure(self, op: Op) -> Iterator[None]:
        """Record one op."""
        if not self.enabled:
            yield
            return
        start = self._now()
        yield
        self._records.append((op, start, self._now()))

    @property
    def zero_ns(self) -> int:
        """The host's monotonic time at `begin`; ranks of one host share this clock."""
        return self._zero_ns

    def spans(self) -> list[Span]:
        """The ops of the last step, in microseconds since `begin`."""
        if self._on_cuda:
            torch.cuda.synchronize()
        return [
            Span(op, self._since_zero(start), self._since_zero(end))
            for op, start, end in self._records
        ]

    def _now(self) -> _Moment:
        if self._on_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.perf_counter_ns()

    def _since_zero(self, moment: _Moment) -> int:
        if isinstance(moment, int):
            assert isinstance(self._zero, int)
            return round((moment - self._zero) / 1000)
        assert not isinstance(self._zero, int)
        return round(self._zero.elapsed_time(moment) * 1000)
