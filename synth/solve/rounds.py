"""The repeating round: several micro-batches per period, in exact times.

    rank 0 | F0 F1 .. B0 W0 B1 W1 |        a round of two micro-batches, `start`
    rank 1 |    F0 F1 B0 B1 W0 W1 |        the next two do the same T later, and so on:
           |<--------- T -------->|        ops that are T apart are one op to the model

Under caps below what 1F1B needs, the best schedules repeat bursts and not single micro-batches
(`pattern`). T is fixed in each model, which is then one of feasibility: no op of a rank may overlap
another one on a circle of circumference T, and every precedence, memory's too, is a difference of
two starts and whole T's. Such models are decided in moments, so the shortest T is found by trying.
For ranks that hold one stage, where memory is precedences (`precedences`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise

from ortools.sat.python import cp_model

from synth.kinds import OpKind
from synth.solve.precedences import (
    Alternative,
    Before,
    Requirement,
    asked_by_all,
    requirement,
)
from synth.solve.run_cpsat import decide
from synth.solve.solution import Orders
from synth.solve.view import SPLIT, B, Chunk, F, Slot, View, W

# Micro-batches in a round that are tried, in this order, after as many as fill the memory; models
# have at most so many ops.
_SIZES = (4, 2, 6, 3, 8)
_MOST_OPS = 800

# The search ends when what is left is such a share of the period.
_PRECISION = 0.001

# Of the effort that is left, the least that a size gets; and of a size's, the most for one period,
# until one is found and then: what is neither found nor refuted soon is neither late.
_LEAST_SHARE = 0.7
_SHARE_OF_FIRST = 0.6
_SHARE_OF_ONE = 0.35

# After so many periods in a row that were neither, a size is given up; at once where only another
# size has found one. Just below the shortest found, so many.
_MOST_OPEN = 2
_MOST_OPEN_BELOW = 3

# What it takes to find a round of some ops, about, in terms of `decide`: so much for each pair. A
# period is tried for little more than that, and then thoroughly, if there is time for it: that
# takes up to four times as long where it is easy, and decides most of what else stays open. Where
# ops are many, that grows with them rather than with their pairs. It may take so many times that.
_PAIR_S = 9e-6
_MOST_PAIR_S = 1.5e-5
_THOROUGH_PAIR_S = 3.5e-5
_THOROUGH_OP_S = 0.015
_MOST_TO_FIND = 1.15

# Which period is tried next, from the longest not found on, as a share of the way to the shortest
# found: at first, and when the last one was refuted and none is found yet; when it was refuted
# and one is; when it was neither found nor refuted; when it was found, so much less than the last
# one, but this at least. And thoroughly, where most that are a little too long are found: at first.
_FIRST_WAY = 0.25
_WAY_BETWEEN = 0.5
_FIRST_THOROUGH_WAY = 0.65
_WAY_AFTER_OPEN = 0.6
_LESS_WAY = 0.2
_LEAST_WAY = 0.3

# Until one is found, none is tried that is so many times as long as the longest not found: those
# that are far too long leave too many ways. And where what is too short ends is sharp, so what is
# a little longer than one that was neither found nor refuted is tried next.
_MOST_RISE = 1.25
_RISE_AFTER_OPEN = 0.02


@dataclass(frozen=True)
class Round:
    """When the ops of the first `size` micro-batches start; the next ones do so a period later."""

    starts: dict[tuple[int, Slot], int]
    size: int
    period_us: int

    @property
    def rate_us(self) -> float:
        """The time that each micro-batch takes in the steady state."""
        return self.period_us / self.size

    def orders(self, view: View, first: int = 0) -> Orders:
        """Unroll: for each rank, (chunk, kind) in order, all micro-batches.

        Where ops take no time, their order may not be the one that keeps the caps.

        Args:
            view: whose numbers of micro-batches count.
            first: of the round's micro-batches, the one that begins.
        """
        ordered = []
        for (index,) in view.held:
            ops = []
            for k in range(view[index].num_micro_batches):
                whole, turn = divmod(k + first, self.size)
                for kind in SPLIT:
                    at = self.starts[index, Slot(kind, turn)] + whole * self.period_us
                    ops.append((at, kind.rank_in_chain, k, kind))
            ordered.append(tuple((index, kind) for *_, kind in sorted(ops)))
        return tuple(ordered)


def applies(view: View) -> bool:
    """Whether every rank holds one stage, of one replica."""
    return all(len(held) == 1 for held in view.held) and len(view) == view.num_ranks


def search(
    view: View,
    least_us: float,
    most_us: float,
    seconds: float,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Round]:
    """Rounds of ever shorter periods per micro-batch.

    Args:
        least_us: of each micro-batch; nothing shorter is tried. It may be a guess, no proof.
        most_us: only what takes less for each micro-batch is of use.
        seconds: effort for all of them together, in terms of `decide`.
    """
    sizes, is_found = list(_sizes(view)), False
    refuted_rates_us: dict[int, float] = {}
    least_us = max(1, least_us, *(max(c.work_us, c.down_us, c.up_us) for c in view.chunks))
    for place, size in enumerate(sizes):
        # The first ones find most, and what they do not use is left for the others.
        share = max(_LEAST_SHARE, 1 / (len(sizes) - place))
        if _PAIR_S * _num_ops(view, size) ** 2 > _SHARE_OF_FIRST * share * seconds:
            continue
        narrowing = _Narrowing(
            view, size, share * seconds, seed + place, should_stop, is_rival=is_found
        )
        # A rate that is refuted for a multiple of the size is refuted for the size too: its rounds,
        # repeated, would be rounds of the multiple.
        rates_us = (us for multiple, us in refuted_rates_us.items() if multiple % size == 0)
        shortest_us = max([least_us, *rates_us])
        for found in narrowing.run(math.ceil(size * shortest_us), int(size * most_us)):
            most_us, is_found = min(most_us, found.rate_us), True
            yield found
        refuted_rates_us[size] = narrowing.refuted_us / size
        seconds -= narrowing.spent_s


def _sizes(view: View) -> Iterator[int]:
    """What memory takes at once, if not all, or the largest part that can be modelled; then few."""
    burst = view.most_forwards(0)
    sizes = [*_SIZES]
    if burst < view.chunks[0].num_micro_batches:
        parts = (size for size in range(burst, 1, -1) if burst % size == 0)
        sizes = [*islice((size for size in parts if _is_worth(view, size)), 1), *sizes]
    for size in dict.fromkeys(sizes):
        if _is_worth(view, size):
            yield size


def _is_worth(view: View, size: int) -> bool:
    num_micro_batches = min(chunk.num_micro_batches for chunk in view.chunks)
    return _num_ops(view, size) <= _MOST_OPS and 2 * size <= num_micro_batches


def _num_ops(view: View, size: int) -> int:
    return size * len(view) * len(SPLIT)


@dataclass
class _Narrowing:
    """The shortest period of a round's size that can be found.

    Attributes:
        tried_us: every period that was tried thoroughly.
        refuted_us: the longest period that was refuted; 0 if none was.
        is_rival: whether only what is shorter than a round of another size is of use.
        is_thorough: whether brief tries are over.
    """

    view: View
    size: int
    seconds: float
    seed: int
    should_stop: Callable[[], bool]
    is_rival: bool
    spent_s: float = 0.0
    open_in_a_row: int = 0
    is_found: bool = False
    is_thorough: bool = False
    refuted_us: int = 0
    tried_us: set[int] = field(default_factory=set)

    def run(self, least_us: int, high_us: int) -> Iterator[Round]:
        """Every one found between the two, each shorter than the one before.

        What is far too short is refuted in no time, and what is a little longer than need be found
        soon: it leaves few ways. Long periods leave many, and take longer. So it begins near the
        least. Those that are nearly too short are not refuted in a long time: so what stays open is
        followed by what is longer, and only then, if there is time, looked at thoroughly. The least
        itself, which may have no bubble, comes after what is longer. At last come those just below
        the shortest found: one may be found though one or two that are longer stay open.
        """
        low_us, way = least_us - 1, _FIRST_WAY  # the longest that was not found
        rise_us = (_MOST_RISE - 1) * least_us
        while self.spent_s < self.seconds and not self.should_stop():
            gap_us = high_us - low_us
            is_narrow = gap_us <= max(1, _PRECISION * high_us)
            is_done = is_narrow and (low_us >= least_us or gap_us <= 1)
            is_over = is_done or self.open_in_a_row >= self._most_open
            if is_over or self._is_soon_thorough:
                # Briefly; what that has left open is between what is refuted and what is found.
                floor_us = max(least_us - 1, self.refuted_us)
                is_open_below = floor_us < low_us and high_us - floor_us > 1
                is_of_use = is_open_below or not is_over
                if self.is_thorough or not is_of_use or not self._has_time:
                    break
                self.is_thorough, self.open_in_a_row = True, 0
                low_us, way, is_narrow = floor_us, _FIRST_THOROUGH_WAY, False
            step_us = 0 if is_narrow else min(way * (high_us - low_us), rise_us)
            if self.open_in_a_row and not self.is_found:
                step_us = min(step_us, _RISE_AFTER_OPEN * low_us)
            period_us = low_us + max(1, round(step_us))
            found = self._try(period_us)
            if found is None:
                low_us, way = period_us, self._next_way
                rise_us *= _MOST_RISE
            else:
                high_us, way = period_us, max(_LEAST_WAY, way - _LESS_WAY)
                yield found
        if self.is_thorough and self.is_found:
            yield from self._run_below(least_us, high_us)

    def _run_below(self, least_us: int, high_us: int) -> Iterator[Round]:
        """Those just below the shortest found that have stayed open."""
        period_us, self.open_in_a_row = high_us, 0
        while self._has_time and self.open_in_a_row < _MOST_OPEN_BELOW and not self.should_stop():
            period_us -= max(1, round(_PRECISION * period_us))
            if period_us <= max(least_us - 1, self.refuted_us):
                return
            if period_us not in self.tried_us:
                found = self._try(period_us)
                if found is not None:
                    yield found

    def _try(self, period_us: int) -> Round | None:
        found = self._find(period_us)
        if self.is_thorough:
            self.tried_us.add(period_us)
        self.is_found |= found is not None
        return found

    @property
    def _next_way(self) -> float:
        """After a period that has not been found."""
        if self.open_in_a_row:
            return _WAY_AFTER_OPEN
        return _WAY_BETWEEN if self.is_found or self.is_rival else _FIRST_WAY

    def _find(self, period_us: int) -> Round | None:
        model, left_s = _Model(self.view, self.size, period_us), self.seconds - self.spent_s
        if self.is_thorough:
            each_s = min(left_s, _MOST_TO_FIND * self._thorough_s)
        else:
            share = _SHARE_OF_ONE if self.is_found else _SHARE_OF_FIRST
            each_s = min(left_s, share * self.seconds, _MOST_PAIR_S * self._num_ops**2)
        # Of four seeds three find in seconds what the fourth does not.
        seed = self.seed + self.open_in_a_row
        found, spent_s, is_refuted = model.solve(
            each_s, seed, self.should_stop, is_thorough=self.is_thorough
        )
        self.spent_s += spent_s
        if is_refuted:
            self.refuted_us = max(self.refuted_us, period_us)
        is_open = found is None and not is_refuted
        self.open_in_a_row = self.open_in_a_row + 1 if is_open else 0
        return found

    @property
    def _most_open(self) -> int:
        return 1 if self.is_rival and not self.is_found else _MOST_OPEN

    @property
    def _is_soon_thorough(self) -> bool:
        """Whether brief tries take nearly as long, and a round and what is too short are found."""
        brief_s = _MOST_PAIR_S * self._num_ops**2
        is_between = self.is_found and self.refuted_us > 0 and not self.is_thorough
        return is_between and 2 * brief_s > self._thorough_s and self._has_time

    @property
    def _has_time(self) -> bool:
        """Whether what is left is enough for a thorough try."""
        return self.seconds - self.spent_s >= self._thorough_s

    @property
    def _thorough_s(self) -> float:
        """What a round takes to be found in one, about."""
        ops = self._num_ops
        return min(_THOROUGH_OP_S * ops, _THOROUGH_PAIR_S * ops**2)

    @property
    def _num_ops(self) -> int:
        return _num_ops(self.view, self.size)


class _Model:
    """Starts of one round's ops; those of other rounds are these and whole periods."""

    def __init__(self, view: View, size: int, period_us: int) -> None:
        self.view, self.size, self.period_us = view, size, period_us
        self.cp = cp_model.CpModel()
        trip_us = max(view.head_us) + max(view.round_trip_us)
        self.latest_us = 2 * trip_us + 4 * period_us
        self.start = {
            (index, slot): self.cp.new_int_var(0, self.latest_us, "")
            for index in range(len(view))
            for slot in self._slots
        }
        self.cp.add(self.start[0, Slot(F, 0)] == 0)
        for index in range(len(view)):
            self._add_circle(index)
            self._add_order(index)
            self._add_memory(index)
        self._add_ways()

    @cached_property
    def _slots(self) -> list[Slot]:
        return [Slot(kind, turn) for kind in SPLIT for turn in range(self.size)]

    def _at(self, index: int, slot: Slot) -> cp_model.LinearExprT:
        """The start of any micro-batch's op, those before and after this round too."""
        whole, turn = divmod(slot.microbatch, self.size)
        return self.start[index, Slot(slot.kind, turn)] + whole * self.period_us

    def _add_circle(self, index: int) -> None:
        """Starts, less whole periods, and the same a period later do not overlap."""
        cp, intervals = self.cp, []
        for slot in self._slots:
            duration_us = self.view[index].duration_us[slot.kind]
            whole = cp.new_int_var(0, self.latest_us // self.period_us + 1, "")
            rest = cp.new_int_var(0, self.period_us - 1, "")
            cp.add(self.start[index, slot] == whole * self.period_us + rest)
            for at in (rest, rest + self.period_us):
                intervals.append(cp.new_fixed_size_interval_var(at, duration_us, ""))
        cp.add_no_overlap(intervals)

    def _add_order(self, index: int) -> None:
        """F, B, W of a micro-batch follow each other, and each kind takes them in order."""
        for turn in range(self.size):
            self._precede(index, Before(Slot(F, turn), Slot(B, turn)))
            self._precede(index, Before(Slot(B, turn), Slot(W, turn)))
            for kind in SPLIT:
                self._precede(index, Before(Slot(kind, turn), Slot(kind, turn + 1)))

    def _precede(self, index: int, before: Before) -> cp_model.Constraint:
        first, second = before
        end = self._at(index, first) + self.view[index].duration_us[first.kind]
        return self.cp.add(self._at(index, second) >= end)

    def _add_memory(self, index: int) -> None:
        """What the cap asks of an op in the middle, of every op of the round."""
        chunk = self.view[index]
        for middle, alternatives in _steady_requirements(chunk, self.view.room_of(index)):
            for turn in range(self.size):
                self._require(index, [_moved(a, turn - middle.microbatch) for a in alternatives])

    def _require(self, index: int, alternatives: list[Alternative]) -> None:
        choices = [self.cp.new_bool_var("") for _ in alternatives]
        self.cp.add_bool_or(choices)
        for choice, alternative in zip(choices, alternatives, strict=True):
            for before in alternative:
                self._precede(index, before).only_enforce_if(choice)
        for before in asked_by_all(alternatives) if alternatives else ():
            self._precede(index, before)

    def _add_ways(self) -> None:
        """Activations go down, gradients come up."""
        for index, chunk in enumerate(self.view.chunks):
            if chunk.below is not None:
                self._add_link((index, F), (chunk.below, F), chunk.down_us)
                self._add_link((chunk.below, B), (index, B), chunk.up_us)

    def _add_link(
        self, source: tuple[int, OpKind], target: tuple[int, OpKind], lag_us: int
    ) -> None:
        """Transfers of a link take turns; where ops take longer than they do, that is no limit."""
        duration_us = self.view[source[0]].duration_us[source[1]]
        arrivals: list[cp_model.IntVar] = []
        for turn in range(self.size):
            end = self.start[source[0], Slot(source[1], turn)] + duration_us
            reader = self.start[target[0], Slot(target[1], turn)]
            if lag_us <= duration_us:
                self.cp.add(reader >= end + lag_us)
                continue
            arrivals.append(self.cp.new_int_var(0, 2 * self.latest_us, ""))
            self.cp.add(arrivals[-1] >= end + lag_us)
            self.cp.add(reader >= arrivals[-1])
        for earlier, later in pairwise(arrivals):
            self.cp.add(later >= earlier + lag_us)
        if arrivals:
            self.cp.add(arrivals[0] + self.period_us >= arrivals[-1] + lag_us)

    def solve(
        self,
        seconds: float,
        seed: int,
        should_stop: Callable[[], bool],
        *,
        is_thorough: bool = False,
    ) -> tuple[Round | None, float, bool]:
        """A round, the effort it took, and whether there is none for certain, see `decide`."""
        solver, spent_s, is_refuted = decide(
            self.cp, seconds, seed, should_stop, is_thorough=is_thorough
        )
        if solver is None:
            return None, spent_s, is_refuted
        starts = {key: solver.value(start) for key, start in self.start.items()}
        return Round(starts, self.size, self.period_us), spent_s, False


def _steady_requirements(chunk: Chunk, room_bytes: int | None) -> Iterator[Requirement]:
    """What each kind of op asks where there are as many micro-batches before it as after it.

    No more are under way than there are in all.
    """
    middle = chunk.num_micro_batches
    endless = chunk._replace(num_micro_batches=2 * middle + 1)
    if room_bytes is None:
        return
    for kind in SPLIT:
        asked = requirement(endless, room_bytes, Slot(kind, middle))
        if asked is not None:
            yield asked


def _moved(alternative: Alternative, by: int) -> Alternative:
    """The same for another micro-batch."""
    return tuple(
        Before(*(Slot(slot.kind, slot.microbatch + by) for slot in before))
        for before in alternative
    )
