"""Simulated annealing (Kirkpatrick et al. 1983) over moves of single ops, judged exactly.

The memory models only bracket the exact memory (see `memory_models`), and where boundary buffers
matter the best schedules lie in between. So every order is judged as the verifier and the simulator
would judge it, by compiled code (`walk_kernel`):

    now  | a  b  c  x |        x moves three places, a few ops at most; or
    then | x  a  b  c |        B j … W j become BW j, or BW j becomes B j W j

A round begins from the best order known with one of the bufferings (`buffering_race`), at a
temperature that falls from a share of the mean op duration to nearly nothing. After each round its
best order is tried with all other bufferings. Short rounds find the best buffering and improve an
order soon. Where they end, one that takes as long as all of them finds more (notes/solver.md), so
long rounds follow, each twice as long as the one before. The effort is counted in moves, or by
whoever asks for long rounds, so a search is repeatable.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from synth.schedule.model import Buffering, Schedule
from synth.search.clock import Clock
from synth.solver.evaluate.compiled import memory_kernel, time_kernel, walk_kernel
from synth.solver.evaluate.evaluate import BUFFERINGS, EvaluatedSchedule, evaluate
from synth.solver.evaluate.op_table import NONE, OpTable
from synth.solver.evaluate.order_arrays import (
    NUMBERS_PER_MOVE,
    BestPrograms,
    order_arrays,
    programs_of,
)
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


def first_rounds_s(num_ops: int) -> float:
    """Return about how many seconds of annealing gain as much as building blocks."""
    units = ANNEALING.first_rounds * ANNEALING.moves_per_op * num_ops**2
    return units / ANNEALING.units_per_s


class Annealing:
    """The best order known with each buffering, and the rounds that improve them.

    Args:
        problem: with caps.
        seed: the seed of all random choices.
        found_by: the name under which candidates are reported.
        moves_activations: the host's memory may take more activations, or others, than in the
            schedules added; those are without moves to other ranks.
    """

    def __init__(
        self,
        problem: Problem,
        seed: int,
        found_by: str = "local search",
        *,
        moves_activations: bool = False,
    ) -> None:
        self.problem, self.found_by = problem, found_by
        self._host_share = ANNEALING.host_share if moves_activations else 0.0
        self.rng = np.random.default_rng(seed)
        self.table = OpTable(problem)
        self._mean_us = max(1.0, sum(self.table.duration_us) / self.table.num_ops)
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
                self._note(walk.value_us, walk.schedule)

    def walk(self, schedule: Schedule) -> "Walk | None":
        """Return a walk from a schedule; None if it may not run."""
        walk = Walk(self.table, schedule, self.headrooms, self.fusible, self._host_share)
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

    def left_of(
        self, limit_s: float, clock: Clock, units_per_s: float = ANNEALING.units_per_s
    ) -> Callable[[], float]:
        """Return the units that are left of a time that begins now, or of effort, as a function."""
        if clock.is_deterministic:
            last = self.units_spent + limit_s * units_per_s
            return lambda: last - self.units_spent
        end_s = clock.elapsed_s + limit_s
        return lambda: (end_s - clock.elapsed_s) * units_per_s

    def run(
        self, units: float, should_stop: Callable[[], bool], least_us: int = 0
    ) -> Iterator[EvaluatedSchedule]:
        """Yield verified candidates, each better than those before, until effort or time is spent.

        Args:
            should_stop: polled after every `units_per_look` units of effort, about.
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
            found = walk.best
            self.add(found.programs, [found.buffering])
            yield from self._improved()

    def run_long(
        self,
        left: Callable[[], float],
        should_stop: Callable[[], bool],
        rounds: Sequence[tuple[float, float]] = ANNEALING.long_rounds,
    ) -> Iterator[EvaluatedSchedule]:
        """Yield verified candidates of long rounds, each better than those before.

        Args:
            left: the units of effort that are left; the last round has cooled when it is 0.
            should_stop: polled after every `units_per_temperature` units of effort, about.
            rounds: the share of the effort left that each takes, and its first temperature in mean
                op durations.
        """
        yield from self._improved()
        for share, given in rounds:
            hottest = given
            best, effort = self._best_start, share * left()
            walk = None if best is None or effort <= 0 else self.walk(best.schedule)
            if walk is None:
                return
            end = left() - effort
            moves_per_op = effort / self.table.num_ops**2
            if moves_per_op < ANNEALING.moves_per_op_of_heat * hottest:
                hottest = min(hottest, ANNEALING.hottest_of_short)
            done_share = partial(_done_share, left, end, effort)
            yield from self._cool(walk, hottest, done_share, should_stop)

    def _cool(
        self,
        walk: "Walk",
        hottest: float,
        done_share: Callable[[], float],
        should_stop: Callable[[], bool],
    ) -> Iterator[EvaluatedSchedule]:
        """Run one long round; yield what it finds now and then, and at its end.

        Args:
            hottest: the first temperature, in mean op durations.
        """
        looks, factor = 0, ANNEALING.coldest_of_long / hottest
        num_moves = max(1, ANNEALING.units_per_temperature // self.table.num_ops)
        while (done := done_share()) < 1 and not should_stop():
            walk.run(num_moves, hottest * self._mean_us * factor**done, 1.0, self.rng)
            self.units_spent += num_moves * self.table.num_ops
            if done * ANNEALING.looks_of_long >= looks:
                looks += 1
                yield from self._taken(walk)
        yield from self._taken(walk)

    def _taken(self, walk: "Walk") -> Iterator[EvaluatedSchedule]:
        """Yield the best schedule of a walk, with its best buffering, if it is new."""
        if self._yielded_us is None or walk.best_us < self._yielded_us:
            found = walk.best
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
        num_ops = self.table.num_ops
        moves = round(self._race.moves_per_op * num_ops)
        temperature_us = ANNEALING.hottest * self._mean_us * float(self.rng.random())
        cooling = (ANNEALING.coldest / ANNEALING.hottest) ** (1 / max(1, moves))
        at_once = max(1, ANNEALING.units_per_look // num_ops)
        for begin in range(0, moves, at_once):
            count = min(at_once, moves - begin)
            walk.run(count, temperature_us, cooling, self.rng)
            temperature_us *= cooling**count
            self.units_spent += count * num_ops
            if self.units_spent >= last or should_stop():
                break


def _done_share(left: Callable[[], float], end: float, effort: float) -> float:
    """Return the share of an effort that is spent when as much is left as `left` says."""
    return 1 - (left() - end) / effort


class Walk:
    """A walk from order to order, none of which exceeds a cap or deadlocks.

    Attributes:
        value_us: of the order that the walk has reached.
        fits: False if the first schedule may not run.
    """

    def __init__(
        self,
        table: OpTable,
        schedule: Schedule,
        headrooms: list[int | None],
        fusible: list[bool],
        host_share: float = 0.0,
    ) -> None:
        self.table, self.schedule, self._host_share = table, schedule, host_share
        self.arrays = order_arrays(table, schedule, headrooms, fusible)
        self._fusion_share = ANNEALING.fusion_share if any(fusible) else 0.0
        for rank in range(schedule.num_ranks):
            walk_kernel.update_links(self.arrays, rank)
        self.value_us = self.best_us = time_kernel.time_orders(self.arrays)
        self.fits = self.value_us != NONE and memory_kernel.all_fit(self.arrays)
        time_kernel.keep(self.arrays)
        self._best = BestPrograms.of(self.arrays)

    @property
    def now(self) -> Schedule:
        """The schedule that the walk has reached."""
        return replace(self.schedule, programs=programs_of(self.table, self.arrays))

    @property
    def best(self) -> Schedule:
        """The best schedule."""
        return replace(self.schedule, programs=programs_of(self.table, self._best))

    def run(self, num_moves: int, hottest_us: float, cooling: float, rng: Generator) -> int:
        """Try random moves; return how many were made.

        Args:
            hottest_us: the temperature of the first move.
            cooling: its factor from move to move.
        """
        numbers = rng.random((num_moves, NUMBERS_PER_MOVE))
        shares = (self._fusion_share, ANNEALING.adjacent_share, ANNEALING.farthest)
        host = (self._host_share, ANNEALING.stays_share, ANNEALING.most_ahead)
        self.value_us, self.best_us, num_made = walk_kernel.walk(
            self.arrays,
            self._best,
            self.value_us,
            self.best_us,
            (hottest_us, cooling),
            shares,
            host,
            numbers,
        )
        return num_made
