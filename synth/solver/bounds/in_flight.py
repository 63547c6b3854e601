"""Closed-form lower bounds from micro-batches in flight.

Each stage copy of the pipeline becomes a delay that F's, and B's, pass in order, and so does each
link between two of them. Where memory has no room for another micro-batch, F waits for a B
(`instance.in_flight`). The longest paths of these precedences are heads and tails of all ops. A
rank runs one op at a time, so it is a machine whose jobs have these heads and tails, and its
preemptive schedule by longest tail bounds the makespan (Carlier 1982, "The one-machine sequencing
problem": Jackson's preemptive schedule).
"""

from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from synth.objective import Spans
from synth.solver.instance.in_flight import InFlightCap, in_flight_caps
from synth.solver.instance.instance import B, F, Instance, W

# By stage copy, a time for each micro-batch.
_Times = list[list[int]]


class _Job(NamedTuple):
    """An op of a rank: its earliest start, its duration, and the least time after its end."""

    head_us: int
    duration_us: int
    tail_us: int


def in_flight_bounds(instance: Instance) -> Spans:
    """Return bounds of the makespan and of the period; 0 where nothing limits what is in flight.

    Args:
        instance: relaxed for fusion.
    """
    return in_flight_bounds_by(instance, range(instance.num_ranks))


def in_flight_bounds_by(instance: Instance, ranks: Collection[int]) -> Spans:
    """Return the same bounds from the ops of some ranks; those of others are delays."""
    caps = in_flight_caps(instance)
    if not caps:
        return Spans(0, 0)
    heads = _Heads(instance, caps)
    makespan_us = _longest(
        instance, ranks, heads, caps, dict.fromkeys(range(instance.num_ranks), 0)
    )
    origins_us = instance.origins_us
    if origins_us is None:
        return Spans(makespan_us, 0)
    origins = dict(enumerate(origins_us))
    return Spans(makespan_us, _longest(instance, ranks, heads, caps, origins))


def _longest(
    instance: Instance,
    ranks: Collection[int],
    heads: "_Heads",
    caps: Iterable[InFlightCap],
    origins_us: Mapping[int, int],
) -> int:
    """Return the largest bound of these ranks; the time of each rank counts from its origin."""
    tails = _LeastTimesAfter(instance, caps, origins_us)
    return max(preemptive_us(_jobs(instance, rank, heads, tails)) for rank in ranks)


def _jobs(instance: Instance, rank: int, heads: "_Heads", tails: "_LeastTimesAfter") -> list[_Job]:
    jobs = []
    for index in instance.held[rank]:
        copy = instance[index]
        own = ((F, heads.forward, tails.forward), (B, heads.backward, tails.backward))
        for kind, head, tail in own:
            each_us = copy.duration_us[kind]
            ends = zip(head[index], tail[index], strict=True)
            jobs += [_Job(before, each_us, after) for before, after in ends]
        after_b_us, left_us = copy.duration_us[B], tails.weight[index]
        jobs += [
            _Job(start + after_b_us, copy.duration_us[W], left_us)
            for start in heads.backward[index]
        ]
    return jobs


def preemptive_us(jobs: Iterable[tuple[int, int, int]]) -> int:
    """Return the length of Jackson's preemptive schedule, the least with preemption.

    Args:
        jobs: head, duration and tail of each.
    """
    coming = list(jobs)
    heapify(coming)
    ready: list[tuple[int, int]] = []
    now_us = longest_us = 0
    while coming or ready:
        if not ready:
            now_us = max(now_us, coming[0][0])
        while coming and coming[0][0] <= now_us:
            _, duration_us, tail_us = heappop(coming)
            heappush(ready, (-tail_us, duration_us))
        minus_tail_us, left_us = heappop(ready)
        run_us = min(left_us, coming[0][0] - now_us) if coming else left_us
        now_us += run_us
        if run_us < left_us:
            heappush(ready, (minus_tail_us, left_us - run_us))
        else:
            longest_us = max(longest_us, now_us - minus_tail_us)
    return longest_us


