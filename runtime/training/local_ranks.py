"""The ranks of one machine as processes of this one: started, watched, started again, ended.

On CPUs ranks are forked from this process where that is safe: importing torch takes longer than the
rest of a short run. Otherwise each is a new interpreter. Either way it has the environment that
torchrun gives a rank, and a session of its own: Ctrl-C in a terminal reaches this process only.
"""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

import numpy as np

from synth import version

from .watchdog import name_siblings

# Seconds between two looks at the ranks.
_POLL_S = 0.05

# Seconds from the signal that ends ranks to SIGKILL: after the failure of one, when the others
# report theirs, and after a signal to this process.
_FAILURE_GRACE_S = 30.0
_SIGNAL_GRACE_S = 3.0

# Seconds that killed ranks may take to end; one that hangs in a driver never does.
_KILLED_S = 30.0

# Signals that end a new interpreter, for which this process may have handlers.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class RanksFailed(Exception):
    """Ranks have failed; `codes` has their exit codes by rank, negative after a signal."""

    def __init__(self, codes: dict[int, int]) -> None:
        super().__init__(f"exit codes of ranks: {codes}")
        self.codes = codes


class Signalled(Exception):
    """A signal came, for which the ranks were ended."""

    def __init__(self, number: int) -> None:
        self.number = signal.Signals(number)
        super().__init__(self.number.name)


@dataclass(frozen=True)
class _Rank:
    """A started process; `code` returns its exit code, None while it runs."""

    pid: int
    code: Callable[[], int | None]

    def send(self, number: signal.Signals) -> None:
        """Signal the process, and those that it has started."""
        if self.code() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            with suppress(ProcessLookupError, PermissionError):  # it has no session of its own yet
                os.killpg(self.pid, number)


def run_ranks(
    num_ranks: int,
    module: str,
    arguments: Sequence[str],
    *,
    signals: Collection[signal.Signals],
    max_restarts: int = 0,
    preload: Sequence[str] | None = None,
) -> None:
    """Run `main` of a module with arguments on all ranks, and on all again after a failure.

    Args:
        signals: those for which ranks are ended, beside SIGINT, for which they are killed.
        max_restarts: how often ranks are started again.
        preload: modules to import before this process is forked; None: it must not be, as it has
            run code of a user, or ranks use CUDA.

    Raises:
        RanksFailed: ranks have failed, the last time that they were started.
        Signalled: a signal came.
    """
    start = _start_anew
    if preload is not None and _has_one_thread():
        for name in preload:
            with suppress(ImportError):  # a rank says what it lacks
                import_module(name)
        start = _fork if _has_one_thread() else _start_anew
    with _raising_at({signal.SIGINT, *signals}):
        for restarts in range(max_restarts + 1):
            environments = [
                _environment(rank, num_ranks, restarts, max_restarts) for rank in range(num_ranks)
            ]
            codes = _until_ended(start(environments, module, arguments))
            if not codes:
                return
    raise RanksFailed(codes)


def _environment(rank: int, num_ranks: int, restarts: int, max_restarts: int) -> dict[str, str]:
    """Return the variables that torchrun gives a rank of one machine."""
    asynchronous = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(num_ranks)),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "0",
        "TORCHELASTIC_RUN_ID": f"synth-{os.getpid()}",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        asynchronous: os.environ.get(asynchronous, "1"),
    }


def _until_ended(ranks: Sequence[_Rank]) -> dict[int, int]:
    """Wait until all ranks have ended, or one has failed, after which the others are ended.

    Returns:
        The exit codes of those that failed.
    """
    try:
        codes: list[int | None] = [None]
        while None in codes and not any(codes):
            time.sleep(_POLL_S)
            codes = [rank.code() for rank in ranks]
    except Signalled as error:
        is_interrupt = error.number == signal.SIGINT
        _end(ranks, signal.SIGKILL if is_interrupt else error.number, _SIGNAL_GRACE_S)
        raise
    _end(ranks, signal.SIGTERM, _FAILURE_GRACE_S)
    return {rank: code for rank, ended in enumerate(ranks) if (code := ended.code())}


def _end(ranks: Sequence[_Rank], number: signal.Signals, grace_s: float) -> None:
    """Signal the ranks, and kill those that have not ended after the grace."""
    try:
        for rank in ranks:
            rank.send(number)
        _wait(ranks, grace_s)
    finally:
        for rank in ranks:
            rank.send(signal.SIGKILL)
        _wait(ranks, _KILLED_S)


def _wait(ranks: Sequence[_Rank], longest_s: float) -> None:
    until_s = time.monotonic() + longest_s
    while any(rank.code() is None for rank in ranks) and time.monotonic() < until_s:
        time.sleep(_POLL_S / 10)


@contextmanager
def _raising_at(signals: Collection[signal.Signals]) -> Iterator[None]:
    """Raise `Signalled` at the first of some signals within the block.

    Later ones find the ranks being ended. Only a main thread may handle signals; elsewhere they are
    somebody else's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    has_come = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal has_come
        if not has_come:
            has_come = True
            raise Signalled(number)

    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start_anew(
    environments: Sequence[dict[str, str]], module: str, arguments: Sequence[str]
) -> list[_Rank]:
    """Start a new interpreter for each rank."""
    command = [sys.executable, "-m", module, *arguments]
    inherited = {**os.environ, "PYTHONPATH": _python_path()}
    started = [
        subprocess.Popen(command, env={**inherited, **environment}, start_new_session=True)
        for environment in environments
    ]
    return [_Rank(process.pid, process.poll) for process in started]


def _python_path() -> str:
    """Return PYTHONPATH with the checkout, if there is one: ranks start in the user's folder."""
    root = Path(version.__file__).resolve().parent.parent
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if (root / "pyproject.toml").exists() and str(root) not in paths:
        paths.insert(0, str(root))
    return os.pathsep.join(filter(None, paths))


def _has_one_thread() -> bool:
    """True if a fork of this process lacks no thread, nor waits for what one has locked.

    Python knows of its own threads only, and the libraries here begin theirs with their first work.
    """
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _fork(
    environments: Sequence[dict[str, str]], module: str, arguments: Sequence[str]
) -> list[_Rank]:
    """Fork this process once for each rank; a signal meanwhile has its effect afterwards."""
    context = multiprocessing.get_context("fork")
    main: Callable[[], None] = import_module(module).main
    lines, started = [], []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        for environment in environments:
            theirs, ours = context.Pipe(duplex=False)
            process = context.Process(
                target=_work_as_rank, args=(theirs, environment, main, [module, *arguments])
            )
            process.start()
            theirs.close()
            lines.append(ours)
            started.append(process)
        for line in lines:
            with suppress(BrokenPipeError):  # a rank that was killed
                line.send([process.pid for process in started])
            line.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return [_Rank(process.pid or 0, partial(getattr, process, "exitcode")) for process in started]


def _work_as_rank(
    line: Connection, environment: dict[str, str], main: Callable[[], None], arguments: list[str]
) -> None:
    """Undo what distinguishes this fork from a new interpreter, and begin.

    The line says which processes the ranks are; the death of the launcher closes it.
    """
    os.setsid()
    for number in _ENDING:
        is_python = number == signal.SIGINT
        signal.signal(number, signal.default_int_handler if is_python else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    gc.freeze()  # garbage is not looked for in what is shared, which would copy it
    np.random.seed()
    sys.stdout, sys.stderr, sys.argv = sys.__stdout__, sys.__stderr__, arguments
    os.environ.update(environment)
    try:
        name_siblings(line.recv())
    except EOFError:
        return
    line.close()
    main()
