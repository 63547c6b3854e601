"""Solving several problems at once: long-lived processes, fed through pipes.

Ctrl-C in a terminal reaches every process of the group; workers leave it to their parent, which
asks them all to stop. A worker whose parent is gone stops and ends.
"""

import multiprocessing
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from types import TracebackType

from synth.errors import RunFailure, SynthError
from synth.plan.claim import claim_of
from synth.plan.search_space import SearchSpace
from synth.schedule.files.claim import Claim
from synth.schedule.model import Schedule
from synth.search.conditional_stop import ConditionalStop
from synth.search.outcome import StoppedBy, relative_gap
from synth.solver.options import SolveOptions
from synth.solver.result import Baseline, Incumbent
from synth.system.interrupt_signal import sigint_blocked


@dataclass(frozen=True)
class Task:
    """A search under a memory limit, which ends once the gap to a known bound is small enough."""

    space: SearchSpace
    options: SolveOptions
    cap_bytes: int | None = None
    known_bound_us: int = 0


@dataclass(frozen=True)
class TaskResult:
    """Result that a worker sends back, without parts that are large and can be made again.

    `claim` is that of the schedule; None if nothing was found, and then `message` says why.
    """

    task: Task
    partition: tuple[int, ...] | None
    schedule: Schedule | None
    claim: Claim | None
    stopped_by: StoppedBy
    baselines: tuple[Baseline, ...]
    message: str | None


class Workers(AbstractContextManager["Workers"]):
    """Processes that each solve one task at a time."""

    def __init__(self, number: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._free: list[Connection] = []
        self._busy: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for _ in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            with sigint_blocked():
                process.start()
            theirs.close()
            self._free.append(ours)
            self._processes.append(process)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the processes."""
        for connection in (*self._free, *self._busy):
            connection.close()
        for process in self._processes:
            process.join(timeout=0 if error else 5)
            process.terminate()

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the processes."""
        return tuple(process.pid or 0 for process in self._processes)

    @property
    def has_free(self) -> bool:
        """True if a worker is free."""
        return bool(self._free)

    @property
    def has_busy(self) -> bool:
        """True if a worker is busy."""
        return bool(self._busy)

    def start(self, task: Task) -> None:
        """Give a free worker a task."""
        connection = self._free.pop()
        connection.send(task)
        self._busy.append(connection)

    def stop(self) -> None:
        """Ask all workers for the best so far; further tasks end at once."""
        for connection in (*self._free, *self._busy):
            with suppress(OSError):  # a dead worker is noticed when its result is due
                connection.send(None)

    def outcomes(self, timeout_s: float) -> Iterator[TaskResult]:
        """Yield the results that arrive within a time.

        Raises:
            SynthError: a task is refused.
            RunFailure: a worker failed or died.
        """
        for ready in wait(self._busy, timeout_s):
            assert isinstance(ready, Connection)
            self._busy.remove(ready)
            try:
                received = ready.recv()
            except (EOFError, OSError):
                raise RunFailure(
                    "a solver process ended without an answer (killed, or out of memory?); what "
                    "was found is kept: run the command again, with fewer §jobs"
                ) from None
            self._free.append(ready)
            if isinstance(received, Exception):
                raise received
            yield received


def _work(connection: Connection) -> None:
    """Solve tasks until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tasks: SimpleQueue[Task | None] = SimpleQueue()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(connection, tasks, stop), daemon=True).start()
    while (task := tasks.get()) is not None:
        answer = _answer(task, stop)
        with suppress(OSError):  # the parent is gone, as the listener noticed
            connection.send(answer)


def _answer(task: Task, stop: threading.Event) -> TaskResult | SynthError:
    """Return a result or an error; unexpected errors are printed here with their traceback."""
    try:
        return _solve(task, stop)
    except SynthError as error:
        return error
    except Exception as error:
        traceback.print_exc()
        return RunFailure(
            f"a solver process failed: {type(error).__name__}: {error}; what was found is kept"
        )


def _listen(connection: Connection, tasks: SimpleQueue[Task | None], stop: threading.Event) -> None:
    """Receive tasks; None asks to stop, and so does the end of the pipe."""
    while True:
        try:
            received = connection.recv()
        except (EOFError, OSError):
            stop.set()
            tasks.put(None)
            return
        if received is None:
            stop.set()
        else:
            tasks.put(received)


def _solve(task: Task, stop: threading.Event) -> TaskResult:
    gap = task.options.gap
    enough = ConditionalStop[Incumbent](
        stop, lambda now: relative_gap(now.value_us, task.known_bound_us) <= gap
    )
    result = task.space.search(task.options, enough.watch, enough).result
    if result.stopped_by == StoppedBy.INTERRUPT and not stop.is_set():
        result = replace(result, stopped_by=StoppedBy.GAP)
    is_found = result.schedule is not None
    return TaskResult(
        task,
        result.problem.partition,
        result.schedule,
        claim_of(result, result.problem, task.options) if is_found else None,
        result.stopped_by,
        result.baselines,
        result.message,
    )
