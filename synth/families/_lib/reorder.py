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
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from synth.errors import SynthError
from synth.families._lib.family import Programs, Setting
from synth.families._lib.order_network import NEVER, Order, OrderNetwork, RankOrder
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.profile.links import Links

F, B, W = OpKind.F, OpKind.B, OpKind.W


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


_OVERTAKING = [Rules(True, late, wait) for late in (False, True) for wait in (False, True)]


def fitted(setting: Setting, order: Order, limits_bytes: Sequence[int]) -> Programs:
    """Return the order, or the reordering of it, of the least value of the setting's objective.

    Of equal values it is the one with the least period, then the least makespan.

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
    network, below_us = OrderNetwork.of(setting, order), setting.below_us
    objective = setting.objective
    best = _in_order(network, network.as_ordered).better(None, most_us, below_us)
    for rules in _OVERTAKING:
        most = most_us if best is None else best.most_period_us(objective)
        fit = _Run(network, limits_bytes, rules).run(most, below_us)
        best = best if fit is None else fit.better(best, most, objective=objective)
    if not _are_as_drawn(setting):
        # As the authors do: fit to the drawn times, then run in the resulting order.
        redrawn = _fitted_to_drawn_times(network, limits_bytes)
        if redrawn != network.as_ordered:
            fit = _in_order(network, redrawn)
            best = fit.better(best, most_us, below_us, objective)
    if best is None:
        return None
    return [
        [own.order[place] for place in places]
        for own, places in zip(network.ranks, best.places, strict=True)
    ]


def _fitted_to_drawn_times(network: OrderNetwork, limits_bytes: Sequence[int]) -> "_Places":
    """Return the order or its reordering in cool-down, whichever is shorter for F = B = W."""
    drawn = network.in_drawn_times()
    squeezed = _in_order(drawn, drawn.as_ordered)
    rules = Rules(overtake=True, in_cool_down=True)
    reordered = _Run(drawn, limits_bytes, rules).run(squeezed.period_us)
    return (squeezed if reordered is None else reordered.better(squeezed) or squeezed).places


def _are_as_drawn(setting: Setting) -> bool:
    """True if F, B and W of all stages take the same time, and transfers none."""
    times = {stage.duration_us[kind] for stage in setting.costs.stages for kind in (F, B, W)}
    return len(times) == 1 and setting.costs.links == Links()


# Every rank's ops as they run, by their places in the drawn order.
_Places = Sequence[Sequence[int]]


class _Fit(NamedTuple):
    """A complete run.

    Attributes:
        period_us: the longest time of a rank from its first op to its last.
        makespan_us: the time from 0 to the end of the last op.
        places: of the ops in the order in which they ran.
    """

    period_us: int
    makespan_us: int
    places: _Places

    def better(
        self,
        best: "_Fit | None",
        most_us: int | None = None,
        below_us: int | None = None,
        objective: Objective = Objective.PERIOD,
    ) -> "_Fit | None":
        """Return this if its value is less than the best's and its period allowed, else the best.

        Args:
            best: to compare with; None: there is none yet.
            below_us: the period must be below this.
        """
        if most_us is not None and self.period_us > most_us:
            return best
        if below_us is not None and self.period_us >= below_us:
            return best
        return self if best is None or self._worth(objective) < best._worth(objective) else best

    def _worth(self, objective: Objective) -> tuple[int, int, int]:
        """Return the key of comparison; less is better."""
        return objective.value_us(self), self.period_us, self.makespan_us

    def most_period_us(self, objective: Objective) -> int:
        """Return the longest period of a run that is as good: no makespan is below its period."""
        return objective.value_us(self) // objective.iterations


def _in_order(network: OrderNetwork, places: _Places) -> _Fit:
    """Run every rank's ops in an order without deadlock, each as early as it can."""
    ranks = network.ranks
    arrives = [own.arrives for own in ranks]
    next_of, free_at, began = ([0] * len(ranks) for _ in range(3))
    ready = list(range(len(ranks)))
    while ready:
        rank = ready.pop()
        own, program, arrivals = ranks[rank], places[rank], arrives[rank]
        at, now = next_of[rank], free_at[rank]
        while at < len(program) and arrivals[program[at]] != NEVER:
            place = program[at]
            start = max(now, arrivals[place])
            if at == 0:
                began[rank] = start
            at, now = at + 1, start + own.took_us[place]
            for target, reader, lag_us in own.readers[place]:
                arrives[target][reader] = now + lag_us
                if target != rank:
                    ready.append(target)
        next_of[rank], free_at[rank] = at, now
    if any(at < len(program) for at, program in zip(next_of, places, strict=True)):
        raise RuntimeError("the order does not run to its end")
    period_us = max(end - begin for begin, end in zip(began, free_at, strict=True))
    return _Fit(period_us, max(free_at), places)


