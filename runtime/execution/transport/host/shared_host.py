"""Host memory that the ranks of one machine share: named blocks, and signals from rank to rank.

    block     a file that ranks map, each when it needs it; the same name is the same memory
    signal    a counter in such a block: the step in which a value was left there

A rank waits for a signal by reading it again and again, so that no message is needed. Ranks meet
where a step begins and where it ends: whatever one of them left before, the others find then, and
nobody uses it any more when it is overwritten. Names of blocks are removed once all ranks have
mapped them (those of stages before the first step, those of values at the end of the step that
maps them), so that the system frees the memory however the ranks end after that. A rank that fails
removes the names that are left; `block_names` is about ranks that are all killed before that.
Signals rely on stores that other processors see in their order, as on x86.
"""

import ctypes
import errno
import mmap
import os
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from synth.errors import RunFailure, SynthError
from synth.schedule.ops import Value

from ...base.boundary import Tensors
from ..rank_group import RankGroup
from .block_names import (
    make_block,
    new_prefix,
    open_block,
    remove_blocks,
    remove_leftovers,
    shared_folder,
)
from .copy_lane import Lane, PendingCopy, ThreadLane
from .host_memory import HostMemory

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_SHORTEST_S, _LONGEST_S = 2e-5, 1e-3
# Interval between two looks at the processes of other ranks while this one waits for them.
_LOOK_S = 0.25

FindEnded = Callable[[Collection[int] | None], str | None]
"""Names one of some ranks (None: of all) whose process has ended; returns None if there is none."""


def _none_ended(ranks: Collection[int] | None) -> str | None:
    return None


