"""Worker processes that run CP-SAT: started when there is need, kept, and fed through pipes.

Each simultaneous call has a worker of its own; idle ones are used again. A worker that dies, in an
abort of OR-Tools or for lack of memory, ends its call with `WorkerDied` and nothing else.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TypeAlias

from synth.errors import RunFailure
from synth.solver.cpsat import worker_program
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.worker_program import Answer, Messages, ModelSolution
from synth.solver.tuning import CPSAT
from synth.system.interrupt_signal import sigint_blocked

_log = logging.getLogger(__name__)

# A better solution, a better bound, or a line of CP-SAT's log.
Event: TypeAlias = ModelSolution | float | str


class WorkerDied(Exception):
    """The worker ended, or was ended, before it had answered."""


class _DiedIdle(Exception):
    """A worker that had served other calls ended before it had taken the model."""


def solve(
    model: cp_model.CpModelProto,
    parameters: cp_model.SatParameters,
    on_events: Callable[[list[Event]], None] | None,
    should_stop: Callable[[], bool],
) -> Answer:
    """Let a worker solve a model.

    Args:
        on_events: called in this thread with all new reports, in order. None: only the answer is
            wanted, which makes a short call cheaper.
        should_stop: polled; the search ends within about a second after it returns True.

    Raises:
        WorkerDied: without an answer. All its reports have been handed over.
        RunFailure: no worker can be started.
    """
    while True:
        with suppress(_DiedIdle), _pool.worker() as worker:
            return worker.solve(model, parameters, on_events, should_stop)


def processes() -> tuple[int, ...]:
    """Return the process ids of all workers, idle ones included."""
    return _pool.processes()


class _Worker:
    """A worker process, and this end of its pipes."""

    def __init__(self) -> None:
        self._stderr = _scratch_file()
        worker = os.path.abspath(worker_program.__file__)
        # Without `site` it starts sooner; the paths are those that `site` made here. The present
        # folder, which is '', is left out: nothing in it is to take the place of a library.
        paths = [os.path.abspath(path) for path in sys.path if path]
        command = [sys.executable, "-I", "-S", worker, str(os.getpid()), *paths]
        try:
            with sigint_blocked():
                self._process = subprocess.Popen(
                    command,
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._stderr or subprocess.DEVNULL,
                )
        except OSError as error:
            raise RunFailure(f"cannot start a process for CP-SAT: {error}") from None
        assert self._process.stdin is not None and self._process.stdout is not None
        self._sink, self._source = self._process.stdin, self._process.stdout
        self._messages = Messages()
        self._has_begun = self._has_answered = self._has_taken = False
        self._poll = select.poll()
        self._poll.register(self._source, select.POLLIN)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        return self._process.poll() is None

    def solve(
        self,
        model: cp_model.CpModelProto,
        parameters: cp_model.SatParameters,
        on_events: Callable[[list[Event]], None] | None,
        should_stop: Callable[[], bool],
    ) -> Answer:
        """See the function of this name."""
        question = worker_program.pack_question(
            str(parameters), str(model), tells=on_events is not None
        )
        self._has_taken = False
        self._send(worker_program.QUESTION, question)
        stopped_at: float | None = None
        while True:
            events, answer = self._receive()
            if events and on_events is not None:
                on_events(events)
            if answer is not None:
                return answer
            if stopped_at is None and should_stop():
                stopped_at = time.monotonic()
                self._send(worker_program.STOP)
            elif stopped_at is not None and time.monotonic() - stopped_at > CPSAT.stop_grace_s:
                raise WorkerDied("CP-SAT did not stop in time")

    def _send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a message; a worker that is dead is found out when its answer is due."""
        with suppress(OSError):
            worker_program.send(self._sink.fileno(), kind, payload)

    def _receive(self) -> tuple[list[Event], Answer | None]:
        """Take in all events that have come, and the answer; wait a moment if nothing has."""
        events: list[Event] = []
        timeout_ms = 1000 * CPSAT.poll_s
        while self._poll.poll(timeout_ms):
            timeout_ms = 0
            is_open = self._messages.read(self._source.fileno())
            for kind, payload in self._messages.complete():
                self._has_begun = True
                self._has_taken |= kind == worker_program.TAKEN
                if kind == worker_program.ANSWER:
                    self._has_answered = True
                    return events, Answer.unpack(payload)
                if kind not in (worker_program.READY, worker_program.TAKEN):
                    events.append(_event(kind, payload))
            if not is_open:
                if events:
                    break  # the next call meets the end again
                raise self._death()
        return events, None

    def _death(self) -> Exception:
        """The reason why there is no answer."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CPSAT.exit_s)
        code, words = self._process.returncode, self._last_words()
        if code is not None and code > 0 and not self._has_begun:
            return RunFailure(f"the process for CP-SAT does not start: {words or f'exit {code}'}")
        how = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        _log.info("a process of CP-SAT ended by %s: %s", how, words)
        if self._has_answered and not self._has_taken:
            return _DiedIdle()
        return WorkerDied(f"{how}: {words}")

    def _last_words(self) -> str:
        if self._stderr is None:
            return ""
        end = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, end - CPSAT.stderr_tail_bytes))
        return self._stderr.read().decode(errors="replace").strip()

    def hang_up(self) -> None:
        """Close its pipes."""
        for stream in (self._sink, self._source, self._stderr):
            if stream is not None:
                stream.close()

    def kill(self) -> None:
        """End it; whoever waits for its answer sees that."""
        self._process.kill()
        self._process.wait()

    def disown(self) -> None:
        """Forget it, in a process that is not its parent."""
        self._process.returncode = 0
        self.hang_up()


def _event(kind: bytes, payload: bytes) -> Event:
    if kind == worker_program.SOLUTION:
        return ModelSolution.unpack(payload)
    if kind == worker_program.BOUND:
        return worker_program.unpack_bound(payload)
    if kind == worker_program.LOG:
        return payload.decode(errors="replace")
    raise RuntimeError(f"CP-SAT's process failed:\n{payload.decode(errors='replace')}")


def _scratch_file() -> IO[bytes] | None:
    """Open a file for a worker's stderr; None if there is no place for it."""
    try:
        return tempfile.TemporaryFile(buffering=0)
    except OSError:
        return None


