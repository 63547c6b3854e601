"""The choice of a rank's offloads for a given order and clock.

A micro-batch of a stage frees memory from the wait behind its O until its L:

    place      f       o          w                l              b
    rank       F  …  O op …       op …          L  op …           B or BW
    out              [== t ==]                                        on a link of its own
    back                                        [== t ==]             on another one
    freed                         ├────────────────┤

By the clock, moves on a link follow each other, a move out ends before the op at w starts, and a
move back before B does. Then the ops keep their times. So a rank chooses intervals of memory, whose
two moves are jobs on two machines. As in paging and in register allocation, the first place at
which memory is exceeded takes the interval whose next use is farthest (Belady 1966, "A study of
replacement algorithms for a virtual-storage computer"). For intervals of one size alone, without
links, that needs the fewest (Carlisle and Lloyd 1995, "On the k-coloring of intervals").
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from synth.costs.costs import IntArray
from synth.op_kinds import OpKind
from synth.plan.tuning import OFFLOAD
from synth.schedule.ops import Op


class RankClock(NamedTuple):
    """A rank's ops without moves, with their starts and ends in µs."""

    ops: Sequence[Op]
    starts_us: Sequence[int]
    ends_us: Sequence[int]

    def delayed(self, place: int, by_us: int) -> "RankClock":
        """Return the clock with an op later, and those behind it that it delays."""
        starts, ends = list(self.starts_us), list(self.ends_us)
        free_us = starts[place] + by_us if place < len(starts) else 0
        while place < len(starts) and starts[place] < free_us:
            starts[place], ends[place] = free_us, ends[place] - starts[place] + free_us
            free_us, place = ends[place], place + 1
        return RankClock(self.ops, starts, ends)

    def shifted(self, place: int, by_us: int) -> "RankClock":
        """Return the clock with all ops from a place on later."""
        starts, ends = (
            [*us[:place], *(at + by_us for at in us[place:])]
            for us in (self.starts_us, self.ends_us)
        )
        return RankClock(self.ops, starts, ends)


class RankLevels(NamedTuple):
    """A rank's memory in bytes above its limit, by place; negative where there is room.

    `waiting` is before the op, with its receives posted, `running` while it runs. Both have a last
    place behind all ops.
    """

    waiting: IntArray
    running: IntArray


class Interval(NamedTuple):
    """A micro-batch of a stage that may move: the places of its F and its B, bytes and time."""

    forward: int
    backward: int
    num_bytes: int
    transfer_us: int


class MovePlaces(NamedTuple):
    """The places of the ops before which O, the wait for it and L stand."""

    offload: int
    wait: int
    reload: int


def intervals_of(
    ops: Sequence[Op], num_bytes: Sequence[int], transfer_us: Sequence[int]
) -> list[Interval]:
    """Return what may move, by B; not what R rebuilds.

    Args:
        ops: of the rank, without moves.
        num_bytes: saved by each stage.
        transfer_us: of that to the host, and back.
    """
    forwards = {op[1:]: place for place, op in enumerate(ops) if op.kind == OpKind.F}
    rebuilt = {op[1:] for op in ops if op.kind == OpKind.R}
    return [
        Interval(forwards[op[1:]], place, num_bytes[op.stage], transfer_us[op.stage])
        for place, op in enumerate(ops)
        if op.kind in (OpKind.B, OpKind.BW) and op[1:] not in rebuilt and num_bytes[op.stage]
    ]