class SharedHost:
    """One rank's view of the memory that it shares with the other ranks of its pipeline."""

    def __init__(
        self,
        prefix: str,
        rank: int,
        num_ranks: int,
        values: Sequence[Value],
        timeout_s: float,
        find_ended: FindEnded = _none_ended,
    ) -> None:
        """Map the signals.

        Args:
            prefix: of the paths of blocks, the same on all ranks.
            num_ranks: that share the memory.
            values: all that ranks leave there in a step, in the same order on every rank.
            timeout_s: the longest that this rank waits for another one.
            find_ended: asked again and again while this rank waits.
        """
        self._prefix, self._rank, self._timeout_s = prefix, rank, timeout_s
        self._find_ended = find_ended
        self._named: list[Path] = []
        weakref.finalize(self, _remove, self._named)
        self._blocks: dict[Value, Tensor] = {}
        self._met, self._step = 0, 0
        self._ranks = slice(1, 1 + num_ranks)
        self._places = {value: self._ranks.stop + place for place, value in enumerate(values)}
        count = self._ranks.stop + len(values)
        self._signals = self.block("signals", 8 * count).numpy().view(np.int64)

    @classmethod
    def among(cls, group: RankGroup, values: Sequence[Value], timeout_s: float) -> Self:
        """Share memory among the ranks of a pipeline; all of them call this.

        Raises:
            SynthError: they do not see the same memory.
        """
        within = shared_folder()
        remove_leftovers(within)
        prefix = group.share(new_prefix(within), 0)
        if not _all_see(group, Path(f"{prefix}probe")):
            raise SynthError(
                f"stages go to all ranks from the host's memory in this schedule, so that all "
                f"ranks need the same {within}; run them on one machine, in one container, or take "
                f"a schedule such as mobius"
            )
        shared = cls(
            prefix, group.rank, group.size, values, timeout_s, find_ended=group.rendezvous.ended
        )
        group.on_abort(shared.fail)
        group.gather("mapped")  # a rank that fails from here on finds all others at its signals
        return shared

    def block(self, name: str, num_bytes: int) -> Tensor:
        """A block of bytes, zeros at first.

        Raises:
            SynthError: there is no room for it, or it cannot be mapped.
        """
        size, path = max(1, num_bytes), Path(f"{self._prefix}{name}")
        try:
            file = open_block(path)
            self._named.append(path)
            try:
                os.posix_fallocate(file, 0, size)
                return _mapped(file, size)[:num_bytes]
            finally:
                os.close(file)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise SynthError(
                    f"{path.parent} cannot give {num_bytes:,} bytes that all ranks share: "
                    f"{error.strerror}; take a schedule such as mobius"
                ) from error
            raise SynthError(
                f"{path.parent} has no room for {num_bytes:,} bytes that all ranks share; enlarge "
                f"it, or take a schedule such as mobius"
            ) from error

    def allocator(self, name: str) -> HostMemory:
        """Allocates blocks of a name, which are the same on ranks that ask for the same ones."""
        numbers = iter(range(1 << 30))
        return lambda num_bytes: self.block(f"{name}-{next(numbers)}", num_bytes)

    def parts(self, value: Value, sizes: Sequence[int]) -> Tensors:
        """The memory of a value, in parts of as many bytes each.

        It is mapped anew where a step needs more of it than the steps before, on all its ranks.
        """
        total, held = sum(sizes), self._blocks.get(value)
        if held is None or len(held) < total:
            name = f"{value.kind}-{value.stage}-{value.microbatch}-{value.replica}-{total}"
            held = self._blocks[value] = self.block(name, total)
        return torch.split(held[:total], list(sizes))

    def forget_names(self) -> None:
        """Remove the names of blocks that all ranks have mapped."""
        _remove(self._named)

    def begin(self) -> None:
        """Begin a step, once all ranks have."""
        self._step += 1
        self._meet()

    def end(self) -> None:
        """End a step, once all ranks have."""
        self._meet()

    def leave(self, lane: Lane, sources: Tensors, targets: Tensors, value: Value) -> PendingCopy:
        """Start copying a value to its memory; its signal follows."""
        assert isinstance(lane, ThreadLane), "ranks on CUDA do not share the host's memory"
        return lane.copy(sources, targets, None, then=partial(self._mark, value, self._step))

    def _mark(self, value: Value, step: int) -> None:
        self._signals[self._places[value]] = step

    def ready(self, value: Value) -> "Signal":
        """The moment at which a value of this step is there."""
        return Signal(self, self._places[value], self._step)

    def fail(self) -> None:
        """End the waits of all ranks, because this one has failed."""
        self._signals[0] = 1
        remove_blocks(self._prefix)

    def wait_until(self, place: int | slice, count: int) -> None:
        """Wait until signals have reached a number.

        Raises:
            RunFailure: another rank failed, or its process has ended, or the time is over.
        """
        began, pause_s = time.monotonic(), _SHORTEST_S
        until, look_at = began + self._timeout_s, began + _LOOK_S
        while np.min(self._signals[place]) < count:
            if self._signals[0]:
                raise RunFailure(
                    f"rank {self._rank} waited in the host's memory for a rank that failed"
                )
            now = time.monotonic()
            if now > look_at:
                self._check_processes(place, count)
                look_at = now + _LOOK_S
            if now > until:
                raise RunFailure(
                    f"rank {self._rank} waited {self._timeout_s:g} s in the host's memory for "
                    f"another rank"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)

    def _check_processes(self, place: int | slice, count: int) -> None:
        """Refuse to wait for a rank whose process has ended.

        A rank that ends after its last step has reached the signals of all ranks there, and any
        value of a step comes from a rank that has not ended.
        """
        missing = None
        if isinstance(place, slice):
            missing = np.flatnonzero(self._signals[place] < count).tolist()
        ended = self._find_ended(missing)
        if ended is not None and np.min(self._signals[place]) < count:
            raise RunFailure(f"rank {self._rank} waited in the host's memory, and {ended}")

    def _meet(self) -> None:
        self._met += 1
        self._signals[1 + self._rank] = self._met
        self.wait_until(self._ranks, self._met)
        self.forget_names()


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


def _all_see(group: RankGroup, probe: Path) -> bool:
    """True if a file that the first rank makes is there for all ranks."""
    if group.rank == 0:
        os.close(make_block(probe))
    group.gather("made")
    seen = group.gather(probe.exists())
    if group.rank == 0:
        probe.unlink(missing_ok=True)
    return all(seen)


def _mapped(file: int, size: int) -> Tensor:
    """Map a file as bytes. Unlike `mmap.mmap` this keeps no descriptor, of which there are few."""
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _LIBC.mmap(None, size, access, mmap.MAP_SHARED, file, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    memory = (ctypes.c_ubyte * size).from_address(address)
    # At exit the system unmaps it; threads may still read then.
    weakref.finalize(memory, _LIBC.munmap, address, size).atexit = False
    return torch.from_numpy(np.frombuffer(memoryview(memory), np.uint8))
