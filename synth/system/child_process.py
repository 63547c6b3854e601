"""Python processes that serve tasks sent through a pipe, and end with their parent.

    parent -> child | a task | None: stop the present task
    child -> parent | whatever the child reports about its task

Messages are pickled objects. A child may be killed, or abort, without harm to its parent.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import IO, Any

# The folder of `synth`, which `site` may have found by a hook and not by the path of imports.
_ROOT = str(Path(__file__).resolve().parents[2])

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[4:]; from synth.system.child_program import main; main()"
)


class ChildProcess:
    """A process that serves tasks, and this end of its pipe.

    Args:
        serve: the function that serves (`module:name`); its argument is a `ParentProcess`.
        keeps_output: keep what the child prints for `last_output`, rather than print it here.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, serve: str, *, keeps_output: bool = False) -> None:
        self._output: IO[bytes] | None = None
        if keeps_output:
            with suppress(OSError):  # without a place for a file there is no last output
                self._output = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        output = (self._output or subprocess.DEVNULL) if keeps_output else None
        self.connection, theirs = Pipe()
        # Without `site` it starts sooner; the paths are those that `site` made here. The present
        # folder, which is '', is left out: nothing in it is to take the place of a library.
        paths = [*(os.path.abspath(path) for path in sys.path if path), _ROOT]
        arguments = [str(os.getpid()), str(theirs.fileno()), serve, *paths]
        with theirs, sigint_blocked():
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, task: Any) -> None:
        """Send a task, or None to stop; a death is noticed when an answer is received."""
        with suppress(OSError):
            self.connection.send(task)

    def receive(self) -> Any:
        """Return the next report.

        Raises:
            EOFError: the process has ended.
        """
        try:
            return self.connection.recv()
        except OSError:
            raise EOFError from None

    def end(self, timeout_s: float, most_bytes: int) -> tuple[int | None, str]:
        """Wait for its end: the exit code, negative after a signal, and the end of its output."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        words = b""
        if self._output is not None:
            self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - most_bytes))
            words = self._output.read()
        return self._process.returncode, words.decode(errors="replace").strip()

    def kill(self) -> None:
        """End it; whoever waits for a report sees that."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it, and close its pipe."""
        self.kill()
        self.connection.close()
        if self._output is not None:
            self._output.close()


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block SIGINT in this thread, and in the processes that it starts meanwhile.

    Ctrl-C in a terminal reaches every process of the group, also one that has not yet come to
    ignore it. A blocked signal stays pending, and ignoring it discards it (POSIX, `sigaction`).
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
