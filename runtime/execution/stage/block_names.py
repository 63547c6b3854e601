"""Names of the blocks of memory that ranks share, and removal of those that a killed run left.

    synth-host-MACHINE-PID-START-TOKEN-block

A pipeline's blocks begin with the process of its first rank. If all ranks are killed before they
have removed the names, the system keeps the memory. The next pipeline on the machine, or the
launcher, finds that the process has ended and removes them.
"""

import hashlib
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from ...processes import ProcessIdentity

_SHARED_FOLDER = Path("/dev/shm")
_STEM = "synth-host"


def shared_folder() -> Path:
    """The folder of files that are memory, or else that of temporary files."""
    if os.access(_SHARED_FOLDER, os.W_OK):
        return _SHARED_FOLDER
    return Path(tempfile.gettempdir())


def new_prefix(folder: Path) -> str:
    """The beginning of the paths of a new pipeline's blocks, whose first rank is this process."""
    own = ProcessIdentity.own()
    owner = f"{_tag(own.machine)}-{own.pid}-{own.started}"
    return f"{folder}/{_STEM}-{owner}-{secrets.token_hex(8)}-"


def remove_blocks(prefix: str) -> None:
    """Remove the names of all blocks of a pipeline that has failed, whichever rank made them."""
    begins = Path(prefix)
    for path in begins.parent.glob(f"{begins.name}*"):
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the blocks of pipelines of this machine whose first rank's process has ended.

    Other users' blocks, and those of processes that cannot be seen from here, stay.
    """
    machine = ProcessIdentity.own().machine
    begin = f"{_STEM}-{_tag(machine)}-"
    for path in folder.glob(f"{begin}*"):
        pid, started, *_ = path.name.removeprefix(begin).split("-", 2)
        if pid.isdecimal() and ProcessIdentity(machine, int(pid), started).has_ended:
            with suppress(OSError):
                path.unlink()


def _tag(machine: str) -> str:
    return hashlib.sha256(machine.encode()).hexdigest()[:12]
