"""A pool of worker processes that run CP-SAT: started when there is need, and kept.

Each simultaneous call has a worker of its own; idle ones are used again. A worker that dies, in an
abort of OR-Tools or for lack of memory, ends its call with `WorkerDied` and nothing else.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from synth.errors import RunFailure
from synth.solver.cpsat import worker_program
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.worker_program import TAKEN, Answer, Event, Failure, ModelQuestion
from synth.solver.tuning import CPSAT
from synth.system.child_process import ChildProcess

_log = logging.getLogger(__name__)


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
    question = ModelQuestion(str(parameters), str(model), on_events is not None)
    while True:
        with suppress(_DiedIdle), _pool.worker() as worker:
            return worker.solve(question, on_events, should_stop)


def processes() -> tuple[int, ...]:
    """Return the process ids of all workers, idle ones included."""
    return _pool.processes()


class _Worker(ChildProcess):
    """A worker process."""

    def __init__(self) -> None:
        try:
            super().__init__(f"{worker_program.__name__}:serve", keeps_output=True)
        except OSError as error:
            raise RunFailure(f"cannot start a process for CP-SAT: {error}") from None
        self._has_answered = self._has_taken = False

    def solve(
        self,
        question: ModelQuestion,
        on_events: Callable[[list[Event]], None] | None,
        should_stop: Callable[[], bool],
    ) -> Answer:
        """See the function of this name."""
        self._has_taken = False
        self.send(question)
        stopped_at: float | None = None
        while True:
            events, answer = self._receive()
            if events and on_events is not None:
                on_events(events)
            if answer is not None:
                return answer
            if stopped_at is None and should_stop():
                stopped_at = time.monotonic()
                self.send(None)
            elif stopped_at is not None and time.monotonic() - stopped_at > CPSAT.stop_grace_s:
                raise WorkerDied("CP-SAT did not stop in time")

    def _receive(self) -> tuple[list[Event], Answer | None]:
        """Take in all events that have come, and the answer; wait a moment if nothing has."""
        events: list[Event] = []
        timeout_s = CPSAT.poll_s
        while self.connection.poll(timeout_s):
            timeout_s = 0
            try:
                message = self.receive()
            except EOFError:
                if events:
                    break  # the next call meets the end again
                raise self._death() from None
            if isinstance(message, Answer):
                self._has_answered = True
                return events, message
            if isinstance(message, Failure):
                raise RuntimeError(f"CP-SAT's process failed:\n{message.traceback}")
            if message is TAKEN:
                self._has_taken = True
            else:
                events.append(message)
        return events, None

    def _death(self) -> Exception:
        """The reason why there is no answer."""
        code, words = self.end(CPSAT.exit_s, CPSAT.stderr_tail_bytes)
        if code is not None and code > 0 and not self._has_answered and not self._has_taken:
            return RunFailure(f"the process for CP-SAT does not start: {words or f'exit {code}'}")
        how = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        _log.info("a process of CP-SAT ended by %s: %s", how, words)
        if self._has_answered and not self._has_taken:
            return _DiedIdle()
        return WorkerDied(f"{how}: {words}")


class _Pool:
    """All workers of this process; those that no call has are idle."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Have no workers, as in a forked process: those before are its parent's."""
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
            with self._lock:
                self._all.remove(worker)
            worker.close()
            raise
        with self._lock:
            self._idle.append(worker)

    def _take(self) -> _Worker:
        with self._lock:
            if self._is_closed:
                raise WorkerDied("the interpreter ends")
            if self._idle:
                return self._idle.pop()
        worker = _Worker()
        with self._lock:
            self._all.append(worker)
        return worker

    def close(self) -> None:
        """End all workers: they have nothing to leave in order."""
        with self._lock:
            self._is_closed = True
            workers = tuple(self._all)
        for worker in workers:
            worker.kill()


# Workers outlive calls, and belong to the process: the one state that is global.
_pool = _Pool()
atexit.register(_pool.close)
os.register_at_fork(after_in_child=_pool.reset)
