"""Fits an order of F, B and W to measured times without more memory ("squeeze", "reorder").

Qi et al. 2024 (arXiv 2405.15362, section 3) draw a building block in unit times, repeat it, and
then close the holes. Either ops keep their order and run as early as they can (squeezing), or in
warm-up and cool-down they overtake each other as long as memory stays below the peak (reordering).
The paper leaves the rule of reordering open. Here a free rank runs, of the ops whose input has
arrived, the first one in the drawn order. An F may only overtake if the rank could still run the
ops that it overtakes in the drawn order without exceeding its limit. The drawn order thus remains
feasible at every moment, and there is no deadlock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import NamedTuple

from synth.errors import SynthError
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

    Raises:
        SynthError: all periods are as long as the setting's `below_us`.
    """
    found = fitted_below(setting, order, limits_bytes, None)
    if found is None:
        raise SynthError(f"no order has a period below {setting.below_us} µs")
    return found


def fitted_below(
    setting: Setting, order: Order, limits_bytes: Sequence[int], most_us: int | None
) -> Programs | None:
    """Fit as `fitted` does; give up and return None once the period exceeds `most_us`.

    Attempts whose order, run as early as it can be, takes as long as the setting's `below_us` are
    given up too.
    """
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

    None if the periods of all attempts exceed `most_us`, or are of no use (`below_us`).
    """
    best: _Run | None = None
    networks: dict[int, _Network] = {}
    for order, rules in attempts:
        if id(order) not in networks:
            networks[id(order)] = _Network(setting, order)
        attempt = _Run(networks[id(order)], limits_bytes, rules)
        attempt.run(most_us if best is None else best.period_us, setting.below_us)
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
    costs = setting.costs.replace(stages=stages, links=Links())
    return replace(setting, costs=costs, below_us=None)


class _Reader(NamedTuple):
    """An op that waits for another one: its rank, its place there, and the transfer's time."""

    rank: int
    place: int
    lag_us: int


class _RankOrder(NamedTuple):
    """The drawn order of a rank, by place.

    Ops of one kind and stage keep their order: `heads` has the first place of each such queue, and
    `next_place` the next one in the same queue, or the number of places.
    """

    order: Sequence[Op]
    kinds: list[OpKind]
    took_us: list[int]
    growth: list[int]
    queue: list[int]
    next_place: list[int]
    heads: list[int]
    readers: list[list[_Reader]]


class _Network:
    """A drawn order with its times, bytes and dependencies; all attempts share it."""

    def __init__(self, setting: Setting, order: Order) -> None:
        costs = setting.costs
        took = [stage.duration_us for stage in costs.stages]
        growth = [growth_bytes(costs, stage) for stage in range(setting.num_stages)]
        places = {
            op: (rank, place)
            for rank, program in enumerate(order)
            for place, op in enumerate(program)
        }
        self.ranks: list[_RankOrder] = []
        for rank, program in enumerate(order):
            queues: dict[tuple[OpKind, int, int], list[int]] = {}
            for place, op in enumerate(program):
                queues.setdefault((op.kind, op.stage, op.replica), []).append(place)
            queue, next_place = [0] * len(program), [len(program)] * len(program)
            for number, own in enumerate(queues.values()):
                for place, after in zip(own, [*own[1:], len(program)], strict=True):
                    queue[place], next_place[place] = number, after
            self.ranks.append(
                _RankOrder(
                    program,
                    [op.kind for op in program],
                    [took[op.stage][op.kind] for op in program],
                    [growth[op.stage][op.kind] for op in program],
                    queue,
                    next_place,
                    [own[0] for own in queues.values()],
                    [self._readers(setting, op, rank, places) for op in program],
                )
            )

    @staticmethod
    def _readers(
        setting: Setting, op: Op, rank: int, places: dict[Op, tuple[int, int]]
    ) -> list[_Reader]:
        """The ops that wait for this one."""
        last, costs = setting.num_stages - 1, setting.costs
        if op.kind == F:
            after = op._replace(stage=op.stage + 1) if op.stage < last else op._replace(kind=B)
            readers = [after]
        elif op.kind == B:
            readers = [op._replace(stage=op.stage - 1)] if op.stage else []
            readers.append(op._replace(kind=W))
        else:
            readers = []
        found = []
        for reader in readers:
            target, place = places[reader]
            passed_us = costs.boundary_us if op.stage < reader.stage else costs.return_us
            boundary = min(op.stage, reader.stage)
            lag_us = 0 if target == rank else passed_us(boundary, rank, target)
            found.append(_Reader(target, place, lag_us))
        return found


