"""Keeps a second process from writing a file that a first one is writing.

The locks are POSIX locks: file systems of clusters support them, forked children do not inherit
them, and a killed process loses them. The lock's file names its holder; one left behind by a killed
process blocks nothing. The locks hold between processes, not within one: there a second taker of
the same lock gets it too, and closing the lock's file, however it was opened, releases it.
"""

import errno
import os
import socket
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from synth.errors import SynthError
from synth.records.safe_write import is_stream

try:
    import fcntl
except ImportError:  # absent on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]


class LockTaken(Exception):
    """Another process holds the lock; the message names it, if it is known."""


def take(lock: Path) -> int | None:
    """Lock a file, made if necessary, until it is closed or this process ends.

    Returns:
        The open file; None, with a warning, if the file system has no locks.

    Raises:
        Taken: another process has locked it.
        OSError: it cannot be opened.
    """
    while fcntl is not None:
        handle = _open(lock)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = os.read(handle, 200).decode(errors="replace")
            os.close(handle)
            raise LockTaken(holder or "another process") from None
        except OSError as error:
            os.close(handle)
            if error.errno == errno.ESTALE:
                continue
            warnings.warn(
                f"{lock} cannot be locked ({error.strerror or error}): let no other process write "
                f"there",
                stacklevel=2,
            )
            break
        if _is_there(lock, handle):
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return handle
        os.close(handle)  # its holder has just taken it away: that was the lock of nothing
    return None


@contextmanager
def only_writer(path: Path, way_out: str) -> Iterator[None]:
    """Keep other processes that use this function from writing a file within the block.

    A path that is not a file is not locked.

    Raises:
        SynthError: another process writes it; `way_out` says what to do then.
    """
    if is_stream(path):
        yield
        return
    path = path.resolve()
    lock = path.with_name(f".{path.name}.lock")
    try:
        handle = take(lock)
    except LockTaken as taken:
        raise SynthError(f"{path} is being written by {taken}; {way_out}") from None
    except OSError as error:
        left = f"; if nobody writes {path.name} any more, delete it" if lock.exists() else ""
        raise SynthError(f"cannot write {lock}: {error.strerror or error}{left}") from None
    try:
        yield
    finally:
        if handle is not None:
            with suppress(OSError):
                lock.unlink()  # while it is still held: whoever waits for it looks again
            os.close(handle)


def _open(lock: Path) -> int:
    """Open the lock's own file: never one that a link leads to, which would be overwritten.

    Raises:
        OSError: it cannot be opened, or is a link or no regular file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(lock, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, f"{lock.name} is a link; delete it") from None
    opened = os.fstat(handle)
    if not stat.S_ISREG(opened.st_mode) or opened.st_nlink > 1:
        os.close(handle)
        raise OSError(errno.EPERM, f"{lock.name} is another file than a lock; delete it")
    return handle


def _is_there(lock: Path, handle: int) -> bool:
    """True if an open file is still the one of that name."""
    try:
        return os.path.samestat(os.stat(lock), os.fstat(handle))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return False
        raise
