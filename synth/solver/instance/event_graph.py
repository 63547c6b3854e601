"""The ops of an instance by number: durations, transfers and earliest start times."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.solver.instance.instance import BW, SPLIT, B, F, Instance, Node, OpIndex, W

# Stands for no op, no link, or no time yet.
NONE = -1


class CyclicOrders(Exception):
    """Orders whose ops wait for each other."""


class Started(NamedTuple):
    """Start times of the ops of some orders by number, 0 for other ops, and a sequence of them.

    In the sequence each op follows those before it on its rank, and the op whose output it reads.
    """

    starts: list[int]
    sequence: list[int]


class Graph:
    """F, B and W of all stage copies, numbered by copy, then by kind, then by micro-batch.

    Attributes:
        first: by (copy, kind), the number of its first op.
        nodes: by op, its copy and its index there.
        rank: by op, its rank.
        duration_us: by op, its duration.
        delta_bytes: by op, the lasting change of its rank's memory usage.
        reader: by op, the op that waits for its output, or `NONE`.
        source: by op, the op of another copy whose output it reads, or `NONE`.
        lag_us: by op, from its end to the earliest start of its reader: the time of the transfer,
            less `lead_us`.
        lead_us: by op, the first part of its reader, which does not wait for the transfer.
        link: by op, the link of that transfer, `NONE` within a rank.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.first: dict[tuple[int, OpKind], int] = {}
        self.nodes: list[Node] = []
        self.rank: list[int] = []
        self.duration_us: list[int] = []
        self.delta_bytes: list[int] = []
        for index, copy in enumerate(instance.copies):
            count = copy.num_micro_batches
            for kind in SPLIT:
                self.first[index, kind] = len(self.nodes)
                self.nodes += [(index, OpIndex(kind, k)) for k in range(count)]
                self.rank += [copy.rank] * count
                self.duration_us += [copy.duration_us[kind]] * count
                self.delta_bytes += [copy.delta_bytes[kind]] * count
        self.reader = [NONE] * len(self.nodes)
        self.source = [NONE] * len(self.nodes)
        self.lag_us = [0] * len(self.nodes)
        self.lead_us = [0] * len(self.nodes)
        self.link = [NONE] * len(self.nodes)
        self._links: dict[tuple[int, int], int] = {}
        for index in range(len(instance)):
            self._connect(index)
        # Arrival of the input of each op: unknown yet, or 0 if it has no input.
        readers = set(self.reader)
        self._arrivals = [NONE if op in readers else 0 for op in range(len(self.nodes))]

    def _connect(self, index: int) -> None:
        """Connect a copy's F's to the copy below or to its own B's, its B's to the copy above."""
        copy = self.instance[index]
        if copy.below is None:
            self._hand_on((index, F), (index, B), 0)
        else:
            self._hand_on((index, F), (copy.below, F), copy.down_us)
        if copy.above is not None:
            self._hand_on((index, B), (copy.above, B), self.instance[copy.above].up_us)

    def _hand_on(self, made: tuple[int, OpKind], read: tuple[int, OpKind], lag_us: int) -> None:
        maker, reader = self.instance[made[0]], self.instance[read[0]]
        count = maker.num_micro_batches
        these = slice(self.first[made], self.first[made] + count)
        those = slice(self.first[read], self.first[read] + count)
        self.reader[these] = range(those.start, those.stop)
        if made[0] != read[0]:
            self.source[those] = range(these.start, these.stop)
        if maker.rank != reader.rank:
            link = self._links.setdefault((maker.rank, reader.rank), len(self._links))
            self.link[these] = [link] * count
            self.lag_us[these] = [lag_us] * count
            if made[1] == B:
                self.lead_us[these] = [reader.lead_us] * count

    def number(self, node: Node) -> int:
        """Return the number of an op."""
        copy, (kind, k) = node
        return self.first[copy, kind] + k

    def numbered(
        self, order: Iterable[tuple[int, OpKind]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Number an order of (copy, kind); BW gets the number of its B.

        Returns:
            The numbers, and the (B, W) that each BW fuses.
        """
        following = dict(self.first)
        ops: list[int] = []
        fused: list[tuple[int, int]] = []
        for copy, kind in order:
            at = copy, B if kind == BW else kind
            op = following[at]
            ops.append(op)
            following[at] = op + 1
            if kind == BW:
                fused.append((op, following[copy, W]))
                following[copy, W] += 1
        return ops, fused

    def last(self, copy: int, kind: OpKind) -> int:
        """Return the number of a copy's last op of a kind."""
        return self.first[copy, kind] + self.instance[copy].last

    def following(self, number: int) -> Iterator[int]:
        """Yield the ops that always follow on its copy: its next kind, the next of its kind."""
        copy, (kind, k) = self.nodes[number]
        count = self.instance[copy].num_micro_batches
        if kind != W:
            yield number + count
        if k + 1 < count:
            yield number + 1

    def start(
        self, orders: Sequence[Sequence[int]], duration_us: Sequence[int] | None = None
    ) -> Started:
        """Start each op as early as its rank's order, its input and the links allow.

        A link serves one transfer at a time.

        Args:
            orders: the ops of each rank; ops in no order are left out.
            duration_us: by op, instead of the instance's durations.

        Raises:
            CyclicOrders: ops wait for each other.
        """
        durations = self.duration_us if duration_us is None else duration_us
        readers, links, lags_us, ranks = self.reader, self.link, self.lag_us, self.rank
        leads_us = self.lead_us
        arrivals = self._arrivals.copy()
        starts = [0] * len(arrivals)
        sequence: list[int] = []
        waiting = [iter(order) for order in orders]
        awaited = [next(order, NONE) for order in waiting]
        free_us, link_free_us = [0] * len(orders), [0] * len(self._links)
        ready = list(range(len(orders)))
        while ready:
            rank = ready.pop()
            op, at = awaited[rank], free_us[rank]
            while op != NONE and (arrival := arrivals[op]) != NONE:
                starts[op] = at = arrival if arrival > at else at
                sequence.append(op)
                at += durations[op]
                reader, link = readers[op], links[op]
                if link != NONE:
                    free = link_free_us[link]
                    arrivals[reader] = there = (free if free > at else at) + lags_us[op]
                    link_free_us[link] = there + leads_us[op]
                    if awaited[ranks[reader]] == reader:
                        ready.append(ranks[reader])
                elif reader != NONE:
                    arrivals[reader] = at
                op = next(waiting[rank], NONE)
            awaited[rank], free_us[rank] = op, at
        if any(op != NONE for op in awaited):
            raise CyclicOrders
        return Started(starts, sequence)