def choose_moves(
    clock: RankClock,
    levels: RankLevels,
    intervals: Sequence[Interval],
    send_behind: int,
    most_us: float = math.inf,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[Interval, MovePlaces] | None:
    """Choose moves by which a rank keeps its limit; None: none were found.

    Where none free enough, the op there is delayed, until moves out have ended, and those behind
    it, which wait for moves back.

    Args:
        levels: without moves.
        intervals: what may move, by B.
        send_behind: ops between O and the wait for it.
        most_us: the time of the rank from its first op to its last, above which it ends without.
        should_stop: polled before each delay.
    """
    return _RankChoice(clock, levels, intervals, send_behind).run(most_us, should_stop)


class _RankChoice:
    """The moves chosen so far, and the levels with them, by a clock that is delayed on the way."""

    def __init__(
        self,
        clock: RankClock,
        levels: RankLevels,
        intervals: Sequence[Interval],
        send_behind: int,
    ) -> None:
        self.intervals, self.given, self.levels = intervals, levels, levels
        self.send_behind, self.links = send_behind, _Links(clock, send_behind)
        self.chosen: dict[Interval, MovePlaces] = {}
        longest_us = max((one.transfer_us for one in intervals), default=0)
        self.step_us = -(-longest_us // OFFLOAD.delays_of_move)
        self.delays_left = OFFLOAD.delays_of_each * (len(intervals) + 1)

    def run(
        self, most_us: float, should_stop: Callable[[], bool]
    ) -> dict[Interval, MovePlaces] | None:
        """Choose until every place is within the limit."""
        while True:
            waiting, running = self.levels
            over = ((waiting > 0) | (running > 0)).nonzero()[0]
            if not len(over):
                return self.chosen
            place = int(over[0])
            last_wait = place - bool(waiting[place] > 0)
            if not self._take_farthest(place, last_wait):
                if should_stop() or not self._delay(place, last_wait):
                    return None
                if self.links.clock.ends_us[-1] - self.links.clock.starts_us[0] > most_us:
                    return None
            self._lower()

    def _take_farthest(self, place: int, last_wait: int) -> bool:
        """Choose the interval that frees a place and is needed last; False if none does."""
        for one in reversed(self.intervals):
            if one in self.chosen or not one.forward < place < one.backward:
                continue
            moves = self.links.moves([*self.chosen, one])
            if moves is not None and moves[one].wait <= last_wait and place < moves[one].reload:
                self.chosen = moves
                return True
        return False

    def _delay(self, place: int, last_wait: int) -> bool:
        """Delay a place, for moves out, or in turn what waits for moves back; False if neither."""
        if not self.delays_left:
            return False
        self.delays_left -= 1
        may_leave = any(
            one.forward + 1 + self.send_behind <= last_wait
            and place < one.backward
            and (one not in self.chosen or self.chosen[one].wait > last_wait)
            for one in self.intervals
        )
        back = [
            one.backward for one, move in self.chosen.items() if move.reload <= place < one.backward
        ]
        clock = self.links.clock
        if back and (self.delays_left % 2 or not may_leave):
            clock = clock.shifted(max(back), self.step_us)
        elif may_leave:
            clock = clock.delayed(last_wait, self.step_us)
        else:
            return False
        self.links = _Links(clock, self.send_behind)
        self.chosen = self.links.moves(list(self.chosen)) or {}
        return True

    def _lower(self) -> None:
        """Take what the chosen moves free off the levels."""
        waiting, running = (each.copy() for each in self.given)
        for one, move in self.chosen.items():
            waiting[move.wait + 1 : move.reload] -= one.num_bytes
            running[move.wait : move.reload] -= one.num_bytes
        self.levels = RankLevels(waiting, running)


class _Links:
    """The links of a rank to its host and back, on which moves follow each other."""

    def __init__(self, clock: RankClock, send_behind: int) -> None:
        self.clock, self.send_behind = clock, send_behind
        self.last = len(clock.ops)

    def moves(self, intervals: Sequence[Interval]) -> dict[Interval, MovePlaces] | None:
        """Return the moves of some intervals; None if the links have no time for them all."""
        found, free_us = {}, 0
        for one in sorted(intervals):
            offload, wait, free_us = self._out(one, free_us)
            found[one] = (offload, wait, free_us)
        moves, next_us = {}, self.clock.ends_us[-1]
        for one in sorted(intervals, key=lambda one: -one.backward):
            offload, wait, left_us = found[one]
            at_us = min(next_us, self.clock.starts_us[one.backward]) - one.transfer_us
            reload = min(one.backward, bisect_right(self.clock.ends_us, at_us))
            if at_us < left_us or reload <= wait:
                return None
            moves[one], next_us = MovePlaces(offload, wait, reload), at_us
        return moves

    def _out(self, one: Interval, free_us: int) -> tuple[int, int, int]:
        """Return the places of O and of its wait, and the end of the move.

        O stands right behind F, or as late as the wait has to be for the move to end before it.
        """
        starts_us, ends_us = self.clock.starts_us, self.clock.ends_us
        offload = one.forward + 1
        while True:
            end_us = max(free_us, ends_us[offload - 1]) + one.transfer_us
            wait = min(offload + self.send_behind, self.last)
            if wait == self.last or starts_us[wait] >= end_us:
                return offload, wait, end_us
            offload = max(offload + 1, bisect_left(starts_us, end_us) - self.send_behind)
