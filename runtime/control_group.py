"""The memory that the control groups of this process leave it, as containers limit it on Linux.

A process is in a group, and that in others; the limit of each holds for all within. Version 2 has
one tree of groups, version 1 one for memory alone. A container may see its own group as the root.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_ROOT = Path("/")


class _Files(NamedTuple):
    """The names of a version's files, and of the file cache that can be dropped at once."""

    limit: str
    usage: str
    dropped: str


_VERSION_1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Files("memory.max", "memory.current", "inactive_file")


def free_in_control_group(root: Path = _ROOT) -> int | None:
    """The bytes that can still be allocated below the limits; None: there are none.

    Args:
        root: of the file system, which has `proc` and `sys`.
    """
    free = [_free_bytes(folder, files) for folder, files in _groups(root)]
    return min((found for found in free if found is not None), default=None)


def _groups(root: Path) -> Iterator[tuple[Path, _Files]]:
    """The folders of the groups of this process, from the innermost."""
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if "memory" in controllers.split(","):
            yield from ((folder, _VERSION_1) for folder in _with_parents(mount / "memory", name))
        elif number == "0" and not controllers:
            yield from ((folder, _VERSION_2) for folder in _with_parents(mount, name))


def _with_parents(mount: Path, name: str) -> Iterator[Path]:
    inside = PurePosixPath(name.lstrip("/"))
    if ".." in inside.parts:  # a group outside of what the container sees
        inside = PurePosixPath()
    return (mount / each for each in (inside, *inside.parents))


def _free_bytes(folder: Path, files: _Files) -> int | None:
    """The bytes below the limit of one group; None: it has no limit, or is not to be seen."""
    try:
        limit = (folder / files.limit).read_text().strip()
        if limit == "max":
            return None
        used = int((folder / files.usage).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, int(limit) - used + int(stat.get(files.dropped, 0)))
    except (OSError, ValueError):
        return None
