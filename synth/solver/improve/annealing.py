"""Simulated annealing (Kirkpatrick et al. 1983) over moves of single ops, judged exactly.

The memory models only bracket the exact memory (see `memory_models`), and where boundary buffers
matter the best schedules lie in between. So every order is judged as the verifier and the simulator
would judge it, at the cost of the part that the move changes:

    now  | a  b  c  x |        x moves three places, a few ops at most; or
    then | x  a  b  c |        B j … W j become BW j, or BW j becomes B j W j

A round begins from the best order known with one of the bufferings (`buffering_race`), at a
temperature that falls from a share of the mean op duration to nearly nothing. After each round its
best order is tried with all other bufferings. The effort is counted in ops moved and timed, so a
search is repeatable.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from synth.schedule.model import Buffering, Schedule
from synth.solver.evaluate.evaluate import BUFFERINGS, EvaluatedSchedule, evaluate
from synth.solver.evaluate.exact_memory import ExactMemory
from synth.solver.evaluate.exact_times import ExactTimes
from synth.solver.evaluate.numbered_orders import NumberedOrders
from synth.solver.evaluate.op_table import OpTable
from synth.solver.improve.buffering_race import BufferingRace
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.instance.timing import Programs
from synth.solver.problem import Problem
from synth.solver.tuning import ANNEALING

_TIGHT_BUFFERINGS = tuple(Buffering(*pair) for pair in ANNEALING.tight_bufferings)


class _Start(NamedTuple):
    """An order with its buffering and its value."""

    value_us: int
    schedule: Schedule


class Annealing:
    """The best order known with each buffering, and the rounds that improve them.

    Args:
        problem: with caps.
        seed: the seed of all random choices.
        found_by: the name under which candidates are reported.
    """

    def __init__(self, problem: Problem, seed: int, found_by: str = "local search") -> None:
        self.problem, self.found_by = problem, found_by
        self.rng = random.Random(seed)
        self.table = OpTable(problem)
        self.units_spent = 0
        self._starts: dict[Buffering, _Start] = {}
        self._race = BufferingRace()
        self._yielded_us: int | None = None
        caps = problem.caps_bytes or ()
        self.headrooms: list[int | None] = [
            cap - problem.static_bytes(rank) for rank, cap in enumerate(caps)
        ] or [None] * problem.num_ranks
        self.fusible = [copy.gains_by_fusion for copy in relaxed_memory(problem).copies]

    def add(self, programs: Programs, bufferings: Iterable[Buffering] = ()) -> None:
        """Add an order as a start, with each buffering with which it fits."""
        placement, count = self.problem.placement, self.problem.num_micro_batches
        for buffering in dict.fromkeys((*bufferings, *BUFFERINGS, *_TIGHT_BUFFERINGS)):
            walk = self.walk(Schedule(placement, count, programs, "synth", buffering))
            if walk is not None:
                self._note(walk.value_us, walk.orders.schedule)

    def walk(self, schedule: Schedule) -> "Walk | None":
        """Return a walk from a schedule; None if it may not run."""
        walk = Walk(self.table, schedule, self.headrooms, self.problem, self.rng, self.fusible)
        self.units_spent += self.table.num_ops
        return walk if walk.fits else None

    def _note(self, value_us: int, schedule: Schedule) -> None:
        known = self._starts.get(schedule.buffering)
        if known is None or value_us < known.value_us:
            self._starts[schedule.buffering] = _Start(value_us, schedule)

    @property
    def best(self) -> Schedule | None:
        """The best schedule known."""
        return None if (start := self._best_start) is None else start.schedule

    @property
    def _best_start(self) -> _Start | None:
        return min(self._starts.values(), key=lambda start: start.value_us, default=None)

    def run(
        self, units: float, should_stop: Callable[[], bool], least_us: int = 0
    ) -> Iterator[EvaluatedSchedule]:
        """Yield verified candidates, each better than those before, until effort or time is spent.

        Args:
            units: the effort.
            should_stop: polled every few dozen moves.
            least_us: a lower bound, at which the search ends.
        """
        last = self.units_spent + units
        yield from self._improved()
        while (best := self._best_start) is not None and best.value_us > least_us:
            if self.units_spent >= last or should_stop():
                return
            walk = self.walk(self._next_start().schedule)
            if walk is None:
                return
            self._anneal(walk, last, should_stop)
            found = replace(walk.orders.schedule, programs=walk.best)
            self.add(found.programs, [found.buffering])
            yield from self._improved()

    def _improved(self) -> Iterator[EvaluatedSchedule]:
        """Yield the best schedule known, verified, unless one as good was yielded before.

        A new buffering alone may make an order that was given better than it was.
        """
        best = self._best_start
        if best is None or best.value_us == self._yielded_us:
            return
        self._yielded_us = best.value_us
        candidate = evaluate(self.problem, best.schedule, self.found_by)
        if candidate is not None:
            yield candidate

    def _next_start(self) -> _Start:
        """Return the best start with the buffering whose turn it is."""
        starts = self._starts
        return starts[self._race.next(starts, lambda buffering: starts[buffering].value_us)]

    def _anneal(self, walk: "Walk", last: float, should_stop: Callable[[], bool]) -> None:
        """Run one round."""
        num_ops = sum(map(len, walk.orders.programs))
        moves = round(self._race.moves_per_op * num_ops)
        mean_us = max(1.0, sum(self.table.duration_us) / self.table.num_ops)
        hottest_us = ANNEALING.hottest * mean_us * self.rng.random()
        cooling = (ANNEALING.coldest / ANNEALING.hottest) ** (1 / max(1, moves))
        temperature_us, before = hottest_us, walk.units_spent
        for move in range(moves):
            walk.step(temperature_us)
            temperature_us *= cooling
            if move % ANNEALING.moves_per_look == 0:
                self.units_spent += walk.units_spent - before
                before = walk.units_spent
                if self.units_spent >= last or should_stop():
                    break
        self.units_spent += walk.units_spent - before


class Walk:
    """A walk from order to order, none of which exceeds a cap or deadlocks.

    `best` are the programs of the best order, `best_us` its value; `fits` is False if the first
    schedule may not run.
    """

    def __init__(
        self,
        table: OpTable,
        schedule: Schedule,
        headrooms: list[int | None],
        problem: Problem,
        rng: random.Random,
        fusible: list[bool],
    ) -> None:
        self.table, self.rng = table, rng
        self.fusible, self._has_fusible = fusible, any(fusible)
        self.orders = NumberedOrders(table, schedule)
        self.memory = ExactMemory(self.orders, headrooms)
        self.times = ExactTimes(self.orders, problem.objective)
        value_us = self.times.evaluate()
        self.fits = value_us is not None and all(
            headroom is None or self.memory.peak_bytes(rank) <= headroom
            for rank, headroom in enumerate(headrooms)
        )
        self.times.keep()
        self.memory.update()
        self.value_us = self.best_us = self.times.value_us
        self.best = schedule.programs
        self._num_moves = 0

    @property
    def units_spent(self) -> int:
        """The effort so far."""
        return self.times.num_run + ANNEALING.units_per_move * self._num_moves

    def step(self, temperature_us: float) -> bool:
        """Try a random move; return True if it was made."""
        self._num_moves += 1
        limit_us = self.value_us - temperature_us * math.log(1 - self.rng.random())
        if self._has_fusible and self.rng.random() < ANNEALING.fusion_share:
            return self._fuse_or_split(limit_us)
        rank = self.rng.randrange(len(self.orders.programs))
        num_ops = len(self.orders.programs[rank]) - self.orders.num_steps[rank]
        place = self.rng.randrange(num_ops)
        distance = 1
        if self.rng.random() >= ANNEALING.adjacent_share:
            distance = self.rng.randint(2, ANNEALING.farthest)
        target = self._reach(rank, place, distance if self.rng.random() < 0.5 else -distance)
        return target != place and self.move(rank, place, target, limit_us)

    def _reach(self, rank: int, place: int, distance: int) -> int:
        """Return the place that an op can move to, past ops whose order with it is free."""
        program = self.orders.programs[rank]
        op, sign = program[place], 1 if distance > 0 else -1
        last = len(program) - self.orders.num_steps[rank]
        target = place
        for _ in range(abs(distance)):
            beside = target + sign
            if not 0 <= beside < last:
                break
            other = program[beside]
            if self._keep_order(op, other) if sign > 0 else self._keep_order(other, op):
                break
            target = beside
        return target

    def _keep_order(self, first: int, second: int) -> bool:
        """Return True if two ops of a rank must stay in order: same row, or same micro-batch."""
        count = self.table.num_micro_batches
        row, microbatch = divmod(first, count)
        other_row, other_microbatch = divmod(second, count)
        if row == other_row:
            return True
        if microbatch != other_microbatch:
            return False
        (copy, kind), (other, other_kind) = divmod(row, 3), divmod(other_row, 3)
        if kind == other_kind or kind == 2:
            # F's of a micro-batch run downwards, its B's upwards, its W's in any order.
            return kind != 2 and (kind == 0) == (copy < other) and self._same_replica(copy, other)
        return other_kind > kind and (
            copy == other or (kind == 0 and self._same_replica(copy, other))
        )

    def _same_replica(self, copy: int, other: int) -> bool:
        stages = self.table.num_stages
        return copy // stages == other // stages

    def move(self, rank: int, place: int, target: int, limit_us: float) -> bool:
        """Move an op to another place of its rank if it fits and the value is in the limit."""
        program = self.orders.programs[rank]
        start, end = (place, target + 1) if place < target else (target, place + 1)
        program.insert(target, program.pop(place))
        self._moved(rank, start, end)
        if self._try_memory(rank, start, end):
            value_us = self.times.evaluate_move(rank, start, end)
            if value_us is not None and value_us <= limit_us:
                self._keep(value_us)
                return True
        self.memory.forget()
        program.insert(place, program.pop(target))
        self._moved(rank, start, end)
        return False

    def _moved(self, rank: int, start: int, end: int | None) -> None:
        self.orders.renumber(rank, start, end)
        if self.orders.crossing[rank]:
            self.orders.update_posts(self.orders.crossing[rank])

    def _try_memory(self, rank: int, start: int, end: int) -> bool:
        """Return True if all ranks whose memory depends on a rank's order keep their caps."""
        if not self.memory.try_moved(rank, start, end):
            return False
        others = {target for _, target in self.orders.crossing[rank] if target != rank}
        return all(self.memory.try_moved(other, 0, 0) for other in sorted(others))

    def _keep(self, value_us: int) -> None:
        self.memory.keep()
        self.times.keep()
        self.value_us = value_us
        if value_us < self.best_us:
            self.best_us, self.best = value_us, self.orders.ops()

    def _fuse_or_split(self, limit_us: float) -> bool:
        """Fuse a random B with its W, or split a BW."""
        orders, count = self.orders, self.table.num_micro_batches
        rank = self.rng.randrange(len(orders.programs))
        program = orders.programs[rank]
        op = program[self.rng.randrange(len(program))]
        copy, kind = divmod(self.table.row(op), 3)
        if op >= self.table.num_split or kind != 1 or not self.fusible[copy]:
            return False
        before, was_fused = program.copy(), orders.is_fused[op]
        if was_fused:
            orders.mark_split(op)
            program.insert(orders.place[op] + 1, op + count)
        else:
            program.remove(op + count)
            orders.mark_fused(op)
        self._moved(rank, 0, None)
        if self._try_memory(rank, 0, len(program)):
            value_us = self.times.evaluate()
            if value_us is not None and value_us <= limit_us:
                self._keep(value_us)
                return True
        self.memory.forget()
        program[:] = before
        if was_fused:
            orders.mark_fused(op)
        else:
            orders.mark_split(op)
        self._moved(rank, 0, None)
        return False
