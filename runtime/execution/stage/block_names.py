"""Names of the blocks of memory that ranks share, and removal of those that a killed run left.

    synth-host-NAMESPACE-PID-START-TOKEN-block

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
    owner = f"{_tag(own.namespace)}-{own.pid}-{own.started}"
    return f"{folder}/{_STEM}-{owner}-{secrets.token_hex(8)}-"


def remove_blocks(prefix: str) -> None:
    """Remove the names of all blocks of a pipeline that has failed, whichever rank made them."""
    begins = Path(prefix)
    for path in begins.parent.glob(f"{begins.name}*"):
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove this user's blocks of pipelines on this machine whose first rank's process has ended.

    Other users' blocks, and those of processes that cannot be seen from here, stay.
    """
    namespace = ProcessIdentity.own().namespace
    begin = f"{_STEM}-{_tag(namespace)}-"
    for path in folder.glob(f"{begin}*"):
        with suppress(OSError):
            if _is_leftover(path, namespace, path.name.removeprefix(begin)):
                path.unlink()


def _is_leftover(path: Path, namespace: str, owner: str) -> bool:
    """True if a block is of this user and of a process that has ended."""
    pid, _, rest = owner.partition("-")
    started = rest.partition("-")[0]
    return (
        path.stat().st_uid == os.geteuid()
        and pid.isdecimal()
        and started.isdecimal()
        and ProcessIdentity(namespace, int(pid), started).has_ended
    )


def _tag(namespace: str) -> str:
    return hashlib.sha256(namespace.encode()).hexdigest()[:12]
