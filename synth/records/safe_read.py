"""Reads text files of any origin: of bounded size, and never this command's own output."""

import errno
import json
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from synth.errors import SynthError

# Far more than the largest plan (2,000,000 ops) or curve takes.
MOST_BYTES = 1 << 28

_BLOCK_BYTES = 1 << 20

# Digits of a whole number that are read at most: far more than 64 bits have, and few enough for
# every number to become a float.
_MOST_DIGITS = 100

# Digits that are shown of a longer one.
_SHOWN_DIGITS = 20

# A path as programs give it.
AnyPath = str | os.PathLike[str]

# Characters of a key that are shown.
_LONGEST_KEY = 60

_OUTPUTS = (1, 2)
_STANDARD = ("/dev/stdin", "/dev/stdout", "/dev/stderr")


def read_text(path: AnyPath, needed: str, most_bytes: int = MOST_BYTES) -> str:
    """Read a text file.

    Args:
        path: a file, a pipe or a device.
        needed: the expected kind of file, for messages.
        most_bytes: the largest size that is read.

    Raises:
        SynthError: it cannot be read, is not text, is too large, or is this command's own output.
    """
    try:
        return read_bytes(path, needed, most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SynthError(f"{path} is not a text file; needed: {needed}") from None


def read_bytes(path: AnyPath, needed: str, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a file as `read_text` does, without decoding it."""
    try:
        return _read(as_path(path), needed, most_bytes)
    except OSError as error:
        raise SynthError(f"cannot read {path}: {error.strerror or error}") from None


def as_path(given: AnyPath) -> Path:
    """Return a path that a program gave.

    Raises:
        SynthError: it is none.
    """
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise SynthError(
            f"{given!r:.60} is no path of a file; give a text such as 'plan.json', or a "
            f"pathlib.Path"
        )
    return Path(text)


def _read(path: Path, needed: str, most_bytes: int) -> bytes:
    blocks, size = [], 0
    with open(path, "rb", buffering=0, opener=_open_at_once) as file:
        opened = os.fstat(file.fileno())
        if stat.S_ISFIFO(opened.st_mode) and descriptor_of(path) is None:
            raise SynthError(
                f"cannot read {path}: it is a named pipe, whose writer may never come; give a "
                f"file, or /dev/stdin behind a pipe; needed: {needed}"
            )
        if _is_own_output(opened):
            raise SynthError(
                f"cannot read {path}: this command's own output goes there; needed: {needed}"
            )
        if not stat.S_ISREG(opened.st_mode):
            most_bytes = min(most_bytes, MOST_BYTES)
        while size <= most_bytes >= opened.st_size and (block := file.read(_BLOCK_BYTES)):
            blocks.append(block)
            size += len(block)
    if max(size, opened.st_size) > most_bytes:
        raise SynthError(
            f"{path} is larger than {most_bytes >> 20} MiB, the most that is read; needed: {needed}"
        )
    return b"".join(blocks)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting, as a pipe's reader would for a writer; reading may wait."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def descriptor_of(path: Path) -> int | None:
    """Return the open file that a name such as /dev/stdout or /dev/fd/3 stands for, if any."""
    text = os.path.abspath(path)
    if text in _STANDARD:
        return _STANDARD.index(text)
    match = re.fullmatch(r"(?:/dev|/proc/self)/fd/(\d{1,9})", text)
    return None if match is None else int(match[1])


def _is_own_output(opened: os.stat_result) -> bool:
    """True for a pipe that this process itself writes to: reading it would never end."""
    if not stat.S_ISFIFO(opened.st_mode):
        return False
    for output in _OUTPUTS:
        with suppress(OSError):  # a closed one
            if os.path.samestat(opened, os.fstat(output)):
                return True
    return False


def parse_json(text: str | bytes) -> Any:
    """Parse JSON whose whole numbers are bounded.

    Raises:
        ValueError: it is not text or not JSON, is nested too deeply, a number has too many digits,
            or an object has a key twice.
    """
    try:
        return json.loads(text, parse_int=_whole, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def half_character(data: Any) -> str | None:
    """Find an escape in parsed JSON that is half of a character, which no text can hold."""
    try:
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        return f"U+{ord(error.object[error.start]):04X}"
    return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:_LONGEST_KEY]!r} is there twice")
    return found


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(
            f"the number {digits[:_SHOWN_DIGITS]}… has {len(digits)} digits, more than any figure "
            f"of such a file"
        )
    return int(digits)


def why_unreachable(path: Path) -> str | None:
    """Return why a path can name no file at all: too long, or a loop of links; else None."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return error.strerror
    return None


def read_object(path: Path, needed: str) -> dict[str, Any]:
    """Return the object of a JSON file.

    Args:
        needed: what it should hold, for the error.

    Raises:
        SynthError: it cannot be read, is no JSON, or holds no object.
    """
    try:
        found = parse_json(read_text(path, needed))
    except ValueError as error:
        raise SynthError(f"{path} is no JSON ({error}); give {needed}") from None
    if not isinstance(found, dict):
        raise SynthError(f"{path} holds no JSON object; give {needed}")
    return found
