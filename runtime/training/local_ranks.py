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
from synth.errors import RunFailure

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


def can_fork(preload: Sequence[str]) -> bool:
    """Import modules that ranks need, and return True if this process may be forked afterwards."""
    if not _has_one_thread():
        return False
    for name in preload:
        with suppress(ImportError):  # a rank says what it lacks
            import_module(name)
    return _has_one_thread()


def run_ranks(
    num_ranks: int,
    module: str,
    arguments: Sequence[str],
    *,
    signals: Collection[signal.Signals],
    received: list[signal.Signals],
    max_restarts: int = 0,
    forked: bool = False,
) -> None:
    """Run `main` of a module with arguments on all ranks, and on all again after a failure.

    Args:
        signals: those for which ranks are ended, beside SIGINT, for which they are killed.
        received: such signals as they come; others may be added while ranks run.
        max_restarts: how often ranks are started again.
        forked: this process is forked for each rank, as it can be (`can_fork`), has run no code of
            a user, and ranks do not use CUDA; otherwise each is a new interpreter.

    Raises:
        RanksFailed: ranks have failed, the last time that they were started.
        Signalled: a signal came.
        RunFailure: the system starts no more processes.
    """
    start = _fork if forked else _start_anew
    with _noting({signal.SIGINT, *signals}, received):
        for restarts in range(max_restarts + 1):
            environments = [
                _environment(rank, num_ranks, restarts, max_restarts) for rank in range(num_ranks)
            ]
            ranks: list[_Rank] = []
            try:
                for rank in start(environments, module, arguments):
                    ranks.append(rank)
            except OSError as error:
                _end(ranks, signal.SIGKILL, _KILLED_S)
                raise RunFailure(
                    f"{len(ranks)} of {num_ranks} ranks could be started, then: {error.strerror}; "
                    f"end other processes, or raise the limit of their number (ulimit -u)"
                ) from error
            codes = _until_ended(ranks, received)
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


def _until_ended(ranks: Sequence[_Rank], received: Sequence[signal.Signals]) -> dict[int, int]:
    """Wait until all ranks have ended, or one has failed, after which the others are ended.

    Returns:
        The exit codes of those that failed.

    Raises:
        Signalled: a signal came, and they were ended.
    """
    codes: list[int | None] = [None]
    while None in codes and not any(codes) and not received:
        time.sleep(_POLL_S)
        codes = [rank.code() for rank in ranks]
    if not received:
        _end(ranks, signal.SIGTERM, _FAILURE_GRACE_S, received)
    if received:
        is_interrupt = received[0] == signal.SIGINT
        _end(ranks, signal.SIGKILL if is_interrupt else received[0], _SIGNAL_GRACE_S)
        raise Signalled(received[0])
    return {rank: code for rank, ended in enumerate(ranks) if (code := ended.code())}


def _end(
    ranks: Sequence[_Rank],
    number: signal.Signals,
    grace_s: float,
    received: Sequence[signal.Signals] = (),
) -> None:
    """Signal the ranks, and kill those that have not ended after the grace.

    Args:
        received: as signals come, which end the grace.
    """
    for send, longest_s in ((number, grace_s), (signal.SIGKILL, _KILLED_S)):
        for rank in ranks:
            rank.send(send)
        until_s = time.monotonic() + longest_s
        while any(rank.code() is None for rank in ranks) and time.monotonic() < until_s:
            if received and send != signal.SIGKILL:
                break
            time.sleep(_POLL_S / 10)


@contextmanager
def _noting(signals: Collection[signal.Signals], received: list[signal.Signals]) -> Iterator[None]:
    """Append signals that come within the block to a list, except those that are ignored.

    None is an exception, which might come between the start of a rank and the note of it. Only a
    main thread may handle signals; elsewhere they are somebody else's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))

    # Where SIGCHLD is ignored, as after `trap '' CHLD`, the system keeps no exit codes.
    before = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, signal.SIG_DFL)}
    handled = [each for each in signals if signal.getsignal(each) != signal.SIG_IGN]  # as by nohup
    before |= {number: signal.signal(number, note) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start_anew(
    environments: Sequence[dict[str, str]], module: str, arguments: Sequence[str]
) -> Iterator[_Rank]:
    """Start a new interpreter for each rank."""
    command = [sys.executable, "-m", module, *arguments]
    inherited = {**os.environ, "PYTHONPATH": _python_path()}
    for environment in environments:
        process = subprocess.Popen(
            command, env={**inherited, **environment}, start_new_session=True
        )
        yield _Rank(process.pid, process.poll)


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
) -> Iterator[_Rank]:
    """Fork this process once for each rank, without the handlers of this process for signals."""
    context = multiprocessing.get_context("fork")
    main: Callable[[], None] = import_module(module).main
    lines, pids = [], []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        for environment in environments:
            theirs, ours = context.Pipe(duplex=False)
            lines.append(ours)
            process = context.Process(
                name="MainProcess",  # which user's code may ask for
                target=_work_as_rank,
                args=(theirs, lines, environment, main, [module, *arguments]),
            )
            process.start()
            theirs.close()
            pids.append(process.pid)
            yield _Rank(process.pid or 0, partial(getattr, process, "exitcode"))
        for line in lines:
            with suppress(BrokenPipeError):  # a rank that was killed
                line.send(pids)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for line in lines:
            line.close()


def _work_as_rank(
    line: Connection,
    of_launcher: Sequence[Connection],
    environment: dict[str, str],
    main: Callable[[], None],
    arguments: list[str],
) -> None:
    """Undo what distinguishes this fork from a new interpreter, and begin.

    The line says which processes the ranks are; the death of the launcher, which alone has the
    other ends, closes it.
    """
    os.setsid()
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            is_python = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_python else signal.SIG_DFL)
    for end in of_launcher:
        end.close()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    gc.freeze()  # garbage is not looked for in what is shared, which would copy it
    np.random.seed()
    sys.stdout, sys.stderr, sys.argv = sys.__stdout__, sys.__stderr__, arguments
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    os.environ.update(environment)
    try:
        name_siblings(line.recv())
    except EOFError:
        return
    line.close()
    main()
