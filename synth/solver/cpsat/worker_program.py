"""The worker process that runs CP-SAT for another process, so that an abort ends no more than it.

OR-Tools 9.15 fails checks on some models and then aborts the process that it runs in. The worker is
started as a file of its own and imports nothing of synth, only CP-SAT's bindings: that takes 0.1 s.

    parent -> worker | QUESTION: parameters and model | STOP
    worker -> parent | READY | TAKEN | SOLUTION, BOUND, LOG as they come, then ANSWER, or FAILURE

TAKEN reports that a question has arrived, which distinguishes the death of an idle worker from that
of one that solves. A FAILURE is an exception of this program.

Models are sent as text, the only form that CP-SAT's bindings can read; solutions as binary
integers.
The worker leaves SIGINT to its parent, and ends as soon as the parent is gone.
"""

import os
import select
import signal
import struct
import sys
import threading
import traceback
from array import array
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple

QUESTION, STOP = b"Q", b"X"
READY, TAKEN, ANSWER, FAILURE = b"R", b"T", b"A", b"F"
SOLUTION, BOUND, LOG = b"S", b"B", b"L"

_HEAD = struct.Struct("<cQ")
_QUESTION_HEAD = struct.Struct("<?Q")
_SOLUTION_HEAD = struct.Struct("<dd")
_BOUND = struct.Struct("<d")
_ANSWER_HEAD = struct.Struct("<idddQ")
_INTEGERS = "q"

# Bytes taken out of a pipe at a time.
_CHUNK_BYTES = 1 << 20

# Interval at which the worker checks that its parent lives. Usually the end of the pipe says so,
# but a process forked from the parent may hold it open.
_WATCH_S = 0.5

# Interval at which a stop is requested again: CP-SAT loses one that comes before its search begins.
_STOP_AGAIN_S = 0.02


class ModelSolution(NamedTuple):
    """The values of all variables, with the deterministic seconds that they took."""

    objective: float
    deterministic_s: float
    values: "array[int]"

    def pack(self) -> bytes:
        """Make the payload of a message."""
        return _SOLUTION_HEAD.pack(self.objective, self.deterministic_s) + self.values.tobytes()

    @classmethod
    def unpack(cls, payload: bytes) -> "ModelSolution":
        """Read the payload of a message."""
        objective, deterministic_s = _SOLUTION_HEAD.unpack_from(payload)
        return cls(objective, deterministic_s, _integers(payload[_SOLUTION_HEAD.size :]))


class Answer(NamedTuple):
    """The end of a search: CP-SAT's status, the proven bound, the effort, the best solution.

    `values` is empty without a solution. `info` is CP-SAT's remark: of an invalid model the reason.
    """

    status: int
    bound: float
    objective: float
    deterministic_s: float
    values: "array[int]"
    info: str = ""

    def pack(self) -> bytes:
        """Make the payload of a message."""
        info = self.info.encode()
        numbers = (self.status, self.bound, self.objective, self.deterministic_s, len(info))
        return _ANSWER_HEAD.pack(*numbers) + info + self.values.tobytes()

    @classmethod
    def unpack(cls, payload: bytes) -> "Answer":
        """Read the payload of a message."""
        status, bound, objective, spent_s, length = _ANSWER_HEAD.unpack_from(payload)
        end = _ANSWER_HEAD.size + length
        info = payload[_ANSWER_HEAD.size : end].decode()
        return cls(status, bound, objective, spent_s, _integers(payload[end:]), info)


def pack_question(parameters: str, model: str, *, tells: bool) -> bytes:
    """Make the payload of a question, parameters and model in protobuf's text format."""
    first = parameters.encode()
    return b"".join((_QUESTION_HEAD.pack(tells, len(first)), first, model.encode()))


def pack_bound(bound: float) -> bytes:
    """Make the payload of a bound."""
    return _BOUND.pack(bound)


def unpack_bound(payload: bytes) -> float:
    """Read the payload of a message."""
    (bound,) = _BOUND.unpack(payload)
    return float(bound)


def no_values() -> "array[int]":
    """The values of no solution."""
    return array(_INTEGERS)


def _integers(data: bytes) -> "array[int]":
    values = no_values()
    values.frombytes(data)
    return values


def send(descriptor: int, kind: bytes, payload: bytes = b"") -> None:
    """Write a message."""
    left = memoryview(_HEAD.pack(kind, len(payload)) + payload)
    while left:
        left = left[os.write(descriptor, left) :]


class Messages:
    """Messages put together from the bytes that come out of a pipe."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def read(self, descriptor: int) -> bool:
        """Take in the available bytes, or wait for some; return False at the pipe's end."""
        data = os.read(descriptor, _CHUNK_BYTES)
        self._buffer += data
        return bool(data)

    def complete(self) -> Iterator[tuple[bytes, bytes]]:
        """Take out the messages that have come entirely: kind and payload."""
        while len(self._buffer) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._buffer)
            end = _HEAD.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            yield kind, payload


class _Question:
    """A model that is being solved, with its parameters.

    Attributes:
        tells: True if the parent wants solutions and bounds as they come.
        search: CP-SAT's, while it runs.
    """

    def __init__(self, payload: bytes) -> None:
        self.came_at = monotonic()
        self.tells, length = _QUESTION_HEAD.unpack_from(payload)
        begin, end = _QUESTION_HEAD.size, _QUESTION_HEAD.size + length
        self.texts = payload[begin:end].decode(), payload[end:].decode()
        self.search: Any = None
        self.is_stopped = False


