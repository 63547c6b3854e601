"""Files of the blocks of memory that ranks share: names, opening, and removal of leftovers.

    synth-host-NAMESPACE-PID-START-TOKEN-block

A pipeline's blocks begin with the process of its first rank. If all ranks are killed before they
have removed the names, the system keeps the memory. The next pipeline on the machine, or the
launcher, finds that the process has ended and removes them.
"""

import errno
import hashlib
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from ....processes import ProcessIdentity

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


def make_block(path: Path) -> int:
    """Return the descriptor of a new file; the folder is everyone's, so no link is followed.

    Raises:
        FileExistsError: there is a file or a link of this name.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def open_block(path: Path) -> int:
    """Return the descriptor of a block that this rank makes, or that another rank has made.

    Raises:
        OSError: the file is a link or belongs to another user, or others may open it.
    """
    try:
        return make_block(path)
    except FileExistsError:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    found = os.fstat(file)
    is_alone = stat.S_ISREG(found.st_mode) and found.st_nlink <= 1
    if not is_alone or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(file)
        raise PermissionError(errno.EPERM, f"{path.name} was not made by a rank of this run")
    return file


def remove_blocks(prefix: str) -> None:
    """Remove the names of all blocks of a pipeline that has failed, whichever rank made them."""
    begins = Path(prefix)
    for path in begins.parent.glob(f"{begins.name}*"):
        with suppress(OSError):  # gone, or somebody else's
            path.unlink()


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
