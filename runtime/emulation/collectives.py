"""Collectives of the real size that take at least the plan's time.

The last rank to start, and the previous collective among the same ranks, begin a collective. The
ranks learn the moment of the last start with the bytes themselves: both are the largest of what the
ranks have, by one all-reduce in place.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from synth.schedule.lowering.collectives import Collective, CollectiveKind

from ..execution.weights.share_collectives import ShareCollective
from .emulated_clock import EmulatedClock, after, now_ns
from .emulated_stage import STAMP_BYTES

_INT64_BYTES = 8


def reducible_bytes(num_bytes: int) -> int:
    """The bytes of a buffer that a collective of `num_bytes` bytes uses, at least a time stamp."""
    return max(num_bytes, STAMP_BYTES)


class PacedCollective:
    """A collective in flight; its end is known when its work and those before it have ended."""

    def __init__(
        self,
        collective: Collective,
        stamp: Tensor,
        work: ShareCollective,
        device: EmulatedClock,
        previous: "PacedCollective | None",
    ) -> None:
        self._collective, self._device, self._previous = collective, device, previous
        self._flying: tuple[Tensor, ShareCollective] | None = (stamp, work)
        self._late_ns = 0
        self._end_ns: int | None = None

    def wait(self) -> None:
        """Return once the collective has ended by the device's time.

        Raises:
            RuntimeError: another rank is gone, or the time-out passed.
        """
        asked_ns = now_ns()
        end_ns = self._settle()
        self._device.arrived(end_ns, asked_ns, self._late_ns)

    def _settle(self) -> int:
        if self._end_ns is None:
            before_ns = 0 if self._previous is None else self._previous._settle()
            assert self._flying is not None
            stamp, work = self._flying
            work.wait()
            started_ns, self._late_ns = stamp.tolist()
            self._end_ns = after(max(started_ns, before_ns), self._collective.duration_us)
            # Both hold the buffer, which may be freed from now on.
            self._previous = self._flying = None
        return self._end_ns


class PacedCollectives:
    """Starts the collectives of one rank."""

    def __init__(self, device: EmulatedClock) -> None:
        self._device = device
        self._last: dict[tuple[int, ...], PacedCollective] = {}
        self._latest = dist.AllreduceOptions()
        self._latest.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)

    def start(self, collective: Collective, group: Any, buffer: Tensor) -> PacedCollective:
        """Start a collective among its ranks, in a buffer of bytes whose contents become garbage.

        An all-gather or a reduce-scatter moves half of what an all-reduce does, so it is one over
        half of the buffer.

        Args:
            collective: says the ranks and the time.
            buffer: of `reducible_bytes`.
        """
        words = buffer[: len(buffer) // _INT64_BYTES * _INT64_BYTES].view(torch.int64)
        if collective.kind != CollectiveKind.ALL_REDUCE:
            words = words[: max(len(words) // 2, STAMP_BYTES // _INT64_BYTES)]
        # No view of `words`: `ShareCollective` waits until nothing but itself refers to them.
        stamp = buffer[:STAMP_BYTES].view(torch.int64)
        stamp.numpy()[:] = self._device.now_ns(), self._device.late_ns
        work = ShareCollective(group.allreduce([words], self._latest), words)
        previous = self._last.get(collective.ranks)
        started = PacedCollective(collective, stamp, work, self._device, previous)
        self._last[collective.ranks] = started
        return started
