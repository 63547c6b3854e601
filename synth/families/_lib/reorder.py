"""Fits an order of F, B and W to measured times without more memory ("squeeze", "reorder").

Qi et al. 2024 (arXiv 2405.15362, section 3) draw a building block in unit times, repeat it, and
then close the holes. Either ops keep their order and run as early as they can (squeezing), or in
warm-up and cool-down they overtake each other as long as memory stays below the peak (reordering).
The paper leaves the rule of reordering open. Here a free rank runs, of the ops whose input has
arrived, the first one in the drawn order. An F may only overtake if the rank could still run the
ops that it overtakes in the drawn order without exceeding its limit. The drawn order thus remains
feasible at every moment, and there is no deadlock.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from synth.families._lib.activations import growth_bytes
from synth.families._lib.family import Programs, Setting
from synth.op_kinds import OpKind
from synth.profile.links import Links
from synth.schedule.ops import Op

F, B, W = OpKind.F, OpKind.B, OpKind.W
Order = Sequence[Sequence[Op]]


@dataclass(frozen=True)
class Rules:
    """The rules for an op to overtake others; none is best for all times, so all are tried.

    Attributes:
        overtake: ops may leave the drawn order, and a W runs only if no F and no B can.
        in_cool_down: ops may overtake only if no F is left.
        wait_for_input: no W starts that would still run when the input of an F or B arrives.
    """

    overtake: bool = False
    in_cool_down: bool = False
    wait_for_input: bool = False


_ALL = (Rules(), *(Rules(True, late, wait) for late in (False, True) for wait in (False, True)))


def fitted(setting: Setting, order: Order, limits_bytes: Sequence[int]) -> Programs:
    """Return the order, or the reordering of it, with the least period, then the least makespan.

    Args:
        setting: any placement.
        order: every rank's F, B and W, in an order without deadlock.
        limits_bytes: the most that a rank may hold in the sense of `activation_bytes`; it must
            allow the order.
    """
    found = fitted_below(setting, order, limits_bytes, None)
    assert found is not None
    return found


def fitted_below(
    setting: Setting, order: Order, limits_bytes: Sequence[int], most_us: int | None
) -> Programs | None:
    """Fit as `fitted` does; give up and return None once the period exceeds `most_us`."""
    attempts = [(order, rules) for rules in _ALL]
    if not _are_as_drawn(setting):
        # As the authors do: fit to the drawn times, then run in the resulting order.
        squeezed = [(order, Rules()), (order, Rules(overtake=True, in_cool_down=True))]
        redrawn = _best(_as_drawn(setting), squeezed, limits_bytes)
        assert redrawn is not None
        attempts.append((redrawn, Rules()))
    return _best(setting, attempts, limits_bytes, most_us)


def _best(
    setting: Setting,
    attempts: Sequence[tuple[Order, Rules]],
    limits_bytes: Sequence[int],
    most_us: int | None = None,
) -> Order | None:
    """The programs of the attempt that ends first; attempts that fall behind are stopped.

    None if the periods of all attempts exceed `most_us`.
    """
    best: _Run | None = None
    for order, rules in attempts:
        attempt = _Run(setting, order, limits_bytes, rules)
        attempt.run(most_us if best is None else best.period_us)
        if not attempt.is_done:
            continue
        if best is None or attempt.worth < best.worth:
            best = attempt
    return None if best is None else best.programs


def _are_as_drawn(setting: Setting) -> bool:
    """True if F, B and W of all stages take the same time, and transfers none."""
    times = {stage.duration_us[kind] for stage in setting.costs.stages for kind in (F, B, W)}
    return len(times) == 1 and setting.costs.links == Links()


def _as_drawn(setting: Setting) -> Setting:
    """The setting with F = B = W = 1 and transfers that take no time."""
    unit = dict.fromkeys(OpKind, 1)
    stages = tuple(stage.replace(duration_us=unit) for stage in setting.costs.stages)
    return replace(setting, costs=setting.costs.replace(stages=stages, links=Links()))


class _Run:
    """One simulation of all ranks that decides the next op of each."""

    def __init__(
        self, setting: Setting, order: Order, limits_bytes: Sequence[int], rules: Rules
    ) -> None:
        self.setting, self.order, self.limits, self.rules = setting, order, limits_bytes, rules
        costs, ranks = setting.costs, range(setting.num_ranks)
        self.growth = [growth_bytes(costs, stage) for stage in range(setting.num_stages)]
        self.took = [stage.duration_us for stage in costs.stages]
        self.programs: list[list[Op]] = [[] for _ in ranks]
        self.waiting = [[True] * len(order[r]) for r in ranks]
        self.front = [0 for _ in ranks]
        self.queues = [_queues(order[r]) for r in ranks]
        self.forwards_left = [sum(op.kind == F for op in order[r]) for r in ranks]
        self.left_us = [sum(self.took[op.stage][op.kind] for op in order[r]) for r in ranks]
        self.free_at, self.kept = [0 for _ in ranks], [0 for _ in ranks]
        self.began: list[int] = [0 for _ in ranks]
        self.arrives: dict[Op, int] = {}
        self.events: list[tuple[int, int]] = [(0, r) for r in ranks]

    @property
    def is_done(self) -> bool:
        """True if all ops have run."""
        return all(
            front == len(program) for front, program in zip(self.front, self.order, strict=True)
        )

    @property
    def worth(self) -> tuple[int, int]:
        """The key of comparison; less is better."""
        return self.period_us, self.makespan_us

    @property
    def period_us(self) -> int:
        """The longest time of a rank from its first op to its last."""
        return max(end - begin for begin, end in zip(self.began, self.free_at, strict=True))

    @property
    def makespan_us(self) -> int:
        """The time from 0 to the end of the last op."""
        return max(self.free_at)

    def run(self, most_us: int | None = None) -> None:
        """Make the programs: a rank decides whenever it is free or gets an input.

        Args:
            most_us: the run ends once its period is certain to exceed this.
        """
        while self.events:
            now, rank = heappop(self.events)
            place = self._choose(rank, now) if self.free_at[rank] <= now else None
            if place is not None:
                self._start(rank, place, now)
                spent_us = self.free_at[rank] - self.began[rank]
                if most_us is not None and spent_us + self.left_us[rank] > most_us:
                    return
        if not self.is_done:
            raise RuntimeError("the drawn order does not run to its end")

    def _choose(self, rank: int, now: int) -> int | None:
        """The place in the drawn order of the op to start now; None: the rank waits."""
        order, best, next_input = self.order[rank], None, None
        for queue in self.queues[rank].values():
            if not queue or not self._may_run(rank, queue[0]):
                continue
            place = queue[0]
            op = order[place]
            arrives = self.arrives.get(op) if self._source(op) else 0
            if arrives is None:
                continue
            if arrives > now:
                if op.kind != W and (next_input is None or arrives < next_input):
                    next_input = arrives
            elif best is None or self._priority(rank, place) < self._priority(rank, best):
                best = place
        if best is not None and self.rules.wait_for_input and order[best].kind == W:
            ends = now + self.took[order[best].stage][W]
            if next_input is not None and next_input < ends:
                return None
        return best

    def _priority(self, rank: int, place: int) -> tuple[bool, int]:
        """The key by which the next op is chosen; the smallest goes first."""
        is_cooling = self.forwards_left[rank] == 0
        weights_last = self.rules.overtake and (is_cooling or not self.rules.in_cool_down)
        return weights_last and self.order[rank][place].kind == W, place

    def _may_run(self, rank: int, place: int) -> bool:
        """True if the rank can still finish in the drawn order after running this op now."""
        front = self.front[rank]
        if place == front:
            return True
        if not self.rules.overtake:
            return False
        level = self.kept[rank] + self._growth(rank, place)
        if level > self.limits[rank]:
            return False
        if self._growth(rank, place) <= 0:
            return True
        for before in range(front, place):
            if self.waiting[rank][before]:
                level += self._growth(rank, before)
                if level > self.limits[rank]:
                    return False
        return True

    def _growth(self, rank: int, place: int) -> int:
        op = self.order[rank][place]
        return self.growth[op.stage][op.kind]

    def _start(self, rank: int, place: int, now: int) -> None:
        op = self.order[rank][place]
        self.queues[rank][op.kind, op.stage, op.replica].popleft()
        self.waiting[rank][place] = False
        self.forwards_left[rank] -= op.kind == F
        while self.front[rank] < len(self.order[rank]) and not self.waiting[rank][self.front[rank]]:
            self.front[rank] += 1
        if not self.programs[rank]:
            self.began[rank] = now
        self.programs[rank].append(op)
        self.kept[rank] += self.growth[op.stage][op.kind]
        took_us = self.took[op.stage][op.kind]
        end = self.free_at[rank] = now + took_us
        self.left_us[rank] -= took_us
        heappush(self.events, (end, rank))
        for reader in self._readers(op):
            self._deliver(op, reader, rank, end)

    def _deliver(self, op: Op, reader: Op, rank: int, end: int) -> None:
        """Record at a reader's rank when its input arrives."""
        target = self.setting.placement.rank_of(reader.stage, reader.replica)
        if target != rank:
            boundary = min(op.stage, reader.stage)
            costs = self.setting.costs
            passed_us = costs.boundary_us if op.stage < reader.stage else costs.return_us
            end += passed_us(boundary, rank, target)
        self.arrives[reader] = end
        heappush(self.events, (end, target))

    def _source(self, op: Op) -> bool:
        """The rank and op that an op waits for, if any."""
        return op.kind != F or op.stage > 0

    def _readers(self, op: Op) -> list[Op]:
        """The ops that wait for this one."""
        last = self.setting.num_stages - 1
        if op.kind == F:
            return [op._replace(stage=op.stage + 1) if op.stage < last else op._replace(kind=B)]
        if op.kind == W:
            return []
        weight = op._replace(kind=W)
        return [op._replace(stage=op.stage - 1), weight] if op.stage else [weight]


def _queues(program: Sequence[Op]) -> dict[tuple[OpKind, int, int], deque[int]]:
    """The places of the ops of each kind and stage, which keep their order among themselves."""
    queues: dict[tuple[OpKind, int, int], deque[int]] = {}
    for place, op in enumerate(program):
        queues.setdefault((op.kind, op.stage, op.replica), deque()).append(place)
    return queues
