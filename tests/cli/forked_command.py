"""Commands as processes of their own, forked from one that has imported torch.

A new interpreter imports for seconds what most tests do not ask about. Those that do begin with
`sys.executable`.
"""

import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from synth.cli import main
from tests.runtime.gloo_pool import forkserver


class ForkedCommand:
    """A `synth` command under way; what `subprocess.Popen` of it with pipes of text would be."""

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        cwd: str | Path = ".",
        env: Mapping[str, str] | None = None,
    ) -> None:
        (self.stdout, out), (self.stderr, err) = _pipe(), _pipe()
        words = [str(argument) for argument in arguments]
        environment = dict(os.environ if env is None else env)
        given = (out, err, str(Path(cwd).resolve()), environment, words)
        self._process: Any = forkserver().Process(target=_work, args=given)
        self._process.start()
        for end in (out, err):
            end.close()
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative after a signal; None while it runs."""
        code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return the exit code."""
        self._process.join(timeout)
        if (code := self.returncode) is None:
            raise subprocess.TimeoutExpired("synth", timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read all that is written until nobody holds the pipes; wait for the end."""
        with ThreadPoolExecutor(2) as readers:
            reads = [readers.submit(stream.read) for stream in (self.stdout, self.stderr)]
            try:
                out, err = (read.result(timeout) for read in reads)
            except TimeoutError:
                self.kill()
                raise
        self.wait(timeout)
        return out, err

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run_forked(
    *arguments: object,
    timeout: float = 600,
    cwd: str | Path = ".",
    env: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a `synth` command to its end, as `subprocess.run` does."""
    command = ForkedCommand(arguments, cwd=cwd, env=env)
    try:
        stdout, stderr = command.communicate(timeout)
    finally:
        command.kill()
        command.stdout.close()
        command.stderr.close()
    words = [str(argument) for argument in arguments]
    return subprocess.CompletedProcess(words, command.wait(), stdout, stderr)


def _pipe() -> tuple[io.TextIOWrapper, Connection]:
    """Return the end to read of a pipe, and that to write, which can go to another process."""
    read, write = os.pipe()
    return open(read, encoding="utf-8", errors="replace"), Connection(write, readable=False)


def _work(
    out: Connection, err: Connection, folder: str, environment: dict[str, str], words: list[str]
) -> None:
    """Undo what distinguishes this fork from a new interpreter, and do the command."""
    for stream, descriptor in ((out, 1), (err, 2)):
        os.dup2(stream.fileno(), descriptor)
        stream.close()
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
    vars(sys).update(__stdout__=sys.stdout, __stderr__=sys.stderr)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None
    sys.argv = ["synth", *words]
    main()
