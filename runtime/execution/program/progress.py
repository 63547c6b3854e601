"""The progress of each rank, in a small memory-mapped file that outlives a killed process."""

import mmap
import struct
from pathlib import Path
from typing import Self

# The step, the instruction, and the number of steps begun (a resumed run continues its numbering).
_PLACE = struct.Struct("<qqq")


class RankProgress:
    """Writes one rank's step and instruction into a file.

    An update is a store to mapped memory and needs no system call.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        path = folder / f"progress-{rank}"
        path.write_bytes(_PLACE.pack(-1, -1, 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _PLACE.size)
        self._step, self._num_begun = -1, 0

    def begin_step(self, step: int) -> None:
        """Note that a step starts."""
        self._step = step
        self._num_begun += 1
        self.at(-1)

    def at(self, instruction: int) -> None:
        """Note that the rank is about to run this instruction of its program."""
        _PLACE.pack_into(self._map, 0, self._step, instruction, self._num_begun)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()


def last_place(folder: Path, rank: int) -> tuple[int, int] | None:
    """Return the last known (step, instruction) of a rank; (-1, -1) before its first step.

    Returns:
        None if the rank's file does not exist yet.
    """
    found = _read(folder, rank)
    return found and found[:2]


def counted_place(folder: Path, rank: int) -> tuple[int, int] | None:
    """Return the same place with steps counted from 0, even if the run was resumed."""
    found = _read(folder, rank)
    return found and (found[2] - 1, found[1])


def _read(folder: Path, rank: int) -> tuple[int, int, int] | None:
    try:
        data = (folder / f"progress-{rank}").read_bytes()
    except OSError:
        return None
    if len(data) != _PLACE.size:  # the file is just being made
        return None
    step, instruction, num_begun = _PLACE.unpack(data)
    return step, instruction, num_begun