class _Run:
    """One simulation of all ranks that decides the next op of each."""

    def __init__(self, network: _Network, limits_bytes: Sequence[int], rules: Rules) -> None:
        self.orders, self.limits, self.rules = network.ranks, limits_bytes, rules
        self.started: list[list[int]] = [[] for _ in self.orders]
        self.waiting = [[True] * len(own.order) for own in self.orders]
        self.front = [0 for _ in self.orders]
        self.heads = [list(own.heads) for own in self.orders]
        self.forwards_left = [own.kinds.count(F) for own in self.orders]
        self.left_us = [sum(own.took_us) for own in self.orders]
        self.free_at, self.kept = [0 for _ in self.orders], [0 for _ in self.orders]
        self.began: list[int] = [0 for _ in self.orders]
        # When the input of each place arrives; None: not known yet.
        self.arrives: list[list[int | None]] = [
            [0 if op.kind == F and op.stage == 0 else None for op in own.order]
            for own in self.orders
        ]
        self.events: list[tuple[int, int]] = [(0, rank) for rank in range(len(self.orders))]

    @property
    def is_done(self) -> bool:
        """True if all ops have run."""
        return all(
            front == len(own.order) for front, own in zip(self.front, self.orders, strict=True)
        )

    @property
    def programs(self) -> list[list[Op]]:
        """The ops of each rank in the order in which they ran."""
        return [
            [own.order[place] for place in places]
            for own, places in zip(self.orders, self.started, strict=True)
        ]

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

    def run(self, most_us: int | None = None, below_us: int | None = None) -> None:
        """Make the programs: a rank decides whenever it is free or gets an input.

        Args:
            most_us: the run ends once its period is certain to exceed this.
            below_us: it ends, too, once the same order has no period below this, even if its ops
                start as early as they can.
        """
        waited_us = 0  # by all ranks, though the op that came next could have run
        choose = self._choose if self.rules.overtake else self._next
        while self.events:
            now, rank = heappop(self.events)
            place = choose(rank, now) if self.free_at[rank] <= now else None
            if place is not None:
                waited_us += now - max(self.free_at[rank], self.arrives[rank][place] or 0)
                self._start(rank, place, now)
                least_us = self.free_at[rank] - self.began[rank] + self.left_us[rank]
                if most_us is not None and least_us > most_us:
                    return
                if below_us is not None and least_us - waited_us >= below_us:
                    return
        if not self.is_done:
            raise RuntimeError("the drawn order does not run to its end")

    def _next(self, rank: int, now: int) -> int | None:
        """The next place of the drawn order if its op can start now; None: the rank waits."""
        front = self.front[rank]
        if front == len(self.waiting[rank]):
            return None
        arrives = self.arrives[rank][front]
        return None if arrives is None or arrives > now else front

    def _choose(self, rank: int, now: int) -> int | None:
        """The place in the drawn order of the op to start now; None: the rank waits."""
        own, arrivals = self.orders[rank], self.arrives[rank]
        num_places = len(arrivals)
        is_cooling = self.forwards_left[rank] == 0
        weights_last = is_cooling or not self.rules.in_cool_down
        best, best_key, next_input = None, num_places * 2, None
        for place in self.heads[rank]:
            if place == num_places:
                continue
            arrives = arrivals[place]
            if arrives is None:
                continue
            is_weight = own.kinds[place] is W
            if arrives > now:
                is_next = next_input is None or arrives < next_input
                if not is_weight and is_next and self._may_run(rank, place):
                    next_input = arrives
                continue
            key = place + num_places if weights_last and is_weight else place
            if key < best_key and self._may_run(rank, place):
                best, best_key = place, key
        if best is not None and self.rules.wait_for_input and own.kinds[best] is W:
            ends = now + own.took_us[best]
            if next_input is not None and next_input < ends:
                return None
        return best

    def _may_run(self, rank: int, place: int) -> bool:
        """True if the rank can still finish in the drawn order after running this op now."""
        front = self.front[rank]
        if place == front:
            return True
        growth, limit = self.orders[rank].growth, self.limits[rank]
        level = self.kept[rank] + growth[place]
        if level > limit:
            return False
        if growth[place] <= 0:
            return True
        waiting = self.waiting[rank]
        for before in range(front, place):
            if waiting[before]:
                level += growth[before]
                if level > limit:
                    return False
        return True

    def _start(self, rank: int, place: int, now: int) -> None:
        own, waiting = self.orders[rank], self.waiting[rank]
        self.heads[rank][own.queue[place]] = own.next_place[place]
        waiting[place] = False
        self.forwards_left[rank] -= own.kinds[place] is F
        front = self.front[rank]
        while front < len(waiting) and not waiting[front]:
            front += 1
        self.front[rank] = front
        if not self.started[rank]:
            self.began[rank] = now
        self.started[rank].append(place)
        self.kept[rank] += own.growth[place]
        end = self.free_at[rank] = now + own.took_us[place]
        self.left_us[rank] -= own.took_us[place]
        heappush(self.events, (end, rank))
        for target, at, lag_us in own.readers[place]:
            self.arrives[target][at] = end + lag_us
            if target != rank:
                heappush(self.events, (end + lag_us, target))
