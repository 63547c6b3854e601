"""Sums of gradients of the real size among the ranks that hold copies of a stage."""

from collections import defaultdict
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from synth.schedule.lowering.collectives import Collective
from synth.schedule.lowering.lower import Lowered

from ..execution.core.clock import OpClock
from ..execution.transport.groups import Group
from .device_time import DeviceTime, after, now_ns


class _Working(NamedTuple):
    """A reduction in flight; `latest_ns` holds the last rank's start and the largest lateness."""

    reduction: Collective
    latest_ns: Tensor
    works: list[dist.Work]


class EmulatedReducer:
    """One rank's part of all reductions, each of which takes at least the plan's time."""

    def __init__(self, lowered: Lowered, group: Group, clock: OpClock, device: DeviceTime) -> None:
        """Make the process groups; every rank calls this at the same time."""
        self._clock = clock
        self._device = device
        sets = sorted({reduction.ranks for reduction in lowered.collectives})
        self._groups = {ranks: group.subgroup(ranks) for ranks in sets}
        self._gradients = {
            r.stage: torch.zeros(r.num_bytes, dtype=torch.uint8)
            for r in lowered.collectives
            if group.rank in r.ranks
        }
        self._latest_ns = {s: torch.zeros(2, dtype=torch.int64) for s in self._gradients}
        self._working: list[_Working] = []
        self._latest = dist.AllreduceOptions()
        self._latest.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)

    def start(self, reduction: Collective) -> None:
        """Start a reduction among its ranks."""
        self._clock.ready(reduction)
        handle = self._groups[reduction.ranks]
        latest_ns = self._latest_ns[reduction.stage]
        latest_ns.numpy()[:] = self._device.now_ns(), self._device.late_ns
        works = [
            handle.allreduce([latest_ns], self._latest),
            handle.allreduce([self._gradients[reduction.stage]]),
        ]
        self._working.append(_Working(reduction, latest_ns, works))

    def finish(self) -> None:
        """Wait for all reductions, those among the same ranks one after another."""
        until_ns: defaultdict[tuple[int, ...], int] = defaultdict(int)
        for reduction, latest_ns, works in self._working:
            asked_ns = now_ns()
            with self._clock.wait(reduction):
                for work in works:
                    work.wait()
                started_ns, late_ns = latest_ns.tolist()
                start_ns = max(started_ns, until_ns[reduction.ranks])
                until_ns[reduction.ranks] = after(start_ns, reduction.duration_us)
                self._device.arrived(until_ns[reduction.ranks], asked_ns, late_ns)
        self._working.clear()

    def finish_update(self, stage: int) -> None:
        """See `Reducer`; schedules with updates between their ops are not emulated."""
        raise NotImplementedError
