"""The greedy behind ZB-1p and ZB-2p (Qi et al. 2023, arXiv 2401.10241, section 3.1).

One stage per rank, measured times, a limit on what a rank keeps between its F's and its W's.

1. Warm-up: as many F's as the limit lets in before the first B can arrive.
2. Rounds of one F going down the ranks and one B coming up. While a rank waits for its input it
   runs W's that fit into the gap. A gap too small for a W is filled all the same where the rank
   would otherwise idle longer than any rank has so far; W's also make room for an F.
3. At the end the remaining W's.

Three decisions cut both ways, so the paper tries both answers to each and takes the best of the
eight schedules (`ZbGreedyChoices`). Unlike the released code, every stage has its own times and
bytes, and every link its own.

"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from synth.errors import SynthError
from synth.families._lib.activations import activation_bytes, growth_bytes
from synth.families._lib.family import Programs, Setting
from synth.op_kinds import OpKind
from synth.schedule.ops import Op
from synth.units import format_bytes

F, B, W = OpKind.F, OpKind.B, OpKind.W


@dataclass(frozen=True)
class ZbGreedyChoices:
    """One answer to each of three decisions, each of which helps some costs and harms others."""

    forward_may_delay_first_b: bool
    skip_forwards_far_ahead: bool
    fill_small_gaps: bool


def greedy(name: str, setting: Setting, limits_bytes: Sequence[int]) -> Programs:
    """The programs of least period among those of all choices.

    Args:
        name: the name of the family, for messages.
        setting: one stage per rank.
        limits_bytes: the most bytes that each rank may hold between F and W, see `activations`.

    Raises:
        SynthError: a limit is below one micro-batch.
    """
    best: _Greedy | None = None
    refused: list[SynthError] = []
    below_us = setting.below_us
    for answers in product((False, True), (True, False), (True, False)):  # the authors' order
        attempt = _Greedy(name, setting, limits_bytes, ZbGreedyChoices(*answers), below_us)
        try:
            attempt.run()
        except SynthError as error:
            refused.append(error)
        else:
            best, below_us = attempt, attempt.period_us
    if best is None:
        raise refused[0]
    return best.programs


def micro_batches_bytes(setting: Setting, number: int) -> list[int]:
    """A limit for each rank: the bytes of `number` micro-batches, each at its peak."""
    activations = [activation_bytes(setting.costs, stage) for stage in range(setting.num_stages)]
    return [number * max(stage.values()) for stage in activations]


class _Greedy:
    """One run of the greedy with given choices: clocks, counts and memory of all ranks."""

    def __init__(
        self,
        name: str,
        setting: Setting,
        limits_bytes: Sequence[int],
        choices: ZbGreedyChoices,
        below_us: int | None,
    ) -> None:
        p = setting.num_ranks
        self.name, self.choices, self.limits = name, choices, limits_bytes
        self.m, self.ranks = setting.num_micro_batches, range(p)
        costs = setting.costs
        self.took = [stage.duration_us for stage in costs.stages]
        self.lag_down = [costs.boundary_us(r - 1, r - 1, r) if r else 0 for r in self.ranks]
        self.lag_up = [costs.return_us(r, r + 1, r) if r < p - 1 else 0 for r in self.ranks]
        self.grows = [growth_bytes(costs, r) for r in self.ranks]
        # An F leaves room for a B that adds more than it frees, so that one can always follow.
        self.needs = [{F: grow[F] + max(0, grow[B]), B: grow[B]} for grow in self.grows]
        self.programs: list[list[Op]] = [[] for _ in self.ranks]
        self.done = [{F: 0, B: 0, W: 0} for _ in self.ranks]
        self.ended: list[dict[OpKind, list[int]]] = [{F: [], B: [], W: []} for _ in self.ranks]
        self.clock, self.held_bytes, self.idle = [0] * p, [0] * p, [0] * p
        work_us = (self.m * sum(took[kind] for kind in (F, B, W)) for took in self.took)
        self.most_idle_us = [None if below_us is None else below_us - us - 1 for us in work_us]

    @property
    def period_us(self) -> int:
        """The longest time of a rank from its first op to its last."""
        return max(self.clock[r] - (self.ended[r][F][0] - self.took[r][F]) for r in self.ranks)

    def run(self) -> None:
        """Make the programs."""
        self._warm_up()
        for _ in range(1, self.m):
            for rank, wanted in zip(self.ranks, self._forwards_wanted(), strict=True):
                if wanted:
                    self._make_room(rank, F)
                    self._fill_gap(rank, F)
                    self._put(rank, F)
            for rank in reversed(self.ranks):
                self._make_room(rank, B)
                self._fill_gap(rank, B)
                self._put(rank, B)
        for rank in self.ranks:
            while self._has_w(rank):
                self._put(rank, W)

    def _warm_up(self) -> None:
        """Step 1, up to the first B of every rank."""
        for rank in self.ranks:
            self._make_room(rank, F)
            self._put(rank, F)
        extra = self._extra_forwards()
        for rank in self.ranks[1:]:
            # A later rank has less time before its first B: strictly fewer, unless both take all.
            if min(extra[rank], extra[rank - 1]) < self.m - 1:
                extra[rank] = max(0, min(extra[rank], extra[rank - 1] - 1))
        for rank in self.ranks:
            for _ in range(extra[rank]):
                self._put(rank, F)
        for rank in reversed(self.ranks):
            self._make_room(rank, B)
            self._put(rank, B)

    def _extra_forwards(self) -> list[int]:
        """The number of F's after the first that each rank can run before its first B."""
        extra, b_ends = [0 for _ in self.ranks], 0
        for rank in reversed(self.ranks):
            took, room = self.took[rank][F], self.limits[rank] - self.held_bytes[rank]
            now, arrives = self.clock[rank], b_ends + self.lag_up[rank]
            last = rank == self.ranks[-1]
            while not last and extra[rank] < self.m - 1 and room >= self.needs[rank][F]:
                late = (
                    now >= arrives
                    if self.choices.forward_may_delay_first_b
                    else (now + took > arrives)
                )
                if late:
                    break
                now, room = now + took, room - self.grows[rank][F]
                extra[rank] += 1
            b_ends = max(now, arrives) + self.took[rank][B]
        return extra

    def _forwards_wanted(self) -> list[bool]:
        """The ranks that take an F in this round; none may unless its successor does."""
        wanted = [
            self.done[r][F] < self.m
            and not (self.choices.skip_forwards_far_ahead and self._better_skips(r))
            for r in self.ranks
        ]
        for rank in reversed(self.ranks[:-1]):
            wanted[rank] = wanted[rank] and (wanted[rank + 1] or self.done[rank + 1][F] == self.m)
        return wanted

    def _better_skips(self, rank: int) -> bool:
        """True if an F two ahead of the next rank's would delay the B that comes from there."""
        after = rank + 1
        if after not in self.ranks or self.done[rank][F] < self.done[after][F] + 2:
            return False
        took = self.took[after]
        b_arrives = self.clock[after] + took[F] + took[B] + self.lag_up[rank]
        if self.clock[rank] >= b_arrives:
            return True
        with_room = self.clock[rank] + self._w_for_room(rank) + self.took[rank][F]
        spare = max(self.idle) - self.idle[rank]
        return with_room > b_arrives and b_arrives - self.clock[rank] <= spare

    def _w_for_room(self, rank: int) -> int:
        """The time of the W's that the next F needs for its memory."""
        short = self.held_bytes[rank] + self.needs[rank][F] - self.limits[rank]
        freed = -self.grows[rank][W]
        needed = -(-short // freed) if short > 0 and freed > 0 else 0
        return min(needed, self.done[rank][B] - self.done[rank][W]) * self.took[rank][W]

    def _make_room(self, rank: int, kind: OpKind) -> None:
        """Run W's until an op of this kind fits into the limit."""
        while self.held_bytes[rank] + self.needs[rank][kind] > self.limits[rank]:
            if not self._has_w(rank):
                room = max(0, self.limits[rank])  # below 0 where the weights alone exceed it
                raise SynthError(
                    f"{self.name} cannot run {kind} of stage {rank} within {format_bytes(room)} "
                    f"of activations; it needs room for one micro-batch at least"
                )
            self._put(rank, W)

    def _fill_gap(self, rank: int, kind: OpKind) -> None:
        """Step 2: run W's until the input of the next op arrives."""
        if kind == B and rank == 0 and self.done[0][F] == self.m:
            while self._has_w(0):  # no rank waits for the B's of rank 0
                self._put(0, W)
        arrives = self._arrives(rank, kind)
        while self._has_w(rank) and self.clock[rank] + self.took[rank][W] <= arrives:
            self._put(rank, W)
        gap = arrives - self.clock[rank]
        longest = gap > max(self.idle) - self.idle[rank]
        if self._has_w(rank) and gap > 0 and (longest or self.choices.fill_small_gaps):
            self._put(rank, W)

    def _arrives(self, rank: int, kind: OpKind) -> int:
        """The time at which the input of the rank's next op of this kind arrives."""
        number = self.done[rank][kind]
        if kind == F and rank > 0:
            return self.ended[rank - 1][F][number] + self.lag_down[rank]
        if kind == B and rank < self.ranks[-1]:
            return self.ended[rank + 1][B][number] + self.lag_up[rank]
        return 0

    def _has_w(self, rank: int) -> bool:
        return self.done[rank][W] < self.done[rank][B]

    def _put(self, rank: int, kind: OpKind) -> None:
        """Run a rank's next op of this kind as soon as its input is there."""
        start = max(self.clock[rank], self._arrives(rank, kind))
        if self.programs[rank] and start > self.clock[rank]:
            self.idle[rank] += start - self.clock[rank]
            most_us = self.most_idle_us[rank]
            if most_us is not None and self.idle[rank] > most_us:
                raise SynthError(f"{self.name} is no shorter than a schedule that is known")
        self.clock[rank] = start + self.took[rank][kind]
        self.ended[rank][kind].append(self.clock[rank])
        self.programs[rank].append(Op(kind, rank, self.done[rank][kind]))
        self.done[rank][kind] += 1
        self.held_bytes[rank] += self.grows[rank][kind]