class _Pool:
    """All workers of this process; those that no call has are idle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._is_closed = False

    def processes(self) -> tuple[int, ...]:
        """Return the process ids of all workers."""
        with self._lock:
            return tuple(worker.pid for worker in self._all)

    @contextmanager
    def worker(self) -> Iterator[_Worker]:
        """A worker for one call; only one that has answered is kept."""
        worker = self._take()
        try:
            yield worker
        except BaseException:
            self._remove(worker)
            raise
        with self._lock:
            self._idle.append(worker)

    def _take(self) -> _Worker:
        while True:
            with self._lock:
                if self._is_closed:
                    raise WorkerDied("the interpreter ends")
                if not self._idle:
                    break
                worker = self._idle.pop()
            if worker.is_alive:
                return worker
            self._remove(worker)
        worker = _Worker()
        with self._lock:
            self._all.append(worker)
        return worker

    def _remove(self, worker: _Worker) -> None:
        with self._lock:
            if worker in self._all:
                self._all.remove(worker)
        worker.kill()
        worker.hang_up()

    def close(self) -> None:
        """End all workers: they have nothing to leave in order."""
        with self._lock:
            self._is_closed = True
            workers = tuple(self._all)
        for worker in workers:
            worker.kill()

    def disown(self) -> None:
        """Forget all workers in a forked process: they are its parent's.

        Another thread may have held the lock at the fork, so it is made anew.
        """
        self._lock = threading.Lock()
        for worker in self._all:
            worker.disown()
        self._all, self._idle = [], []


# Workers outlive calls, and belong to the process: the one state that is global.
_pool = _Pool()
atexit.register(_pool.close)
os.register_at_fork(after_in_child=_pool.disown)
