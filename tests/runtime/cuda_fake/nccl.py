"""Communicators that call as NCCL's, and carry their messages over gloo.

As on NCCL a communicator has a stream of its own: it begins after what the caller's stream has been
given, and `wait` lets the caller's stream wait. The host is not held up by a device: where the real
device would wait for a message, `wait` waits for it here.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .recorder import Recorder, tensors_in
from .trace import Awaited, Recorded, Refused


class FakeWork:
    """A call in flight."""

    def __init__(
        self,
        recorder: Recorder,
        index: int,
        event: int,
        finish: Callable[[], object],
        held: Sequence[Tensor],
    ) -> None:
        """Take a call.

        Args:
            recorder: records the wait.
            index: of the device.
            event: recorded after the call.
            finish: waits for the message.
            held: what ProcessGroupNCCL itself holds until `wait`.
        """
        self._recorder, self._index, self._event = recorder, index, event
        self._finish: Callable[[], object] | None = finish
        self._held = held

    def wait(self) -> bool:
        """Let the current stream wait for it."""
        if self._finish is not None:
            with _unrecorded():
                self._finish()
            self._finish = None
        self._recorder.add(Awaited(self._recorder.current(self._index), self._event))
        self._held = ()
        return True


class FakeNccl:
    """A communicator; a subclass of `nccl_on` has the recorder."""

    recorder: Recorder
    made: list["FakeNccl"]
    names: threading.local

    class Options:
        """Its options."""

        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self.config = SimpleNamespace(max_ctas=32)
            self._timeout = timedelta(minutes=10)
            self.global_ranks_in_group: list[int] = []
            self.group_name = ""

    def __init__(self, store: Any, rank: int, size: int, options: "FakeNccl.Options") -> None:
        self.options, self.calls = options, list[str]()
        self.name = f"{options.group_name} of {options.global_ranks_in_group}"
        self._rank, self._size = rank, size
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, options._timeout)
        self._stream = self.recorder.new_stream(self.name)
        self._leaving: list[Any] = []
        self.made.append(self)

    @classmethod
    @contextmanager
    def naming(cls, name: str) -> Iterator[None]:
        """Give this thread's calls in the block a name, which both ends must give."""
        cls.names.name = name
        try:
            yield
        finally:
            cls.names.name = None

    def rank(self) -> int:
        """The rank in the group."""
        return self._rank

    def size(self) -> int:
        """The number of ranks in the group."""
        return self._size

    def abort(self) -> None:
        """End it."""
        self._leaving.clear()

    def send(self, tensors: list[Tensor], target: int, tag: int) -> FakeWork:
        """Start sending what is in the tensors after the caller's stream."""
        with _unrecorded():
            given = [tensor.detach().clone() for tensor in tensors]
            self._leaving.append((self._gloo.send(given, target, tag), given))
        return self._start("transfer", tensors, [], lambda: None)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> FakeWork:
        """Post a receive."""
        with _unrecorded():
            work = self._gloo.recv(tensors, source, tag)
        return self._start("transfer", [], tensors, work.wait)

    def allreduce(self, tensors: Sequence[Tensor], options: Any = None) -> FakeWork:
        """Start a sum, in place."""
        given = [] if options is None else [options]
        with _unrecorded():
            works = [self._gloo.allreduce([tensor], *given) for tensor in tensors]
        return self._collect("all-reduce", tensors, tensors, lambda: [w.wait() for w in works])

    def allreduce_coalesced(self, tensors: Sequence[Tensor]) -> FakeWork:
        """Start sums, in place."""
        return self.allreduce(tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> FakeWork:
        """Start an all-gather."""
        with _unrecorded():
            work = self._gloo.allgather(outputs, [each.detach().clone() for each in inputs])
        return self._collect("all-gather", inputs, outputs[0], work.wait)

    def broadcast(self, tensors: list[Tensor], options: Any) -> FakeWork:
        """Start a broadcast."""
        with _unrecorded():
            work = self._gloo.broadcast(tensors, options)
        return self._collect("broadcast", tensors, tensors, work.wait)

    def _allgather_base(self, whole: Tensor, own: Tensor) -> FakeWork:
        parts = list(whole.view(self._size, -1).unbind())
        return self.allgather([parts], [own])

    def _reduce_scatter_base(self, own: Tensor, whole: Tensor) -> FakeWork:
        with _unrecorded():
            total = whole.detach().clone()
            work = self._gloo.allreduce([total])

        def finish() -> None:
            work.wait()
            own.copy_(total.view(self._size, -1)[self._rank].view_as(own))

        return self._collect("reduce-scatter", [whole], [own], finish)

    def _collect(
        self,
        name: str,
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        finish: Callable[[], object],
    ) -> FakeWork:
        """Start a collective, whose tensors ProcessGroupNCCL holds until `wait`."""
        return self._start(name, reads, writes, finish, held=[*reads, *writes])

    def _start(
        self,
        name: str,
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        finish: Callable[[], object],
        held: Sequence[Tensor] = (),
    ) -> FakeWork:
        recorder = self.recorder
        with torch._C.DisableTorchFunction():
            used = tensors_in([list(reads), list(writes)])
            index = self._index(name, used)
            sizes = [(t.dtype, tuple(t.shape)) for t in used]
            what = getattr(self.names, "name", None) or name
            self.calls.append(f"{what} {sizes}")
            before, event = recorder.number(), recorder.number()
            recorder.add(Recorded(before, recorder.current(index)), Awaited(self._stream, before))
            recorder.work(self._stream, f"{name} of {what}", reads, writes)
            recorder.add(Recorded(event, self._stream))
        return FakeWork(recorder, index, event, finish, held)

    def _index(self, name: str, used: list[Tensor]) -> int:
        """The device of the tensors, which NCCL needs to be contiguous and on one device."""
        places = {self.recorder.place_of(t) for t in used}
        if {p.type for p in places} != {"cuda"} or len(places) > 1:
            self.recorder.add(Refused(f"NCCL is given tensors of {sorted(map(str, places))}"))
            return self.recorder.device
        if not all(t.is_contiguous() for t in used):
            self.recorder.add(Refused(f"{name} is given a tensor that is not contiguous"))
        index = next(iter(places)).index
        assert index is not None
        return index


def nccl_on(recorder: Recorder) -> type[FakeNccl]:
    """The class of communicators that a recorder records."""
    shared = {"recorder": recorder, "made": [], "names": threading.local()}
    return type("FakeNccl", (FakeNccl,), shared)


@contextmanager
def _unrecorded() -> Iterator[None]:
    """Leave what the block does out of the trace, and what gloo's threads do for it."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield
