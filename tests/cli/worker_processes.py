"""Finding the processes of a run, in order to stop or kill them."""

import os
import signal
import subprocess
from pathlib import Path
from typing import TypeAlias

from tests.cli.forked_command import ForkedCommand

# A command under way.
Process: TypeAlias = "ForkedCommand | subprocess.Popen[str]"


def workers_of(parent: int, marker: bytes | None = None) -> list[int]:
    """The children whose command line holds the marker, in the order of their ranks; None: forks.

    With a marker a copy of the parent is left out, as it has yet to become a worker: the parent
    waits for it, and it cannot even be killed meanwhile.
    """
    found = []
    own = _command_of(parent)
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        command = _command_of(int(folder.name))
        if int(fields[1]) != parent or command is None:
            continue
        is_fork = command == own
        if is_fork if marker is None else not marker or (marker in command and not is_fork):
            found.append(int(folder.name))
    return sorted(found)


def _command_of(process: int) -> bytes | None:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return None


def read_until(process: Process, text: str) -> list[str]:
    """The lines that it writes on stderr up to one that holds the text."""
    assert process.stderr is not None
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        line = process.stderr.readline()
        assert line, f"the run ended before it said {text!r}:\n" + "".join(lines)
        lines.append(line)
    return lines


def end(process: Process) -> None:
    """Leave nothing running, the launcher's children included."""
    children = workers_of(process.pid, b"")
    process.kill()
    for child in children:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(timeout=300)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
