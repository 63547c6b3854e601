"""The entries of a trace: what the host asked of a CUDA device, in the order of its calls.

Streams, events, memory and threads are numbers. Memory is one storage; its numbers are not reused.
"""

from typing import NamedTuple


class Span(NamedTuple):
    """Bytes of a storage, from `low` to before `high`."""

    memory: int
    low: int
    high: int


class Work(NamedTuple):
    """A kernel, a copy or a transfer, put on a stream."""

    thread: int
    stream: int
    name: str
    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()


class Recorded(NamedTuple):
    """An event recorded on a stream."""

    event: int
    stream: int


class Awaited(NamedTuple):
    """An event that a stream waits for."""

    stream: int
    event: int


class HostWait(NamedTuple):
    """A wait of the host: for streams, or for an event."""

    thread: int
    name: str
    streams: tuple[int, ...] = ()
    event: int | None = None


class HostUse(NamedTuple):
    """A read or write of pinned memory by the host itself."""

    thread: int
    name: str
    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()


class Allocated(NamedTuple):
    """Memory of the device that was allocated while a stream was the current one."""

    memory: int
    stream: int


class UsedOn(NamedTuple):
    """A `record_stream`: freed memory is reused after the work that the stream has by then."""

    memory: int
    stream: int


class Freed(NamedTuple):
    """Memory of the device that went back to the caching allocator."""

    thread: int
    memory: int


class StepBegun(NamedTuple):
    """The executor began a step."""

    thread: int


class StepEnded(NamedTuple):
    """The executor ended a step."""

    thread: int


class Refused(NamedTuple):
    """A call that fails on CUDA, although the CPU carried it out."""

    reason: str


Entry = (
    Work
    | Recorded
    | Awaited
    | HostWait
    | HostUse
    | Allocated
    | UsedOn
    | Freed
    | StepBegun
    | StepEnded
    | Refused
)
