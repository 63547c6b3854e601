"""Exact memory of programs with boundary buffers, updated only around the ops that moved.

At each position, that is, at each place of a program and after its last op, a rank posts receives,
waits for sends, which frees the sent values, and runs an op, as in `synth.schedule.rank_memory`.
If ops change places between `start` and `end`, the usage changes only from `ahead` positions
before `start` to `behind` positions after `end`.
"""

from collections.abc import Iterator

from synth.solver.evaluate.numbered_orders import NumberedOrders
from synth.solver.evaluate.op_table import NONE, Shared


class ExactMemory:
    """The usage of each rank before each position, above its static bytes.

    Args:
        orders: the programs, which the caller changes before a query.
        headrooms: by rank the cap less the static bytes; None without a limit.
    """

    def __init__(self, orders: NumberedOrders, headrooms: list[int | None]) -> None:
        self.orders, self.headrooms = orders, headrooms
        self.usages: list[list[int]] = [[] for _ in orders.programs]
        # Of these ranks levels depend on more than the ops that moved.
        self._is_whole = [
            bool(orders.table.shared[rank]) or any(rank == t for _, t in orders.crossing[rank])
            for rank in range(len(orders.programs))
        ]
        self._pending: list[tuple[int, int, list[int]]] = []

    def update(self) -> None:
        """Compute all usages anew."""
        for rank in range(len(self.usages)):
            self.usages[rank] = list(self._walk_all(rank))[1::2]

    def peak_bytes(self, rank: int) -> int:
        """Return the peak of a rank above its static bytes."""
        return max(list(self._walk_all(rank))[0::2])

    def try_moved(self, rank: int, start: int, end: int) -> bool:
        """Compute a rank's usages after ops between two places moved, while they keep its cap.

        The caller calls `keep` or `forget` next.

        Returns:
            True if the rank keeps its cap.
        """
        headroom = self.headrooms[rank]
        if headroom is None:
            return True
        if self._is_whole[rank]:
            usages: list[int] = []
            for which, value in enumerate(self._walk_all(rank)):
                if which % 2:
                    usages.append(value)
                elif value > headroom:
                    return False
            self._pending.append((rank, 0, usages))
            return True
        return self._try_between(rank, headroom, start, end)

    def keep(self) -> None:
        """Adopt the usages that `try_moved` has computed since the last call."""
        for rank, first, usages in self._pending:
            end = first + len(usages)
            if end > len(self.orders.programs[rank]):
                self.usages[rank][first:] = usages
            else:
                self.usages[rank][first:end] = usages
        self._pending.clear()

    def forget(self) -> None:
        """Drop the usages that `try_moved` has computed."""
        self._pending.clear()

    def _try_between(self, rank: int, headroom: int, start: int, end: int) -> bool:
        orders, table = self.orders, self.orders.table
        program, ahead, gap = orders.programs[rank], orders.ahead, orders.behind + 1
        received, sent = table.received_bytes, table.sent_bytes
        rise, delta = orders.rise_bytes, orders.delta_bytes
        num_ops = len(program)
        first, last = max(0, start - ahead), min(num_ops, end + gap)
        usage, usages = self.usages[rank][first], []
        for position in range(first, last):
            usages.append(usage)
            if position == 0:
                usage += sum(received[op] for op in program[: ahead + 1])
            elif position + ahead < num_ops:
                usage += received[program[position + ahead]]
            if usage > headroom:
                return False
            if position >= gap:
                usage -= sent[program[position - gap]]
            op = program[position]
            if usage + rise[op] > headroom:
                return False
            usage += delta[op]
        if last == num_ops:
            if usage > headroom:
                return False
            usages.append(usage)
        self._pending.append((rank, first, usages))
        return True

    def _walk_all(self, rank: int) -> Iterator[int]:
        """Yield for each position its peak, then the usage before it."""
        orders, table = self.orders, self.orders.table
        program, gap = orders.programs[rank], orders.behind + 1
        received, waited, ended = self._flows(rank)
        usage = 0
        for position, op in enumerate(program):
            before = usage
            usage += received[position]
            posted = usage
            if position >= gap:
                usage -= table.sent_bytes[program[position - gap]]
            usage -= waited[position]
            yield max(posted, usage + orders.rise_bytes[op])
            yield before
            usage += orders.delta_bytes[op] - ended[position]
        yield usage + received[-1]
        yield usage

    def _flows(self, rank: int) -> tuple[list[int], list[int], list[int]]:
        """Return by position the bytes of receives, and those freed by awaited sends and by ops."""
        orders, table = self.orders, self.orders.table
        program, num_ops = orders.programs[rank], len(orders.programs[rank])
        received, waited, ended = ([0] * (num_ops + 1) for _ in range(3))
        for place, op in enumerate(program):
            sender = table.source[op]
            if sender != NONE:
                post = orders.post[sender]
                if post == NONE:
                    post = max(0, place - orders.ahead)
                received[post] += table.received_bytes[op]
        for value in table.shared[rank]:
            used = self._last_use(value)
            if used == NONE:
                continue
            wait = min(num_ops, orders.place[value.maker] + 1 + orders.behind)
            if value.is_sent and wait > used:
                waited[wait] += value.num_bytes
            else:
                ended[used] += value.num_bytes
        return received, waited, ended

    def _last_use(self, value: Shared) -> int:
        """Return the place of the last reader of a value; a W that BW does is read at its B."""
        orders, number_of = self.orders, self.orders.table.num_micro_batches
        if orders.place[value.maker] == NONE:
            return NONE
        places = (
            orders.place[op] if orders.place[op] != NONE else orders.place[op - number_of]
            for op in value.readers
        )
        return max(orders.place[value.maker], *places)
