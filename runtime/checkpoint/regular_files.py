"""Files of a checkpoint that others may have made: regular ones only, of a bounded size."""

import os
import stat
from pathlib import Path

from .errors import Damaged

# Far more than the manifest of a million tensors.
MOST_BYTES = 1 << 30


def check_regular(path: Path) -> None:
    """Refuse a pipe or a device, which might be read without end.

    Raises:
        Damaged: the path is one, or does not exist.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror or error}") from None
    if not stat.S_ISREG(found.st_mode):
        raise Damaged(f"{path.name} is not a regular file")


def read_regular(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        Damaged: it is not a regular file, cannot be read, or is larger than any that is written.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror or error}") from None
    if len(content) > MOST_BYTES:
        raise Damaged(f"{path.name} is larger than {MOST_BYTES >> 20} MiB")
    return content