class _Worker:
    """Three threads: the main one solves, one listens to the parent, one writes to it."""

    def __init__(self, parent: int, source: int, sink: int, bindings: Any) -> None:
        self._parent, self._source, self._sink = parent, source, sink
        self._bindings = bindings
        self._questions: SimpleQueue[_Question] = SimpleQueue()
        self._outgoing: SimpleQueue[tuple[bytes, bytes]] = SimpleQueue()
        self._current: _Question | None = None

    def run(self) -> None:
        """Answer questions until the parent is gone."""
        for work in (self._listen, self._write):
            threading.Thread(target=_or_end, args=(work,), daemon=True).start()
        self._outgoing.put((READY, b""))
        while True:
            question = self._questions.get()
            tell = self._tell if question.tells else self._tell_at_once
            tell(TAKEN, b"")
            try:
                message = ANSWER, self._answer(question).pack()
            except MemoryError:
                raise
            except Exception:
                message = FAILURE, traceback.format_exc().encode()
            tell(*message)

    def _tell(self, kind: bytes, payload: bytes) -> None:
        """Send a message after those in flight."""
        self._outgoing.put((kind, payload))

    def _tell_at_once(self, kind: bytes, payload: bytes) -> None:
        """Send a message from this thread, where nothing else is on its way."""
        send(self._sink, kind, payload)

    def _write(self) -> None:
        """Send messages in a thread of its own: the search need not wait for a busy parent."""
        while True:
            send(self._sink, *self._outgoing.get())

    def _listen(self) -> None:
        """Take in questions and stops, and end with the parent."""
        messages = Messages()
        while True:
            is_stopping = self._stop_again()
            pause_s = _STOP_AGAIN_S if is_stopping else _WATCH_S
            if not select.select([self._source], [], [], pause_s)[0]:
                if os.getppid() != self._parent:
                    os._exit(0)
                continue
            if not messages.read(self._source):
                os._exit(0)
            for kind, payload in messages.complete():
                if kind == QUESTION:
                    self._current = _Question(payload)
                    self._questions.put(self._current)
                elif self._current is not None:
                    self._current.is_stopped = True

    def _stop_again(self) -> bool:
        """Stop the search if it is to be; True while it has yet to end."""
        question = self._current
        if question is None or not question.is_stopped:
            return False
        search = question.search
        if search is not None:
            search.stop_search()
        return True

    def _answer(self, question: _Question) -> Answer:
        parameters, model = self._parsed(question)
        search = self._bindings.SolveWrapper()
        search.set_parameters(parameters)
        listener = self._listener()
        if question.tells:
            search.add_solution_callback(listener)
            search.add_best_bound_callback(self._tell_bound)
            if parameters.log_search_progress:
                search.add_log_callback(self._tell_log)
        question.search = search
        response = search.solve(model)
        self._current = question.search = None
        if question.tells:
            search.clear_solution_callback(listener)
        return Answer(
            int(response.status),
            response.best_objective_bound,
            response.objective_value,
            response.deterministic_time,
            array(_INTEGERS, response.solution),
            response.solution_info,
        )

    def _parsed(self, question: _Question) -> tuple[Any, Any]:
        """Parse parameters and model; the time for it counts to the limit."""
        parameters, model = self._bindings.SatParameters(), self._bindings.CpModelProto()
        for message, text in zip((parameters, model), question.texts, strict=True):
            if not message.parse_text_format(text):
                raise ValueError("CP-SAT's bindings do not read what they have written")
        question.texts = "", ""
        parameters.max_time_in_seconds -= monotonic() - question.came_at
        parameters.max_time_in_seconds = max(0.0, parameters.max_time_in_seconds)
        return parameters, model

    def _listener(self) -> Any:
        outgoing = self._outgoing

        class Listener(self._bindings.SolutionCallback):  # type: ignore[name-defined, misc]
            """Queues each better solution."""

            def OnSolutionCallback(self) -> None:
                values = array(_INTEGERS, self.Response().solution)
                found = ModelSolution(self.ObjectiveValue(), self.DeterministicTime(), values)
                outgoing.put((SOLUTION, found.pack()))

        return Listener()

    def _tell_bound(self, bound: float) -> None:
        self._outgoing.put((BOUND, pack_bound(bound)))

    def _tell_log(self, line: str) -> None:
        self._outgoing.put((LOG, line.encode()))


def _or_end(work: Callable[[], None]) -> None:
    """Run the work of a thread without which the process is of no use."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _leave_no_core() -> None:
    """Write no memory image into the user's folder where CP-SAT aborts."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _main() -> None:
    """Serve the parent that the first argument names; the others are its path of imports."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _leave_no_core()
    sys.path[:] = sys.argv[2:]
    # Whatever libraries print must not come between messages.
    sink = os.dup(1)
    os.dup2(2, 1)
    from ortools.sat.python import cp_model_helper

    _Worker(int(sys.argv[1]), 0, sink, cp_model_helper).run()


if __name__ == "__main__":
    _main()
