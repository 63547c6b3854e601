"""The folder of a run's checkpoints: one sub-folder each, named by its step once it is complete.

A checkpoint is written into `step-N.partial` and renamed to `step-N` when all of it is on disk; a
rename is atomic. Therefore every `step-N` can be resumed from, and every `.partial` is left over
from a run that ended, and is removed. Two runs at once would remove each other's, so the writer
holds a lock, which ends with its process.
"""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from synth.errors import SynthError
from synth.records.file_lock import LockTaken, take

from .manifest import MANIFEST

_COMPLETE = re.compile(r"step-(0|[1-9][0-9]{0,17})")
_PARTIAL = ".partial"
_ASIDE = ".set-aside"
_LOCK = ".lock"


class CheckpointFolder:
    """Only one process may change it; all may look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, ascending."""
        if not self.path.is_dir():
            return []
        found = (_COMPLETE.fullmatch(entry.name) for entry in self.path.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def of(self, step: int) -> Path:
        """Return the folder of a complete checkpoint."""
        return self.path / f"step-{step}"

    def partial(self, step: int) -> Path:
        """Return the folder in which a checkpoint is written."""
        return self.path / f"step-{step}{_PARTIAL}"

    def state_file(self, folder: Path) -> Path:
        """The part of a checkpoint that says where training stood."""
        return folder / MANIFEST

    def create(self) -> None:
        """Make the folder, lock it, and remove partial checkpoints of ended runs.

        Raises:
            SynthError: it cannot be made or written to, or another run writes to it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._keep_others_out()
            for leftover in self.path.glob(f"step-*{_PARTIAL}"):
                _remove(leftover)
        except OSError as error:
            raise SynthError(
                f"cannot write checkpoints in {self.path}: {error.strerror or error}"
            ) from None
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise SynthError(f"cannot write checkpoints in {self.path}: no permission")

    def begin(self, step: int) -> None:
        """Make the folder of a checkpoint, and the lock again if that was removed meanwhile.

        Raises:
            SynthError: another run writes here by now.
            OSError: the disk does not let it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if not self._is_locked():
            self._keep_others_out()
        self.discard(step)
        self.partial(step).mkdir()

    def _keep_others_out(self) -> None:
        """Take a lock that is held as long as the process lives."""
        before = self._lock
        try:
            self._lock = take(self.path / _LOCK)
        except LockTaken as taken:
            raise SynthError(
                f"another run writes checkpoints in {self.path} ({taken}); end it, or give another "
                f"folder"
            ) from None
        if before is not None:
            os.close(before)

    def _is_locked(self) -> bool:
        """True if the lock's file is the one held, or any where the file system has no locks."""
        try:
            there = (self.path / _LOCK).stat()
        except OSError:
            return False
        return self._lock is None or os.path.samestat(there, os.fstat(self._lock))

    def discard(self, step: int) -> None:
        """Remove a checkpoint that could not be completed, if it is ours."""
        if self._is_locked():
            with suppress(OSError):
                _remove(self.partial(step))

    def complete(self, step: int, manifest: str, keep: int) -> None:
        """Declare a written checkpoint complete, then drop all but the last `keep` (0: none).

        Args:
            step: its step; all else is on disk.
            manifest: the text of the file that is written last.
            keep: the number of complete checkpoints to keep.

        Raises:
            OSError: the disk does not let it.
        """
        with self.state_file(self.partial(step)).open("w") as file:
            file.write(manifest)
            file.flush()
            os.fsync(file.fileno())
        _sync(self.partial(step))
        self.partial(step).rename(self.of(step))
        _sync(self.path)
        for old in self.steps()[:-keep] if keep else []:
            self._drop(old)

    def set_aside(self, after: int) -> list[Path]:
        """Rename the checkpoints after a step from which training starts anew.

        Returns:
            Their new paths.
        """
        moved = []
        for step in [step for step in self.steps() if step > after]:
            names = (f"step-{step}{_ASIDE}{f'-{n}' if n else ''}" for n in range(10**6))
            free = next(path for name in names if not (path := self.path / name).exists())
            moved.append(self.of(step).rename(free))
        return moved

    def _drop(self, step: int) -> None:
        """Remove a checkpoint; it is renamed first, so that half of one does not look complete."""
        self.of(step).rename(self.partial(step))
        with suppress(OSError):
            _remove(self.partial(step))


def _remove(path: Path) -> None:
    """Remove a folder; of one that is only linked here, the link."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _sync(folder: Path) -> None:
    """Flush the folder's entries to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
