"""Solving several problems at once, in long-lived processes that end with this one."""

import threading
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait

from synth.errors import RunFailure, SynthError
from synth.plan.choose.candidates import SearchWatch
from synth.plan.claim import claim_of
from synth.plan.search_space import SearchSpace
from synth.schedule.files.claim import Claim
from synth.schedule.model import Schedule
from synth.search.conditional_stop import ConditionalStop
from synth.search.outcome import StoppedBy, relative_gap
from synth.solver.options import SolveOptions
from synth.solver.result import Baseline, Incumbent
from synth.system.child_process import ChildProcess
from synth.system.child_program import ParentProcess


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
    """Processes that each solve one task at a time.

    Raises:
        RunFailure: not all of them can be started.
    """

    def __init__(self, number: int) -> None:
        self._free: list[ChildProcess] = []
        self._busy: list[ChildProcess] = []
        try:
            for _ in range(number):
                self._free.append(ChildProcess(f"{__name__}:serve"))
        except OSError as error:
            self.close()
            raise RunFailure(
                f"no solver process can be started beside {len(self._free)} others: {error}; run "
                f"the command again, with fewer §jobs"
            ) from None

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        self.close()

    def close(self) -> None:
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
                    "was found is kept: run the command again, with fewer §jobs"
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
    enough = ConditionalStop[Incumbent](
        stop, lambda now: relative_gap(now.value_us, task.known_bound_us) <= gap
    )
    result = task.space.search(task.options, SearchWatch(enough.watch, enough)).result
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
