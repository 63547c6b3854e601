"""Streams, events and the functions of torch.cuda that the runtime calls, recorded."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from synth.runtime.execution.program.executor import Executor
from synth.runtime.execution.transport.nccl.channels import NcclChannels

from .modes import Kernels, Places
from .nccl import nccl_on
from .recorder import Recorder
from .trace import Awaited, HostWait, Recorded, UsedOn


class CudaFake:
    """A rank's CUDA device: all that the runtime does with it within `active`."""

    def __init__(self, index: int = 0) -> None:
        """Make the device with an index, which is not 0 where a wrong device is to be noticed."""
        self.recorder = Recorder()
        self.device = torch.device("cuda", index)
        self.nccl = nccl_on(self.recorder)

    @contextmanager
    def active(self, *, sets_device: bool = True) -> Iterator[None]:
        """Put the fake in the place of torch.cuda and NCCL, for this thread and those it starts.

        Args:
            sets_device: True: the device becomes the current one of this thread.
        """
        with pytest.MonkeyPatch.context() as patch:
            self._patch_cuda(patch)
            self._patch_nccl(patch)
            self._patch_runtime(patch)
            if sets_device:
                torch.cuda.set_device(self.device)
            with self._on_thread():
                yield

    @contextmanager
    def _on_thread(self) -> Iterator[None]:
        with Kernels(self.recorder), Places(self.recorder):
            yield

    def _patch_cuda(self, patch: pytest.MonkeyPatch) -> None:
        recorder = self.recorder
        state = torch.zeros(16, dtype=torch.uint8)

        def set_device(device: Any) -> None:
            recorder.device = _index(recorder, device)

        def synchronize(device: Any = None) -> None:
            recorder.add(HostWait(recorder.thread, "torch.cuda.synchronize", recorder.streams))

        replaced = {
            "Stream": lambda device=None, priority=0: FakeStream(
                recorder, _index(recorder, device), recorder.new_stream(f"priority {priority}")
            ),
            "Event": lambda enable_timing=False: FakeEvent(recorder),
            "current_stream": lambda device=None: _current(recorder, _index(recorder, device)),
            "stream": lambda stream: _within(recorder, stream),
            "current_device": lambda: recorder.device,
            "set_device": set_device,
            "synchronize": synchronize,
            "is_initialized": lambda: True,
            "get_rng_state": lambda device=None: state.clone(),
            "set_rng_state": lambda found, device=None: None,
            "get_rng_state_all": lambda: [state.clone()],
            "set_rng_state_all": lambda found: None,
            "manual_seed_all": lambda seed: None,
        }
        for name, value in replaced.items():
            patch.setattr(torch.cuda, name, value)

        def record_stream(tensor: Tensor, stream: FakeStream) -> None:
            recorder.add(UsedOn(recorder.span(tensor).memory, stream.number))

        patch.setattr(torch.Tensor, "record_stream", record_stream)

    def _patch_nccl(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(dist, "ProcessGroupNCCL", self.nccl, raising=False)
        patch.setattr(dist, "get_backend_config", lambda group=None: "cpu:gloo,cuda:nccl")
        for name in ("send", "receive"):
            patch.setattr(NcclChannels, name, self._naming(getattr(NcclChannels, name)))

    def _naming(self, method: Any) -> Any:
        """A send or receive of channels whose value is named in the calls of communicators."""

        def named(channels: NcclChannels, tensors: Any, transfer: Any) -> Any:
            with self.nccl.naming(str(transfer.value)):
                return method(channels, tensors, transfer)

        return named

    def _patch_runtime(self, patch: pytest.MonkeyPatch) -> None:
        run, step, fake = threading.Thread.run, Executor.step, self

        def run_on_thread(thread: threading.Thread) -> None:
            with fake._on_thread():
                run(thread)

        def recorded_step(executor: Executor, *given: Any, **named: Any) -> Tensor | None:
            with fake.recorder.step():
                return step(executor, *given, **named)

        patch.setattr(threading.Thread, "run", run_on_thread)
        patch.setattr(Executor, "step", recorded_step)


class FakeEvent:
    """An event."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self.number = recorder, recorder.number()

    def record(self, stream: "FakeStream | None" = None) -> None:
        """Record it on a stream."""
        stream = stream or _current(self._recorder, self._recorder.device)
        self._recorder.add(Recorded(self.number, stream.number))

    def wait(self, stream: "FakeStream | None" = None) -> None:
        """Let a stream wait for it."""
        (stream or _current(self._recorder, self._recorder.device)).wait_event(self)

    def synchronize(self) -> None:
        """Let the host wait for it."""
        wait = HostWait(self._recorder.thread, "Event.synchronize", event=self.number)
        self._recorder.add(wait)

    def elapsed_time(self, other: "FakeEvent") -> float:
        """The fake device takes no time."""
        return 0.0


class FakeStream:
    """A stream."""

    def __init__(self, recorder: Recorder, index: int, number: int) -> None:
        self._recorder, self.number = recorder, number
        self.device = torch.device("cuda", index)

    def __eq__(self, other: object) -> bool:
        """True of objects that stand for the same stream."""
        return isinstance(other, FakeStream) and other.number == self.number

    def __hash__(self) -> int:
        """The stream's number."""
        return self.number

    def wait_event(self, event: FakeEvent) -> None:
        """Let what the stream is given from now on wait for an event."""
        self._recorder.add(Awaited(self.number, event.number))

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        """Record an event, a new one if none is given."""
        made = event or FakeEvent(self._recorder)
        made.record(self)
        return made

    def wait_stream(self, stream: "FakeStream") -> None:
        """Wait for what another stream has been given so far."""
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """Let the host wait for it."""
        self._recorder.add(HostWait(self._recorder.thread, "Stream.synchronize", (self.number,)))


def _index(recorder: Recorder, device: Any) -> int:
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return recorder.device if index is None else index


def _current(recorder: Recorder, index: int) -> FakeStream:
    return FakeStream(recorder, index, recorder.current(index))


@contextmanager
def _within(recorder: Recorder, stream: FakeStream) -> Iterator[SimpleNamespace]:
    """Make a stream the current one, and its device, as torch.cuda.stream does."""
    index, device = stream.device.index, recorder.device
    before = recorder.current(index)
    recorder.device = index
    recorder.set_current(index, stream.number)
    try:
        yield SimpleNamespace(stream=stream)
    finally:
        recorder.set_current(index, before)
        recorder.device = device
