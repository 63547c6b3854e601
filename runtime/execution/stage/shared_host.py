"""Host memory that the ranks of one machine share: named blocks, and signals from rank to rank.

    block     a file that ranks map, each when it needs it; the same name is the same memory
    signal    a counter in such a block: the step in which a value was left there

A rank waits for a signal by reading it again and again, so that no message is needed. Ranks meet
where a step begins and where it ends: whatever one of them left before, the others find then, and
nobody uses it any more when it is overwritten. The names of blocks are removed there, as all ranks
have mapped them, so that the system frees the memory however the ranks end.
"""

import mmap
import os
import platform
import secrets
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from synth.errors import RunFailure, SynthError
from synth.schedule.ops import Value

from ..transport.rank_group import RankGroup
from .boundary import Tensors
from .host_memory import HostMemory

_SHARED_FOLDER = Path("/dev/shm")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SHORTEST_S, _LONGEST_S = 2e-5, 1e-3


class SharedHost:
    """One rank's view of the memory that it shares with the other ranks of its pipeline."""

    def __init__(
        self, prefix: str, rank: int, num_ranks: int, values: Sequence[Value], timeout_s: float
    ) -> None:
        """Map the signals.

        Args:
            prefix: of the paths of blocks, the same on all ranks.
            rank: this one.
            num_ranks: that share the memory.
            values: all that ranks leave there in a step, in the same order on every rank.
            timeout_s: the longest that this rank waits for another one.
        """
        self._prefix, self._rank, self._timeout_s = prefix, rank, timeout_s
        self._named: list[Path] = []
        weakref.finalize(self, _remove, self._named)
        self._blocks: dict[tuple[Value, tuple[int, ...]], Tensors] = {}
        self._met, self._step = 0, 0
        self._ranks = slice(1, 1 + num_ranks)
        self._places = {value: self._ranks.stop + place for place, value in enumerate(values)}
        count = self._ranks.stop + len(values)
        self._signals = self.block("signals", 8 * count).numpy().view(np.int64)

    @classmethod
    def among(cls, group: RankGroup, values: Sequence[Value], timeout_s: float) -> Self:
        """Share memory among the ranks of a pipeline; all of them call this.

        Raises:
            SynthError: they are not on one machine.
        """
        machine = _BOOT_ID.read_text() if _BOOT_ID.exists() else platform.node()
        if len(set(group.gather(machine))) > 1:
            raise SynthError(
                "stages go to all ranks from the host's memory in this schedule, so that all ranks "
                "need to be on one machine; run it there, or take a schedule such as mobius"
            )
        within = _SHARED_FOLDER if os.access(_SHARED_FOLDER, os.W_OK) else tempfile.gettempdir()
        prefix = group.share(f"{within}/synth-host-{secrets.token_hex(8)}-", 0)
        shared = cls(prefix, group.rank, group.size, values, timeout_s)
        group.on_abort(shared.fail)
        group.gather("mapped")  # a rank that fails from here on finds all others at its signals
        return shared

    def block(self, name: str, num_bytes: int) -> Tensor:
        """A block of bytes, zeros at first.

        Raises:
            SynthError: there is no room for it.
        """
        size, path = max(1, num_bytes), Path(f"{self._prefix}{name}")
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._named.append(path)
        try:
            os.posix_fallocate(file, 0, size)
            mapped = mmap.mmap(file, size)
        except OSError as error:
            raise SynthError(
                f"{path.parent} has no room for {num_bytes:,} bytes that all ranks share "
                f"({error.strerror}); enlarge it, or take a schedule such as mobius"
            ) from error
        finally:
            os.close(file)
        return torch.from_numpy(np.frombuffer(mapped, np.uint8))[:num_bytes]

    def allocator(self, name: str) -> HostMemory:
        """Allocates blocks of a name, which are the same on ranks that ask for the same ones."""
        numbers = iter(range(1 << 30))
        return lambda num_bytes: self.block(f"{name}-{next(numbers)}", num_bytes)

    def parts(self, value: Value, sizes: Sequence[int]) -> Tensors:
        """The memory of a value, in parts of as many bytes each."""
        key = value, tuple(sizes)
        if key not in self._blocks:
            name = f"{value.kind}-{value.stage}-{value.microbatch}-{value.replica}-{sum(sizes)}"
            self._blocks[key] = torch.split(self.block(name, sum(sizes)), list(sizes))
        return self._blocks[key]

    def begin(self) -> None:
        """Begin a step, once all ranks have."""
        self._step += 1
        self._meet()

    def end(self) -> None:
        """End a step, once all ranks have."""
        self._meet()

    def mark(self, value: Value) -> None:
        """Let other ranks know that a value is there."""
        self._signals[self._places[value]] = self._step

    def ready(self, value: Value) -> "Signal":
        """The moment at which a value of this step is there."""
        return Signal(self, self._places[value], self._step)

    def fail(self) -> None:
        """End the waits of all ranks, because this one has failed."""
        self._signals[0] = 1
        _remove(self._named)

    def wait_until(self, place: int | slice, count: int) -> None:
        """Wait until signals have reached a number.

        Raises:
            RunFailure: another rank failed, or the time is over.
        """
        until, pause_s = time.monotonic() + self._timeout_s, _SHORTEST_S
        while np.min(self._signals[place]) < count:
            if self._signals[0]:
                raise RunFailure(
                    f"rank {self._rank} waited in the host's memory for a rank that failed"
                )
            if time.monotonic() > until:
                raise RunFailure(
                    f"rank {self._rank} waited {self._timeout_s:g} s in the host's memory for "
                    f"another rank"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)

    def _meet(self) -> None:
        self._met += 1
        self._signals[1 + self._rank] = self._met
        self.wait_until(self._ranks, self._met)
        _remove(self._named)


class Signal:
    """The moment at which a signal has reached a number; implements `PendingCopy`."""

    def __init__(self, shared: SharedHost, place: int, count: int) -> None:
        self._shared, self._place, self._count = shared, place, count

    def wait(self) -> None:
        """Return at that moment."""
        self._shared.wait_until(self._place, self._count)

    def synchronize(self) -> None:
        """Like `wait`."""
        self.wait()


def _remove(names: list[Path]) -> None:
    while names:
        names.pop().unlink(missing_ok=True)