class _RankRun:
    """A rank of a run: what has run, and what can run next."""

    __slots__ = (
        "_forwards_left", "_front", "_heads", "_kept", "_limit", "_num_places", "_own", "_rules",
        "_waiting", "arrives", "began", "free_at", "left_us", "started",
    )  # fmt: skip

    def __init__(self, own: RankOrder, limit_bytes: int, rules: Rules) -> None:
        self._own, self._limit, self._rules = own, limit_bytes, rules
        self._num_places = len(own.order)
        self._waiting = [True] * self._num_places
        self._heads = list(own.heads)
        self._forwards_left = own.kinds.count(F)
        self._front = self._kept = 0
        self.arrives = own.arrives
        self.started: list[int] = []
        self.left_us = sum(own.took_us)
        self.began = self.free_at = 0

    @property
    def is_done(self) -> bool:
        """True if all ops have run."""
        return len(self.started) == self._num_places

    def choose(self, now: int) -> int | None:
        """Return the place in the drawn order of the op to start now; None: the rank waits."""
        kinds, arrivals, num_places = self._own.kinds, self.arrives, self._num_places
        weights_last = not self._forwards_left or not self._rules.in_cool_down
        best, front = None, self._front
        if arrivals[front] <= now and not (weights_last and kinds[front] is W):
            best = front  # no other one comes before it
        else:
            best_key = num_places * 2
            for place in self._heads:
                if arrivals[place] > now:
                    continue
                key = place + num_places if weights_last and kinds[place] is W else place
                if key < best_key and self._may_run(place):
                    best, best_key = place, key
        if best is None or not self._rules.wait_for_input or kinds[best] is not W:
            return best
        ends = now + self._own.took_us[best]
        has_input = any(
            now < arrivals[place] < ends and kinds[place] is not W and self._may_run(place)
            for place in self._heads
        )
        return None if has_input else best

    def _may_run(self, place: int) -> bool:
        """True if the rank can still finish in the drawn order after running this op now."""
        front = self._front
        if place == front:
            return True
        growth, limit = self._own.growth, self._limit
        level = self._kept + growth[place]
        if level > limit:
            return False
        if growth[place] <= 0:
            return True
        waiting = self._waiting
        for before in range(front, place):
            if waiting[before]:
                level += growth[before]
                if level > limit:
                    return False
        return True

    def start(self, place: int, now: int) -> int:
        """Start an op, and return when it ends."""
        own, waiting = self._own, self._waiting
        self._heads[own.queue[place]] = own.next_place[place]
        waiting[place] = False
        self._forwards_left -= own.kinds[place] is F
        if place == self._front:
            front = place + 1
            while front < self._num_places and not waiting[front]:
                front += 1
            self._front = front
        if not self.started:
            self.began = now
        self.started.append(place)
        self._kept += own.growth[place]
        took_us = own.took_us[place]
        self.left_us -= took_us
        self.free_at = end = now + took_us
        return end


class _Run:
    """One simulation of all ranks that decides the next op of each."""

    def __init__(self, network: OrderNetwork, limits_bytes: Sequence[int], rules: Rules) -> None:
        self._readers = [own.readers for own in network.ranks]
        self._ranks = [
            _RankRun(own, limit, rules)
            for own, limit in zip(network.ranks, limits_bytes, strict=True)
        ]

    def run(self, most_us: int | None = None, below_us: int | None = None) -> _Fit | None:
        """Make the order: a rank decides whenever it is free or gets an input.

        Args:
            most_us: the run ends once its period is certain to exceed this.
            below_us: it ends, too, once the same order has no period below this, even if its ops
                start as early as they can.

        Returns:
            The complete run; None: it was ended.
        """
        ranks, waited_us = self._ranks, 0  # by all ranks, though the op could have run
        events = [(0, rank) for rank in range(len(ranks))]
        while events:
            now, rank = heappop(events)
            own = ranks[rank]
            if own.free_at > now or (place := own.choose(now)) is None:
                continue
            waited_us += now - max(own.free_at, own.arrives[place])
            end = own.start(place, now)
            heappush(events, (end, rank))
            for target, reader, lag_us in self._readers[rank][place]:
                waiting = ranks[target]
                waiting.arrives[reader] = arrives_us = end + lag_us
                # A rank that is busy then decides when it is free.
                if target != rank and waiting.free_at <= arrives_us:
                    heappush(events, (arrives_us, target))
            least_us = end - own.began + own.left_us
            if most_us is not None and least_us > most_us:
                return None
            if below_us is not None and least_us - waited_us >= below_us:
                return None
        if not all(own.is_done for own in ranks):
            raise RuntimeError("the drawn order does not run to its end")
        return self._fit()

    def _fit(self) -> _Fit:
        ranks = self._ranks
        period_us = max(own.free_at - own.began for own in ranks)
        makespan_us = max(own.free_at for own in ranks)
        return _Fit(period_us, makespan_us, [own.started for own in ranks])
