"""Where each rank is: a small shared file, so that a death can be told post mortem."""

import mmap
import struct
from pathlib import Path
from typing import Self

# The step, the instruction, and how many steps have begun: a resumed run goes on with its numbers.
_PLACE = struct.Struct("<qqq")


class RankProgress:
    """Writes where one rank is into a memory-mapped file; costs a store, no system call. The file
    outlives a killed process."""

    def __init__(self, folder: Path, rank: int) -> None:
        path = folder / f"progress-{rank}"
        path.write_bytes(_PLACE.pack(-1, -1, 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _PLACE.size)
        self._step, self._num_begun = -1, 0

    def begin_step(self, step: int) -> None:
        """A new step starts."""
        self._step = step
        self._num_begun += 1
        self.at(-1)

    def at(self, instruction: int) -> None:
        """The rank is about to run this instruction of its program."""
        _PLACE.pack_into(self._map, 0, self._step, instruction, self._num_begun)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()


def last_place(folder: Path, rank: int) -> tuple[int, int] | None:
    """The (step, instruction) where a rank was last seen; (-1, -1) before its first step.

    Returns:
        None if the rank never got so far as to say.
    """
    found = _read(folder, rank)
    return found and found[:2]


def counted_place(folder: Path, rank: int) -> tuple[int, int] | None:
    """The same with steps counted from 0, wherever the run went on from."""
    found = _read(folder, rank)
    return found and (found[2] - 1, found[1])


def _read(folder: Path, rank: int) -> tuple[int, int, int] | None:
    try:
        data = (folder / f"progress-{rank}").read_bytes()
    except OSError:
        return None
    if len(data) != _PLACE.size:  # it is just being made
        return None
    step, instruction, num_begun = _PLACE.unpack(data)
    return step, instruction, num_begun