class _Heads:
    """The earliest start of each F and B by stage copy: longest paths from time 0.

    The values that reach it from the copies above and below arrive one after the other.
    """

    def __init__(self, instance: Instance, caps: Iterable[InFlightCap]) -> None:
        by_copy: dict[int, list[InFlightCap]] = {}
        for cap in caps:
            by_copy.setdefault(cap.copy, []).append(cap)
        self._instance, self._caps = instance, by_copy
        self.forward: _Times = [[] for _ in instance.copies]
        self.backward: _Times = [[] for _ in instance.copies]
        self._activation: _Times = [[] for _ in instance.copies]
        self._gradient: _Times = [[] for _ in instance.copies]
        for k in range(max(copy.num_micro_batches for copy in instance.copies)):
            under_way = [i for i, c in enumerate(instance.copies) if k < c.num_micro_batches]
            # Copies of a replica stand in the order of its stages.
            for index in under_way:
                self.forward[index].append(self._start_of_f(index, k))
            for index in reversed(under_way):
                self.backward[index].append(self._start_of_b(index, k))

    def _start_of_f(self, index: int, k: int) -> int:
        instance, above = self._instance, self._instance[index].above
        start = self.forward[index][k - 1] + instance[index].duration_us[F] if k > 0 else 0
        if above is not None:
            arrival, arrivals = instance.step_down_us(above), self._activation[index]
            arrival += self.forward[above][k]
            if k > 0:
                arrival = max(arrival, arrivals[k - 1] + instance[above].down_apart_us)
            arrivals.append(arrival)
            start = max(start, arrival)
        for cap in self._caps.get(index, ()):
            if k >= cap.most:
                freed = self.backward[cap.freed][k - cap.most]
                start = max(start, freed + instance[cap.freed].duration_us[B])
        return start

    def _start_of_b(self, index: int, k: int) -> int:
        copy = self._instance[index]
        start = self.forward[index][k] + copy.duration_us[F]
        if copy.below is not None:
            of_below, arrivals = self._instance[copy.below].duration_us[B], self._gradient[index]
            arrival = self.backward[copy.below][k] + of_below + copy.up_us
            if k > 0:
                arrival = max(arrival, arrivals[k - 1] + copy.up_apart_us)
            arrivals.append(arrival)
            start = max(start, arrival)
        if k > 0:
            start = max(start, self.backward[index][k - 1] + copy.duration_us[B])
        return start


class _LeastTimesAfter:
    """The least time from the end of each op to the end of any rank, less its origin.

    After B k of a copy its own W's of micro-batches k and later are left, and their rank's STEPs.
    """

    def __init__(
        self, instance: Instance, caps: Iterable[InFlightCap], origins_us: Mapping[int, int]
    ) -> None:
        by_freed: dict[int, list[InFlightCap]] = {}
        for cap in caps:
            by_freed.setdefault(cap.freed, []).append(cap)
        self._instance, self._caps = instance, by_freed
        copies = instance.copies
        self.forward: _Times = [[0] * copy.num_micro_batches for copy in copies]
        self.backward: _Times = [[0] * copy.num_micro_batches for copy in copies]
        # From the arrival of a value from the copy above, or below.
        self._activation: _Times = [[0] * copy.num_micro_batches for copy in copies]
        self._gradient: _Times = [[0] * copy.num_micro_batches for copy in copies]
        self.weight = [instance.step_us(copy.rank) - origins_us[copy.rank] for copy in copies]
        for k in reversed(range(max(copy.num_micro_batches for copy in copies))):
            under_way = [i for i, c in enumerate(copies) if k < c.num_micro_batches]
            for index in under_way:
                self.backward[index][k] = self._after_b(index, k)
                self._gradient[index][k] = self._after_gradient(index, k)
            for index in reversed(under_way):
                self.forward[index][k] = self._after_f(index, k)
                self._activation[index][k] = self._after_activation(index, k)

    def _after_b(self, index: int, k: int) -> int:
        copy = self._instance[index]
        left_us = (copy.num_micro_batches - k) * copy.duration_us[W] + self.weight[index]
        if copy.above is not None:
            way_us = self._instance[copy.above].up_us
            left_us = max(left_us, way_us + self._gradient[copy.above][k])
        if k < copy.last:
            left_us = max(left_us, copy.duration_us[B] + self.backward[index][k + 1])
        for cap in self._caps.get(index, ()):
            later = self._instance[cap.copy]
            if k + cap.most < later.num_micro_batches:
                after_us = self.forward[cap.copy][k + cap.most]
                left_us = max(left_us, later.duration_us[F] + after_us)
        return left_us

    def _after_gradient(self, index: int, k: int) -> int:
        copy = self._instance[index]
        left_us = copy.duration_us[B] + self.backward[index][k]
        if k < copy.last:
            left_us = max(left_us, copy.up_apart_us + self._gradient[index][k + 1])
        return left_us

    def _after_f(self, index: int, k: int) -> int:
        copy = self._instance[index]
        left_us = copy.duration_us[B] + self.backward[index][k]
        if copy.below is not None:
            left_us = max(left_us, copy.down_us + self._activation[copy.below][k])
        if k < copy.last:
            left_us = max(left_us, copy.duration_us[F] + self.forward[index][k + 1])
        return left_us

    def _after_activation(self, index: int, k: int) -> int:
        copy = self._instance[index]
        left_us = copy.duration_us[F] + self.forward[index][k]
        if copy.above is not None and k < copy.last:
            apart_us = self._instance[copy.above].down_apart_us
            left_us = max(left_us, apart_us + self._activation[index][k + 1])
        return left_us
