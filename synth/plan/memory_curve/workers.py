"""Solving several problems at once, in long-lived processes that end with this one."""

import threading
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import wait

from synth.errors import RunFailure, SynthError
from synth.plan.memory_curve.cap_knowledge import ConditionalStop, KnownSchedule
from synth.plan.memory_curve.cap_search import CapSearch
from synth.schedule.files.certificate import Certificate
from synth.search.outcome import StoppedBy, relative_gap
from synth.solver.options import SolveOptions
from synth.solver.result import Baseline
from synth.system.child_process import ChildProcess
from synth.system.child_program import ParentProcess


@dataclass(frozen=True)
class Task:
    """A search under a memory limit; it ends early once the gap to a known bound is small enough.

    `best` is the best known schedule that keeps the limit.
    """

    search: CapSearch
    options: SolveOptions
    cap_bytes: int | None = None
    known_bound_us: int = 0
    best: KnownSchedule | None = None


@dataclass(frozen=True)
class TaskResult:
    """Result that a worker sends back, without parts that are large and can be made again."""

    task: Task
    partition: tuple[int, ...] | None
    found: KnownSchedule | None
    lower_bound_us: int
    stopped_by: StoppedBy
    baselines: tuple[Baseline, ...]
    wall_s: float
    message: str | None
    certificate: Certificate | None = None


class Workers(AbstractContextManager["Workers"]):
    """Processes that each solve one task at a time."""

    def __init__(self, number: int) -> None:
        self._free = [ChildProcess(f"{__name__}:serve") for _ in range(number)]
        self._busy: list[ChildProcess] = []

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        for worker in (*self._free, *self._busy):
            worker.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the processes."""
        return tuple(worker.pid for worker in (*self._free, *self._busy))

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
        worker = self._free.pop()
        worker.send(task)
        self._busy.append(worker)

    def stop(self) -> None:
        """Ask all workers for the best so far."""
        for worker in self._busy:
            worker.send(None)

    def outcomes(self, timeout_s: float) -> Iterator[TaskResult]:
        """Yield the results that arrive within a time.

        Raises:
            SynthError: a task is refused.
            RunFailure: a worker failed or died.
        """
        ready = wait([worker.connection for worker in self._busy], timeout_s)
        for worker in [worker for worker in self._busy if worker.connection in ready]:
            self._busy.remove(worker)
            try:
                received = worker.receive()
            except EOFError:
                worker.close()
                raise RunFailure(
                    "a solver process ended without an answer (killed, or out of memory?); what "
                    "was found is kept: run the command again, with fewer --jobs"
                ) from None
            self._free.append(worker)
            if isinstance(received, Exception):
                raise received
            yield received


def serve(parent: ParentProcess) -> None:
    """Solve the tasks of the parent process until it is gone."""
    while True:
        parent.report(_answer(parent.tasks.get(), parent.stop))


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


def _solve(task: Task, stop: threading.Event) -> TaskResult:
    gap = task.options.gap
    enough = ConditionalStop(
        stop, lambda now: relative_gap(now.value_us, task.known_bound_us) <= gap
    )
    result = task.search.solve(task.cap_bytes, task.best, task.options, enough.watch, enough)
    ended_here = result.stopped_by == StoppedBy.INTERRUPT and not stop.is_set()
    return TaskResult(
        task,
        result.problem.partition,
        found=KnownSchedule.of_result(result),
        lower_bound_us=result.lower_bound_us,
        stopped_by=StoppedBy.GAP if ended_here else result.stopped_by,
        baselines=result.baselines,
        wall_s=result.wall_s,
        message=result.message,
        certificate=result.certificate,
    )
