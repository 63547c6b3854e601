"""Where each rank is: a small shared file, so that a death can be told post mortem."""

import mmap
import struct
from pathlib import Path
from typing import Self

_PLACE = struct.Struct("<qq")


class Progress:
    """Writes (step, instruction) of one rank into a memory-mapped file; costs a store, no system
    call. The file outlives a killed process."""

    def __init__(self, folder: Path, rank: int) -> None:
        path = folder / f"progress-{rank}"
        path.write_bytes(_PLACE.pack(-1, -1))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _PLACE.size)
        self._step = -1

    def begin_step(self, step: int) -> None:
        """A new step starts."""
        self._step = step
        self.at(-1)

    def at(self, instruction: int) -> None:
        """The rank is about to run this instruction of its program."""
        _PLACE.pack_into(self._map, 0, self._step, instruction)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()


def last_place(folder: Path, rank: int) -> tuple[int, int] | None:
    """The (step, instruction) where a rank was last seen; (-1, -1) before its first step.

    Returns:
        None if the rank never got so far as to say.
    """
    path = folder / f"progress-{rank}"
    if not path.exists():
        return None
    step, instruction = _PLACE.unpack(path.read_bytes())
    return step, instruction
