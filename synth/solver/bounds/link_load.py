"""Closed-form lower bounds from the load of a link.

A link carries one transfer at a time, so it is a machine whose jobs have heads and tails (Carlier
1982): the head of a transfer is the earliest end of the op that makes its value, and its tail the
least time from its arrival to the end of the schedule. For any set of transfers, the least head,
the sum of their times and the least tail bound the makespan.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from synth.objective import Spans
from synth.solver.instance.instance import B, F, Instance, W

# From one rank to another.
_Link = tuple[int, int]


class _Transfers(NamedTuple):
    """The transfers of all micro-batches between two stage copies, one way.

    Attributes:
        head_us: the earliest start of the first one.
        begun_us: the least time from the start of the sending rank to that of the first one.
        is_forward: True for activations, False for gradients.
    """

    load_us: int
    head_us: int
    begun_us: int
    reader: int
    is_forward: bool


def link_bounds(instance: Instance) -> Spans:
    """Return bounds of the makespan and of the period; 0 without transfers between ranks.

    Args:
        instance: relaxed for fusion.
    """
    by_link = _transfers(instance)
    ranks = range(instance.num_ranks)
    makespan_us = _longest(instance, by_link.values(), dict.fromkeys(ranks, 0))
    origins_us = instance.origins_us
    if origins_us is not None:
        period_us = _longest(instance, by_link.values(), dict(enumerate(origins_us)))
    else:
        period_us = max((_period_of(instance, *link) for link in by_link.items()), default=0)
    return Spans(makespan_us, period_us)


def spaced_bounds(instance: Instance, copy: int, each_us: int) -> Spans:
    """Return bounds by the values that pass between a stage copy and the one below it, one way.

    Args:
        instance: relaxed for fusion, with fixed origins.
        each_us: the least time between two of them, such as that of a transfer.
    """
    one = instance[copy]
    head_us, wait_us = instance.head_us[copy], (one.num_micro_batches - 1) * each_us
    way_us = one.duration_us[F] + instance.round_trip_us[copy]
    origins_us = dict(enumerate(instance.origins_us or ()))
    of_both = (dict.fromkeys(origins_us, 0), origins_us)
    tails = (_Tails(instance, origins).of_gradient(copy) for origins in of_both)
    return Spans(*(head_us + way_us + wait_us + tail for tail in tails))


def _transfers(instance: Instance) -> dict[_Link, list[_Transfers]]:
    by_link: dict[_Link, list[_Transfers]] = defaultdict(list)
    for index, copy in enumerate(instance.copies):
        forward_us = copy.duration_us[F]
        backward_us = forward_us + instance.round_trip_us[index] + copy.duration_us[B]
        ways = [(copy.below, copy.down_apart_us, forward_us, True)]
        if copy.above is not None:
            ways.append((copy.above, instance[copy.above].up_apart_us, backward_us, False))
        for reader, each_us, begun_us, is_forward in ways:
            if reader is None or instance[reader].rank == copy.rank:
                continue
            load_us, head_us = copy.num_micro_batches * each_us, instance.head_us[index] + begun_us
            one = _Transfers(load_us, head_us, begun_us, reader, is_forward)
            by_link[copy.rank, instance[reader].rank].append(one)
    return by_link


def _longest(
    instance: Instance, links: Iterable[list[_Transfers]], origins_us: Mapping[int, int]
) -> int:
    """Return the largest bound of all links; the time of each rank counts from its origin."""
    tails = _Tails(instance, origins_us)
    each = (_one_machine((t.head_us, t.load_us, tails.of(t)) for t in link) for link in links)
    return max(each, default=0)


def _period_of(instance: Instance, link: _Link, transfers: list[_Transfers]) -> int:
    """Return the bound of the period of the rank that sends, wherever its time begins."""
    tails = _Tails(instance, {link[0]: 0})
    known = [t for t in transfers if tails.of(t) >= 0]
    return _one_machine((t.begun_us, t.load_us, tails.of(t)) for t in known)


def _one_machine(jobs: Iterable[tuple[int, int, int]]) -> int:
    """Return the bound of Carlier from the (head, load, tail) of all jobs."""
    longest_tails_first = sorted(jobs, key=lambda job: -job[2])

    def bounds() -> Iterator[int]:
        for least_head in {head for head, _, _ in longest_tails_first}:
            sum_us = 0
            for head, load, tail in longest_tails_first:
                if head >= least_head:
                    sum_us += load
                    yield least_head + sum_us + tail

    return max(bounds(), default=0)


class _Tails:
    """The least time from the arrival of a value to the end of any rank, less its origin."""

    _NONE = -(10**18)

    def __init__(self, instance: Instance, origins_us: Mapping[int, int]) -> None:
        self._instance = instance
        # By copy, from the arrival of a gradient.
        self._gradient: dict[int, int] = {}
        for index in sorted(range(len(instance)), key=lambda i: instance[i].stage):
            copy = instance[index]
            tail = self._NONE
            if copy.rank in origins_us:
                left_us = copy.duration_us[W] + instance.step_us(copy.rank)
                tail = left_us - origins_us[copy.rank]
            if copy.above is not None:
                tail = max(tail, instance[copy.above].up_us + self._gradient[copy.above])
            self._gradient[index] = copy.duration_us[B] + tail

    def of_gradient(self, copy: int) -> int:
        """Return the tail of a gradient that arrives at a copy."""
        return self._gradient[copy]

    def of(self, transfers: _Transfers) -> int:
        """Return the tail of each transfer."""
        reader, tail = transfers.reader, self._gradient[transfers.reader]
        if not transfers.is_forward:
            return tail
        copy = self._instance[reader]
        return copy.duration_us[F] + self._instance.round_trip_us[reader] + tail
