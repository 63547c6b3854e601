"""The greedy behind ZB-V (Qi et al. 2023, arXiv 2401.10241; 2024, arXiv 2405.15362).

The passes 0 to 3 of a micro-batch are those of `v_passes.py`.

1. Warm-up: the first micro-batch goes down and up. While F comes up to a rank, that rank and all
   before it forward more micro-batches, as far as the limit lets them. Then every rank catches up
   with the forwards of the one before it.
2. 2m rounds of one B and one F on each rank. While a rank waits for its input it runs W's that fit
   into the gap. A gap too small for a W is filled all the same where the rank would otherwise idle
   longer than any rank has so far; W's also make room within the limit.
3. At the end the remaining W's.

The released program tries both answers to two questions (`VGreedyChoices`). It runs each again with
the idle time that every rank could have had in addition, as long as that is shorter. It takes one
time for all stages, and one for all transfers. Here each stage and link may have its own; a rank
with less work than the others may then idle longer by the difference.

"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from synth.errors import SynthError
from synth.families._lib.family import Programs
from synth.families._lib.v_passes import (
    FIRST_B,
    FIRST_F,
    KINDS,
    SECOND_B,
    SECOND_F,
    PassCosts,
    stage_of,
)
from synth.op_kinds import OpKind
from synth.schedule.ops import Op

W = OpKind.W


@dataclass(frozen=True)
class VGreedyChoices:
    """The choice to fill a gap with one W that is too long for it: before F, and before pass 2."""

    fill_before_f: bool
    fill_before_second_b: bool

    @property
    def by_pass(self) -> tuple[bool, bool, bool, bool]:
        """Return the choice for the gap before each pass; before pass 3 there is none to make."""
        return self.fill_before_f, self.fill_before_f, self.fill_before_second_b, True


# The order in which the authors try them; of equals the first is taken.
ALL_CHOICES = tuple(VGreedyChoices(f, b) for b in (True, False) for f in (True, False))


class NoRoomError(SynthError):
    """The next op does not fit within the limit."""


def repeated_run(
    pass_costs: PassCosts, limits_bytes: Sequence[int], choices: VGreedyChoices
) -> "VGreedyRun":
    """Run the greedy, and again with the idle time left over, as long as that is shorter.

    Raises:
        NoRoomError: an op does not fit within a limit.
    """
    best = VGreedyRun(pass_costs, limits_bytes, choices)
    best.run()
    if best.is_same_with_more_idle_time:
        return best
    shortages, filled = [best.short_bytes], set(best.filled)
    while True:
        top = best.period_us
        allowed = [
            work + top - spent
            for work, spent in zip(pass_costs.work_us, best.spent_us, strict=True)
        ]
        again = VGreedyRun(pass_costs, limits_bytes, choices, allowed)
        try:
            is_shorter = again.run(top)
        except NoRoomError:
            is_shorter = False
        shortages.append(again.short_bytes)
        filled |= again.filled
        if not is_shorter:
            best.filled = filled
            best.short_bytes = min((s for s in shortages if s is not None), default=None)
            return best
        best = again


class RunsByChoice:
    """Runs of the greedy; one is made once for all choices with which it is the same."""

    def __init__(self, make: Callable[[Sequence[int], VGreedyChoices], "VGreedyRun"]) -> None:
        """Take the function that makes a run of some limits and choices."""
        self._make = make
        self._made: dict[tuple[int, ...], list[VGreedyRun]] = {}

    def at(self, limits_bytes: Sequence[int], choices: VGreedyChoices) -> "VGreedyRun":
        """Return the run at some limits.

        Raises:
            NoRoomError: an op does not fit within a limit.
        """
        made = self._made.setdefault(tuple(limits_bytes), [])
        for run in made:
            if run.is_same_with(choices):
                return run
        made.append(self._make(limits_bytes, choices))
        return made[-1]


class VGreedyRun:
    """One run of the greedy.

    Attributes:
        programs: for each rank its passes and W's in order, numbered as in `PassCosts.took_us`.
        spent_us: the work of each rank, and the time that it has idled since its first op.
        filled: the passes whose gaps were long enough to fill them with a W that is too long,
            whether the choices allow it or not. Runs whose choices differ for others are the same.
        short_bytes: with limits higher by less than that on all ranks the run is the same; None:
            no limit held it back.
    """

    def __init__(
        self,
        pass_costs: PassCosts,
        limits_bytes: Sequence[int],
        choices: VGreedyChoices,
        allowed_us: Sequence[int] | None = None,
    ) -> None:
        self.limits = limits_bytes
        self.m, self.d = pass_costs.num_micro_batches, pass_costs.num_ranks
        self.took, self.lag, self.growth_bytes = (
            pass_costs.took_us,
            pass_costs.lag_us,
            pass_costs.growth_bytes,
        )
        self.fills = choices.by_pass
        self.programs: list[list[int]] = [[] for _ in range(self.d)]
        self.filled: set[int] = set()
        self.short_bytes: int | None = None
        self.spent_us = pass_costs.work_us
        self._most_us = max(self.spent_us)
        self._allowed = list(allowed_us) if allowed_us is not None else [0] * self.d
        self._clock, self._held = [0] * self.d, [0] * self.d
        # The times at which each rank's ops of a pass ended.
        self._ended: list[list[list[int]]] = [[[] for _ in range(self.d)] for _ in range(4)]
        # Those of the rank that sends the input; None: it is made on the rank itself.
        self._sent = [
            [None, *ended[:-1]] if number in (FIRST_F, SECOND_B) else [*ended[1:], None]
            for number, ended in enumerate(self._ended)
        ]
        self._owed: list[deque[int]] = [deque() for _ in range(self.d)]

    @property
    def period_us(self) -> int:
        """The longest time of a rank from its first op to its last."""
        return max(self.spent_us)

    def is_same_with(self, choices: VGreedyChoices) -> bool:
        """Return True if the run would be the same with other choices."""
        pairs = zip(self.fills, choices.by_pass, strict=True)
        return not any(a != b and number in self.filled for number, (a, b) in enumerate(pairs))

    @property
    def is_same_with_more_idle_time(self) -> bool:
        """True if the run would be the same with more idle time allowed: it has filled no gap."""
        return not any(self.fills[number] for number in self.filled)

    def ops(self) -> Programs:
        """The programs as ops."""
        programs = []
        for rank, numbers in enumerate(self.programs):
            counts = [0] * 6
            program = []
            for number in numbers:
                kind, of = (KINDS[number], number) if number < 4 else (W, number - 2)
                program.append(Op(kind, stage_of(of, rank, self.d), counts[number]))
                counts[number] += 1
            programs.append(program)
        return programs

    def run(self, most_us: int | None = None) -> bool:
        """Make the programs; True if the period is below `most_us`, else it may be incomplete.

        Raises:
            NoRoomError: an op does not fit within a limit.
        """
        self._warm_up()
        left = 2 * self.m * self.d
        while left:
            if most_us is not None and self._most_us >= most_us:
                return False
            before = left
            for rank, number in self._backwards():
                if self._is_ready(rank, number):
                    self._fill_gap(rank, number)
                    self._put(rank, number)
                    left -= 1
            if not self._forwards() and left == before:
                raise NoRoomError("the greedy is stuck: no rank has an op whose input is placed")
        for rank in range(self.d):
            while self._owed[rank]:
                self._put_w(rank)
        return most_us is None or self._most_us < most_us

    def _forwards(self) -> bool:
        """Run one F on each rank that has one; True if any has."""
        any_ran = False
        for rank in range(self.d):
            number = self._forward(rank)
            if number is not None:
                self._make_room(rank, number)
                self._fill_gap(rank, number)
                self._put(rank, number)
                any_ran = True
        return any_ran

    def _warm_up(self) -> None:
        """Step 1."""
        for rank in range(self.d):
            self._put(rank, FIRST_F)
        for rank in reversed(range(self.d)):
            while rank < self.d - 1 and self._may_forward_more(rank):
                for before in range(rank + 1):
                    self._put(before, FIRST_F)
            self._put(rank, SECOND_F)
        number = FIRST_F
        for rank in range(1, self.d):
            waited = 0
            while self._is_behind(rank) and waited < 2:
                waited += 1
                for other in reversed(range(rank, self.d)):
                    if self._is_ready(other, number):
                        self._put(other, number)
                        waited = 0
                number = SECOND_F if number == FIRST_F else FIRST_F

    def _is_behind(self, rank: int) -> bool:
        """True if the rank before has run more forwards, or as many of the second half."""
        downs, ups = self._ended[FIRST_F], self._ended[SECOND_F]
        more = len(downs[rank - 1]) + len(ups[rank - 1]) - len(downs[rank]) - len(ups[rank])
        return more > 0 or len(ups[rank]) <= len(ups[rank - 1]) < self.m

    def _may_forward_more(self, rank: int) -> bool:
        """True if one more F ends before the first micro-batch is back, and there is room.

        Each rank from the last one on up needs room for two more than the next one.
        """
        if len(self._ended[FIRST_F][rank]) >= self.m:
            return False
        if self._clock[rank] + self.took[FIRST_F][rank] > self._arrives(rank, SECOND_F):
            return False
        return self._check_room(rank, self.growth_bytes[FIRST_F][rank] * (2 + 2 * rank))

    def _backwards(self) -> list[tuple[int, int]]:
        """The B of each rank in this round: first those of the way up, last rank first."""
        downs, ups = self._ended[SECOND_B], self._ended[FIRST_B]
        up, down = [], []
        for rank in range(self.d):
            self._make_room(rank, SECOND_B)
            begun, done = len(downs[rank]), len(ups[rank])
            if done < begun and (
                rank == self.d - 1 or len(ups[rank + 1]) > done or begun >= self.m
            ):
                up.append((rank, FIRST_B))
            else:
                down.append((rank, SECOND_B))
        return up[::-1] + down

    def _forward(self, rank: int) -> int | None:
        """The next F of a rank; None: all have run, or none has its input."""
        done, begun = len(self._ended[SECOND_F][rank]), len(self._ended[FIRST_F][rank])
        if done >= self.m:
            return None
        for number in (SECOND_F, FIRST_F) if done < begun else (FIRST_F,):
            if self._is_ready(rank, number):
                return number
        return None

    def _is_ready(self, rank: int, number: int) -> bool:
        """True if a rank's next op of a pass exists, and the op before it has been placed."""
        count = len(self._ended[number][rank])
        if count >= self.m:
            return False
        sent = self._sent[number][rank]
        if sent is not None:
            return len(sent) > count
        return number == FIRST_F or len(self._ended[number - 1][rank]) > count

    def _check_room(self, rank: int, needed_bytes: int) -> bool:
        """Return True if `needed_bytes` more are within the limit; else note the least shortage."""
        short = self._held[rank] + needed_bytes - self.limits[rank]
        if short <= 0:
            return True
        if self.short_bytes is None or short < self.short_bytes:
            self.short_bytes = short
        return False

    def _make_room(self, rank: int, number: int) -> None:
        """Run W's until a pass is within the limit."""
        owed, needed = self._owed[rank], self.growth_bytes[number][rank]
        while owed and not self._check_room(rank, needed):
            self._put_w(rank)

    def _fill_gap(self, rank: int, number: int) -> None:
        """Run W's until the input of a pass arrives."""
        owed = self._owed[rank]
        if not owed:
            return
        arrives = self._arrives(rank, number)
        while owed and self._clock[rank] + self.took[owed[0]][rank] <= arrives:
            self._put_w(rank)
        gap_us = arrives - self._clock[rank]
        if owed and gap_us > 0:
            longest_us = max(self._allowed[rank], self._most_us) - self.spent_us[rank]
            if gap_us > longest_us:
                self.filled.add(number)
                if self.fills[number]:
                    self._put_w(rank)

    def _arrives(self, rank: int, number: int) -> int:
        """Return when the input of a rank's next op of a pass arrives; 0 if no one sends it."""
        sent = self._sent[number][rank]
        if sent is None:
            return 0
        return sent[len(self._ended[number][rank])] + self.lag[number][rank]

    def _put_w(self, rank: int) -> None:
        number = self._owed[rank].popleft()
        self._clock[rank] += self.took[number][rank]
        self._held[rank] += self.growth_bytes[number][rank]
        self.programs[rank].append(number)

    def _put(self, rank: int, number: int) -> None:
        """Run a rank's next op of a pass as soon as its input is there."""
        grows, program = self.growth_bytes[number][rank], self.programs[rank]
        if not self._check_room(rank, grows):
            raise NoRoomError(
                f"the greedy has no room for {KINDS[number]} on rank {rank} within "
                f"{self.limits[rank]} bytes of activations"
            )
        start, arrives = self._clock[rank], self._arrives(rank, number)
        if arrives > start:
            if program:
                self.spent_us[rank] += arrives - start
                self._most_us = max(self._most_us, self.spent_us[rank])
            start = arrives
        self._clock[rank] = start + self.took[number][rank]
        self._held[rank] += grows
        self._ended[number][rank].append(self._clock[rank])
        program.append(number)
        if number >= SECOND_B:
            self._owed[rank].append(number + 2)
