"""Checks of a trace: the order in which a device may carry it out, whatever its speed.

Each stream has a vector clock: by stream, the number of its works that have ended before the next
one begins. An event carries a clock from stream to stream, and a wait of the host carries one to
the host, and so to all that this thread asks for afterwards. Two works of which neither is known to
come first may run at the same time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .trace import (
    Allocated,
    Awaited,
    Entry,
    Freed,
    HostUse,
    HostWait,
    Recorded,
    Refused,
    Span,
    StepBegun,
    StepEnded,
    UsedOn,
    Work,
)

Clock = dict[int, int]


@dataclass(frozen=True)
class _Use:
    """A work's use of some bytes, as the `number`-th work of its stream."""

    stream: int
    number: int
    name: str
    span: Span
    is_write: bool

    def is_before(self, clock: Clock) -> bool:
        return clock.get(self.stream, 0) >= self.number

    def meets(self, span: Span) -> bool:
        return self.span.low < span.high and span.low < self.span.high


@dataclass
class _Memory:
    """A storage and its uses so far; `born` is its stream's clock when it was allocated."""

    stream: int | None = None
    born: Clock = field(default_factory=dict)
    uses: list[_Use] = field(default_factory=list)
    recorded: set[int] = field(default_factory=set)


def check(trace: Iterable[Entry]) -> list[str]:
    """Return what is wrong with a trace, each fault once, in its order."""
    checker = _Checker()
    for entry in trace:
        checker.take(entry)
    return list(dict.fromkeys(checker.faults))


def check_order(sent: Mapping[str, list[str]], received: Mapping[str, list[str]]) -> list[str]:
    """Compare what each link's ends have started, by its name; NCCL pairs by the order of calls."""
    return [
        f"{link}: send {number} is {out}, the receive is {back}"
        for link in sorted({*sent, *received})
        for number, (out, back) in enumerate(_pairs(sent.get(link, []), received.get(link, [])))
        if out != back
    ]


def _pairs(sent: list[str], received: list[str]) -> list[tuple[str, str]]:
    length = max(len(sent), len(received))
    pad = ["missing"] * length
    return list(zip((sent + pad)[:length], (received + pad)[:length], strict=True))


class _Checker:
    """The state of a check."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._streams: dict[int, Clock] = {}
        self._events: dict[int, Clock] = {}
        self._hosts: dict[int, Clock] = {}
        self._memory: dict[int, _Memory] = {}
        self._freed_on: dict[int, list[tuple[_Memory, Clock]]] = {}
        self._in_step: set[int] = set()

    def take(self, entry: Entry) -> None:
        match entry:
            case Work():
                self._work(entry)
            case Recorded(event, stream):
                self._events[event] = dict(self._clock(stream))
            case Awaited(stream, event):
                _join(self._clock(stream), self._events.get(event, {}))
            case HostWait():
                self._host_wait(entry)
            case HostUse():
                self._host_use(entry)
            case Allocated(memory, stream):
                self._check_freed(stream)
                known = self._of(memory)
                known.stream, known.born = stream, dict(self._clock(stream))
            case UsedOn(memory, stream):
                self._of(memory).recorded.add(stream)
            case Freed(thread, memory):
                self._freed(thread, memory)
            case StepBegun(thread):
                self._in_step.add(thread)
            case StepEnded(thread):
                self._in_step.discard(thread)
            case Refused(reason):
                self.faults.append(reason)

    def _clock(self, stream: int) -> Clock:
        return self._streams.setdefault(stream, {})

    def _of(self, memory: int) -> _Memory:
        return self._memory.setdefault(memory, _Memory())

    def _work(self, work: Work) -> None:
        clock = self._clock(work.stream)
        _join(clock, self._hosts.get(work.thread, {}))
        number = clock.get(work.stream, 0) + 1
        where = f"{work.name} on stream {work.stream}"
        for spans, is_write in ((work.reads, False), (work.writes, True)):
            for span in spans:
                self._check_born(span, work.stream, clock, where)
                self._compare(span, is_write, clock, where)
        clock[work.stream] = number
        for spans, is_write in ((work.reads, False), (work.writes, True)):
            for span in spans:
                self._keep(_Use(work.stream, number, work.name, span, is_write), clock)

    def _check_born(self, span: Span, stream: int, clock: Clock, where: str) -> None:
        """Require that work on another stream waits for what the memory was used for before.

        The allocator gives a block that the host has freed to work on the block's own stream.
        """
        known = self._of(span.memory)
        if known.stream in (None, stream):
            return
        if any(clock.get(each, 0) < number for each, number in known.born.items()):
            self.faults.append(
                f"{where} uses memory of stream {known.stream} and does not wait for its allocation"
            )

    def _compare(self, span: Span, is_write: bool, clock: Clock, where: str) -> None:
        for use in self._of(span.memory).uses:
            if use.meets(span) and (is_write or use.is_write) and not use.is_before(clock):
                verb, done = (
                    "writes" if is_write else "reads",
                    "writes" if use.is_write else "reads",
                )
                self.faults.append(
                    f"{where} {verb} what {use.name} on stream {use.stream} {done}, "
                    f"and does not wait for it"
                )

    def _keep(self, use: _Use, clock: Clock) -> None:
        """Keep a use, and drop those that a later work need not be compared with any more."""
        known = self._of(use.span.memory)
        known.uses = [
            old
            for old in known.uses
            if not (
                use.span.low <= old.span.low
                and old.span.high <= use.span.high
                and (use.is_write or not old.is_write)
                and old.is_before(clock)
            )
        ]
        known.uses.append(use)

    def _host_wait(self, wait: HostWait) -> None:
        if wait.thread in self._in_step:
            self.faults.append(f"the host waits in a step: {wait.name}")
        host = self._hosts.setdefault(wait.thread, {})
        for stream in wait.streams:
            _join(host, self._clock(stream))
        if wait.event is not None:
            _join(host, self._events.get(wait.event, {}))

    def _host_use(self, use: HostUse) -> None:
        host = self._hosts.get(use.thread, {})
        for spans, is_write in ((use.reads, False), (use.writes, True)):
            for span in spans:
                self._compare(span, is_write, host, f"{use.name} on the host")

    def _freed(self, thread: int, memory: int) -> None:
        known = self._memory.pop(memory, _Memory())
        if known.stream is not None:
            host = dict(self._hosts.get(thread, {}))
            self._freed_on.setdefault(known.stream, []).append((known, host))

    def _check_freed(self, stream: int) -> None:
        """Check that a stream to which freed memory is given again comes after all its uses."""
        for known, host in self._freed_on.pop(stream, []):
            after = dict(self._clock(stream))
            _join(after, host)
            for use in known.uses:
                if not use.is_before(after) and use.stream not in known.recorded:
                    self.faults.append(
                        f"memory is freed on stream {stream} while {use.name} on stream "
                        f"{use.stream} may still use it"
                    )


def _join(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)
