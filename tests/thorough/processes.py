"""Commands as processes that can be found again after their parents have ended."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_MARK = "SYNTH_TEST_PROCESS"

# As the installed script begins, but it tells when the interpreter has come so far.
SYNTH = [
    sys.executable,
    "-c",
    "import synth.cli, sys; sys.stderr.write('here\\n'); sys.stderr.flush(); synth.cli.main()",
]


class Started:
    """A command under way, with its output in files; all its descendants carry a mark."""

    def __init__(self, arguments: Sequence[Any], folder: Path) -> None:
        """Start it, as the leader of a group of its own, as a terminal does."""
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        name, value = self._mark.split("=")
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        self._outputs = folder / f"{value}.out", folder / f"{value}.err"
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        settings = {"GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        with self._outputs[0].open("wb") as stdout, self._outputs[1].open("wb") as stderr:
            self.process = subprocess.Popen(
                [*SYNTH, *map(str, arguments)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=os.environ | settings | {name: value},
                start_new_session=True,
            )

    @property
    def stdout(self) -> str:
        """All that it has answered."""
        return self._outputs[0].read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """All that it has said, without the line that it began with."""
        return self._outputs[1].read_text(errors="replace").removeprefix("here\n")

    @property
    def is_there(self) -> bool:
        """True once it has come to its own code."""
        return self._outputs[1].stat().st_size > 0

    def wait_until_there(self) -> None:
        """Wait until it has come to its own code, or has ended."""
        while not self.is_there and self.process.poll() is None:
            time.sleep(0.005)

    def everyone(self) -> list[int]:
        """The running processes of the command, itself included; zombies do not run."""
        found, mark = [], self._mark.encode()
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def left_after(self, seconds: float) -> list[int]:
        """The processes that still exist after `seconds`."""
        until = time.monotonic() + seconds
        while (left := self.everyone()) and time.monotonic() < until:
            time.sleep(0.05)
        return left


@contextmanager
def started(arguments: Sequence[Any], folder: Path) -> Iterator[Started]:
    """A running command; its remaining processes are killed at the end."""
    command = Started(arguments, folder)
    try:
        yield command
    finally:
        for process in command.everyone():
            send(process, signal.SIGKILL)
        command.process.wait(timeout=60)


def send(process: int, what: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(process, what)
