"""The folder of a run on one machine, by which its ranks meet and know each other.

The launcher makes it in the folder of temporary files, for its user alone, and names it to the
ranks in an environment variable. Under torchrun there is none.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_VARIABLE = "SYNTH_RUN_FOLDER"
_KEY = "key"
_KEY_BYTES = 32


@contextmanager
def named_to_ranks(folder: Path) -> Iterator[None]:
    """Within the block, processes that are started meet in a folder, and share a new key."""
    file = os.open(folder / _KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(file, "wb") as key:
        key.write(secrets.token_bytes(_KEY_BYTES))
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def run_folder() -> Path | None:
    """The folder that the launcher named to this rank; None: it named none."""
    folder = os.environ.get(_VARIABLE)
    return None if folder is None else Path(folder)


def run_key() -> bytes:
    """The key that only the ranks of this run know; empty if there is none."""
    folder = run_folder()
    return b"" if folder is None else _read(folder / _KEY)


@cache
def _read(path: Path) -> bytes:
    return path.read_bytes()
