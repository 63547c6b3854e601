"""Exact times of programs with waits for boundary buffers, updated only where they change.

As in `synth.schedule.simulate` an op waits for the one before it on its rank, for its inputs, and
for the sends that are awaited right before it; a transfer waits for its maker, for the op after
which its receive is posted, and for the transfer before it on its link. Each rank runs as far as it
can and resumes once the op that it waits for has run.

Ops that start before the first changed one are not affected, so only later ones are timed anew.
"""

from bisect import bisect_left
from typing import NamedTuple

from synth.objective import Objective, Spans
from synth.solver.evaluate.numbered_orders import NumberedOrders
from synth.solver.evaluate.op_table import NONE

# Not known yet.
_OPEN = -1


class _Found(NamedTuple):
    """Times after a change: ends by op and by sender, and starts by rank."""

    ends_us: list[int]
    arrivals_us: list[int]
    starts_us: list[list[int]]
    value_us: int


class ExactTimes:
    """The times of all ops and transfers; `num_run` counts ops that were timed.

    Args:
        orders: the programs, which the caller changes before a query.
        objective: the objective that `value_us` is for.
    """

    def __init__(self, orders: NumberedOrders, objective: Objective) -> None:
        self.orders, self.objective = orders, objective
        self.num_run = 0
        num_ops = orders.table.num_ops
        empty: list[list[int]] = [[] for _ in orders.programs]
        self._now = _Found([_OPEN] * num_ops, [_OPEN] * num_ops, empty, 0)
        self._next: _Found | None = None
        self._find_replicated()

    @property
    def value_us(self) -> int:
        """The objective of the programs last kept."""
        return self._now.value_us

    @property
    def ends_us(self) -> list[int]:
        """The end of each op of the programs last kept."""
        return self._now.ends_us

    @property
    def starts_us(self) -> list[list[int]]:
        """The starts of each rank's ops, by place, of the programs last kept."""
        return self._now.starts_us

    @property
    def arrivals_us(self) -> list[int]:
        """The end of each transfer by its sender, of the programs last kept."""
        return self._now.arrivals_us

    def evaluate(self) -> int | None:
        """Return the value of the present programs; None if their ops wait for each other."""
        return self._evaluate_from([0] * len(self.orders.programs))

    def evaluate_move(self, rank: int, start: int, end: int) -> int | None:
        """Return the value after a rank's ops between two places have changed their order."""
        first = start - self.orders.ahead - 1
        starts_us = self._now.starts_us
        if first >= 0:
            changed_us = starts_us[rank][first]
        elif end <= self.orders.ahead:
            changed_us = starts_us[rank][start]
        else:
            return self.evaluate()
        return self._evaluate_from([bisect_left(starts, changed_us) for starts in starts_us])

    def keep(self) -> None:
        """Adopt the times computed last."""
        if self._next is not None:
            self._now, self._next = self._next, None

    def _evaluate_from(self, done: list[int]) -> int | None:
        """Time all ops but the first `done[rank]` of each rank, whose times are unchanged."""
        orders, now = self.orders, self._now
        source = orders.table.source
        ends_us, arrivals_us = now.ends_us.copy(), now.arrivals_us.copy()
        for program, count in zip(orders.programs, done, strict=True):
            for op in program[count:]:
                ends_us[op] = _OPEN
                if source[op] != NONE:
                    arrivals_us[source[op]] = _OPEN
        starts_us = [starts[:count] for starts, count in zip(now.starts_us, done, strict=True)]
        self._next = None
        if not self._run(ends_us, arrivals_us, starts_us):
            return None
        self._run_steps(ends_us, arrivals_us, starts_us)
        value_us = self.objective.value_us(self._spans(ends_us, starts_us))
        self._next = _Found(ends_us, arrivals_us, starts_us, value_us)
        return value_us

    def _run(self, ends_us: list[int], arrivals_us: list[int], starts_us: list[list[int]]) -> bool:
        """Run all ranks as far as their STEPs; False if they wait for each other."""
        orders = self.orders
        table, duration_us = orders.table, orders.duration_us
        source, reader, gap = table.source, table.reader, orders.behind + 1
        waiting: dict[int, list[int]] = {}
        ready = list(range(len(orders.programs)))
        num_left = sum(map(len, orders.programs)) - sum(map(len, starts_us))
        self.num_run += num_left
        num_left -= sum(
            min(steps, len(program) - len(starts))
            for steps, program, starts in zip(
                orders.num_steps, orders.programs, starts_us, strict=True
            )
        )
        while ready:
            rank = ready.pop()
            program, starts = orders.programs[rank], starts_us[rank]
            place, last = len(starts), len(program) - orders.num_steps[rank]
            at = ends_us[program[place - 1]] if place else 0
            arrived = 0
            while place < last:
                op = program[place]
                sent = program[place - gap] if place >= gap else NONE
                if sent >= 0 and reader[sent] < 0:
                    sent = NONE
                for sender in (source[op], sent):
                    if sender < 0:
                        continue
                    arrived = arrivals_us[sender]
                    if arrived < 0:
                        arrived = self._transfer(sender, ends_us, arrivals_us)
                        if arrived < 0:
                            waiting.setdefault(-2 - arrived, []).append(rank)
                            break
                    if arrived > at:
                        at = arrived
                if arrived < 0:
                    break
                starts.append(at)
                at += duration_us[op]
                ends_us[op] = at
                place += 1
                num_left -= 1
                if op in waiting:
                    ready += waiting.pop(op)
        return num_left == 0

    def _transfer(self, sender: int, ends_us: list[int], arrivals_us: list[int]) -> int:
        """Return the end of an op's transfer; if unknown, −2 less the op to wait for."""
        orders, table = self.orders, self.orders.table
        chain = []
        while sender != NONE and arrivals_us[sender] < 0:
            chain.append(sender)
            sender = orders.previous[sender]
        free_us = 0 if sender == NONE else arrivals_us[sender]
        for op in reversed(chain):
            at = ends_us[op]
            if at < 0:
                return -2 - op
            reader = table.reader[op]
            post = orders.post[op]
            if post == NONE:
                post = orders.place[reader] - orders.ahead
            if post > 0:
                posted_us = ends_us[behind := orders.programs[orders.rank_of(reader)][post - 1]]
                if posted_us < 0:
                    return -2 - behind
                at = max(at, posted_us)
            free_us = arrivals_us[op] = max(at, free_us) + table.lag_us[op]
        return free_us

    def _run_steps(
        self, ends_us: list[int], arrivals_us: list[int], starts_us: list[list[int]]
    ) -> None:
        """STEPs end the programs; they wait for the reductions of their stages."""
        orders, table = self.orders, self.orders.table
        reduced_us = self._reductions_us(ends_us)
        gap = orders.behind + 1
        for program, starts in zip(orders.programs, starts_us, strict=True):
            for place in range(len(starts), len(program)):
                op = program[place]
                at = ends_us[program[place - 1]] if place else 0
                if place >= gap and table.reader[sender := program[place - gap]] != NONE:
                    at = max(at, arrivals_us[sender])
                at = max(at, reduced_us.get(table.op(op).stage, 0)) if reduced_us else at
                starts.append(at)
                ends_us[op] = at + orders.duration_us[op]

    def _find_replicated(self) -> None:
        """List the stages that several ranks hold, with these ranks."""
        problem, table = self.orders.table.problem, self.orders.table
        ranks_of = [
            tuple(sorted({ranks[s] for ranks in problem.placement.ranks}))
            for s in range(table.num_stages)
        ]
        self._replicated = [(s, ranks) for s, ranks in enumerate(ranks_of) if len(ranks) > 1]

    def _reductions_us(self, ends_us: list[int]) -> dict[int, int]:
        """Return when the all-reduce of each stage ends; same ranks do theirs in program order."""
        if not self._replicated:
            return {}
        lasts = self._last_backwards()
        place, problem = self.orders.place, self.orders.table.problem
        turns = []
        for stage, ranks in self._replicated:
            ops = [op for op in lasts[stage] if op != NONE]
            after = max((place[op] for op in ops), default=-1)
            ready_us = max((ends_us[op] for op in ops), default=0)
            turns.append((after, stage, ranks, ready_us))
        free_us: dict[tuple[int, ...], int] = {}
        reduced_us = {}
        for _, stage, ranks, ready_us in sorted(turns):
            at = max(ready_us, free_us.get(ranks, 0)) + problem.reduction_us(stage)
            reduced_us[stage] = free_us[ranks] = at
        return reduced_us

    def _last_backwards(self) -> dict[int, list[int]]:
        """Return for each stage the last W or BW of every copy."""
        orders, table = self.orders, self.orders.table
        lasts: dict[int, list[int]] = {stage: [] for stage in range(table.num_stages)}
        seen = set()
        for program in orders.programs:
            for op in reversed(program):
                copy, kind = divmod(table.row(op), 3)
                ends = kind == 2 or (kind == 1 and orders.is_fused[op])
                if op < table.num_split and ends and copy not in seen:
                    seen.add(copy)
                    lasts[copy % table.num_stages].append(op)
        return lasts

    def _spans(self, ends_us: list[int], starts_us: list[list[int]]) -> Spans:
        programs = self.orders.programs
        return Spans.of_ranks(
            (starts[0], ends_us[program[-1]])
            for program, starts in zip(programs, starts_us, strict=True)
        )
