"""Writes files such that none is half-written, and refuses outputs that cannot be written."""

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from synth.errors import SynthError
from synth.records.safe_read import AnyPath, as_path, descriptor_of, why_unreachable

# Characters of a name that are put into the name of the temporary file that is renamed to it.
_PREFIX = 16

# As the name of an output it often means stdout, which has the answers of commands.
_DASH = Path("-")
_NO_STDOUT = "- as a name would mean stdout, which has this command's answer"


def is_stream(path: Path) -> bool:
    """True if a path exists but is not a regular file, or is an open file such as /dev/stdout.

    Do not pass a resolved path: an open pipe has none, and an open file's name may have changed
    hands.
    """
    return path.exists() and (not path.is_file() or descriptor_of(path) is not None)


def write_atomically(path: AnyPath, contents: str | bytes) -> None:
    """Write a file through a temporary one beside it, so that it is never half-written.

    Text is written as UTF-8. What is written is on the disk before it takes its name, so that a
    power cut leaves the old file or the new one, too. A link is followed; what is not a regular
    file (a pipe, /dev/stdout) is written to, not replaced.

    Raises:
        SynthError: the folder is missing or not writable, or the disk is full; it is no path.
    """
    write_together({as_path(path): contents})


def write_together(files: Mapping[Path, str | bytes]) -> None:
    """Write files as `write_atomically` does; none takes its name before all are on the disk.

    Raises:
        SynthError: one of them cannot be written.
    """
    ready: dict[str, Path] = {}
    try:
        for path, contents in files.items():
            data = contents.encode() if isinstance(contents, str) else contents
            with _refusing(path):
                if is_stream(path):
                    _write_plainly(path, data)
                else:
                    _write_beside(_place(path), data, ready)
        for temporary, path in ready.items():
            with _refusing(path):
                os.replace(temporary, path)
    except BaseException:
        for temporary in ready:
            Path(temporary).unlink(missing_ok=True)
        raise


def _write_beside(path: Path, data: bytes, ready: dict[str, Path]) -> None:
    """Write a temporary file beside a path, and add it to those that are ready to take its name."""
    handle, temporary = _temporary(path)
    ready[temporary] = path
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(temporary, 0o666 & ~umask)


def _temporary(path: Path) -> tuple[int, str]:
    """Create a file beside a path; return its descriptor and its name."""
    return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:_PREFIX]}.")


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Make errors of the system a SynthError that names the path."""
    try:
        yield
    except OSError as error:
        raise SynthError(f"cannot write {path}: {error.strerror or error}") from None


def check_writable(path: Path) -> None:
    """Refuse an output path before work is spent on its contents.

    Raises:
        SynthError: it is `-`, or a folder; its folder does not exist, is not a folder, or takes no
            files.
    """
    reason = _why_not_writable(path)
    if reason is not None:
        raise SynthError(f"cannot write {path}: {reason}")


def check_outputs(*outputs: Path | None, inputs: Iterable[Path | str | None] = ()) -> None:
    """Refuse output paths, of those that are given, before work is spent on what they should hold.

    Args:
        inputs: the files that are read, which must not be lost.

    Raises:
        SynthError: one cannot be written, would replace an input, or is named twice.
    """
    taken = {_place(path): "is read" for path in inputs if path is not None}
    for path in outputs:
        if path is None:
            continue
        check_writable(path)
        place = _place(path)
        if place in taken and not is_stream(path):
            raise SynthError(f"{path} {taken[place]} by the same command; give another name")
        taken[place] = "is written"


def _place(path: Path | str) -> Path:
    """Resolve the links of a path; a loop of links is left as it is."""
    return Path(os.path.realpath(path))


def check_folder(option: str, path: Path | None) -> None:
    """Refuse a folder for files that cannot be made or written to, if the option has one.

    Raises:
        SynthError: it is `-` or a file, or in one, or nothing can be made there.
    """
    if path is None:
        return
    if path == _DASH:
        raise SynthError(f"{option} {path}: {_NO_STDOUT}; give a folder")
    if (reason := why_unreachable(path)) is not None:
        raise SynthError(f"{option} {path}: {reason}; give another folder")
    there = next((p for p in (path, *path.parents) if p.exists()), None)
    if there is None:
        return
    where = f"{option} {path}" if there == path else f"{option} {path}: {there}"
    if not there.is_dir():
        raise SynthError(f"{where} is a file; give a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SynthError(f"{where} may not be written to; give another folder")
    try:  # some file systems, such as /proc, refuse what the permissions allow
        os.rmdir(tempfile.mkdtemp(dir=there, prefix="."))
    except OSError as error:
        reason = error.strerror or str(error)
        raise SynthError(f"{where} cannot be written to: {reason}; give another folder") from None


def make_folder(path: Path) -> None:
    """Make a folder and those above it, if they are missing.

    Raises:
        SynthError: it cannot be made.
    """
    with _refusing(path):
        path.mkdir(parents=True, exist_ok=True)


def _why_not_writable(path: Path) -> str | None:
    """The reason why a file cannot be written; it is written beside its place and moved."""
    if path == _DASH:
        return f"{_NO_STDOUT}; give a file's name"
    reason = why_unreachable(path)
    if reason is not None:
        return reason
    folder = path.parent
    if path.is_dir():
        return "it is a folder; give a file's name"
    if is_stream(path):
        return None if os.access(path, os.W_OK) else "no permission to write to it"
    if not folder.is_dir():
        there = next((p for p in (folder, *folder.parents) if p.exists()), folder)
        if there.is_dir() or not there.exists():
            return f"folder {folder} is missing"
        return f"{there} is a file, not a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"no permission to write in folder {folder}"
    return _why_no_file_beside(_place(path))


def _why_no_file_beside(place: Path) -> str | None:
    """The reason why no file can be made there, as in /proc or on a disk without space."""
    try:
        handle, temporary = _temporary(place)
    except OSError as error:
        return f"no file can be made in folder {place.parent}: {error.strerror or error}"
    os.close(handle)
    os.unlink(temporary)
    return None


def _write_plainly(path: Path, data: bytes) -> None:
    """Write at the end of the file's contents, if this process has the file open already."""
    descriptor = descriptor_of(path)
    if descriptor is None:
        path.write_bytes(data)
        return
    sys.stdout.flush()
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
