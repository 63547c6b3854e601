"""The exact model, for CP-SAT: variables, constraints, objective.

One stage per rank. What makes it fast: the FIFO lemma (see `order`), memory as precedences (see
`precedences`) instead of a cumulative, a complete feasible hint and the horizon from it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from synth.kinds import OpKind
from synth.solve.fusion import Fusion
from synth.solve.precedences import Alternative, Before, Slot, requirements
from synth.solve.problem import Objective
from synth.solve.ranks import BW, SPLIT, STEP, B, F, Ranks, W
from synth.solve.solution import Solution


@dataclass(frozen=True)
class Scope:
    """Which ranks are modelled exactly; the others are replaced by delays.

    All ranks: the whole problem. Fewer (neighbours, `first` to `last`): a relaxation, because
    whatever the ranks outside do, they cannot be faster than an empty rank.
    """

    first: int
    last: int

    @property
    def ranks(self) -> range:
        """The modelled ranks."""
        return range(self.first, self.last + 1)


class Model:
    """A CP-SAT model of some neighbouring ranks, minimising makespan or period.

    `infeasible` is set where some op never fits in memory. With `fusible` the search also decides
    which B and W to fuse.
    """

    def __init__(
        self,
        ranks: Ranks,
        objective: Objective,
        horizon_us: int,
        scope: Scope | None = None,
        *,
        fusible: bool = False,
    ) -> None:
        self.ranks, self.objective, self.horizon_us = ranks, objective, horizon_us
        self.m = ranks.num_micro_batches
        self.scope = scope or Scope(0, len(ranks) - 1)
        self.cp = cp_model.CpModel()
        self.infeasible = False
        self._add_variables()
        self.fusions = {
            rank: Fusion(self.cp, ranks[rank], rank, self.start)
            for rank in self.scope.ranks
            if fusible and ranks[rank].gains_by_fusion
        }
        for rank in self.scope.ranks:
            self.order(rank)
            self.one_at_a_time(rank)
            self.memory(rank)
        self.transfers()
        self.outside()
        self.minimise()

    def _add_variables(self) -> None:
        """A start per op: not before the pipeline above can have delivered, not after the end."""
        self.start: dict[tuple[int, Slot], cp_model.IntVar] = {}
        slowest = 0
        for rank, costs in enumerate(self.ranks.ranks):
            slowest = max(slowest, costs.duration_us[F])
            head = self.ranks.head_us(rank)
            for kind in SPLIT:
                for k in range(self.m):
                    # At least k forwards have passed the slowest rank up to here.
                    earliest = head + k * slowest
                    latest = max(earliest, self._origin_us(rank) + self.horizon_us)
                    if kind == F and k == 0 and self.objective == Objective.PERIOD:
                        latest = earliest
                    if rank in self.scope.ranks:
                        self.start[rank, Slot(kind, k)] = self.cp.new_int_var(
                            earliest, latest, f"{kind}{rank}.{k}"
                        )

    def end(self, rank: int, slot: Slot) -> cp_model.LinearExpr:
        """When an op ends."""
        return self.start[rank, slot] + self._duration_us(rank, slot)

    def _duration_us(self, rank: int, slot: Slot) -> cp_model.LinearExpr | int:
        if rank in self.fusions:
            return self.fusions[rank].duration_us(slot)
        return self.ranks[rank].duration_us[slot.kind]

    def order(self, rank: int) -> None:
        """F, B, W of a micro-batch follow each other, and each kind takes micro-batches in order.

        FIFO loses nothing: micro-batches are identical, so the k-th op of a kind to start may be
        called number k. Sorting keeps every precedence between two kinds, and memory counts ops,
        not names.
        """
        for k in range(self.m):
            for kind, after in ((F, B), (B, W)):
                self._precede(rank, Before(Slot(kind, k), Slot(after, k)))
            for kind in SPLIT:
                if k > 0:
                    self._precede(rank, Before(Slot(kind, k - 1), Slot(kind, k)))

    def _precede(self, rank: int, before: Before) -> cp_model.Constraint:
        return self.cp.add(self.start[rank, before.second] >= self.end(rank, before.first))

    def one_at_a_time(self, rank: int) -> None:
        """A rank runs one op at a time."""
        self.cp.add_no_overlap(self._interval(rank, slot) for slot in self._slots())

    def _interval(self, rank: int, slot: Slot) -> cp_model.IntervalVar:
        start, size = self.start[rank, slot], self._duration_us(rank, slot)
        if isinstance(size, int):
            return self.cp.new_fixed_size_interval_var(start, size, "")
        end = self.cp.new_int_var(0, 4 * self.horizon_us, "")  # CP-SAT takes no sums here
        return self.cp.new_interval_var(start, size, end, "")

    def _slots(self) -> Iterator[Slot]:
        return (Slot(kind, k) for kind in SPLIT for k in range(self.m))

    def memory(self, rank: int) -> None:
        """Each op starts in one of the states in which it fits.

        What all of these ask is asked plainly as well, which helps propagation.
        """
        costs = self.ranks[rank]
        fusion = self.fusions.get(rank)
        for slot, alternatives in requirements(costs, self.m):
            self._require(rank, alternatives, fusion.separate(slot) if fusion else None)
        if fusion is not None:
            for slot, alternatives in requirements(costs, self.m, BW):
                self._require(rank, alternatives, fusion.fused_b[slot.microbatch])

    def _require(
        self, rank: int, alternatives: Sequence[Alternative], given: cp_model.LiteralT | None
    ) -> None:
        """One of the alternatives holds, where `given` holds."""
        conditions = [] if given is None else [given]
        if not alternatives:
            self.infeasible = self.infeasible or given is None
            self.cp.add_bool_or([~literal for literal in conditions])
            return
        if len(alternatives) == 1:
            for before in alternatives[0]:
                self._precede(rank, before).only_enforce_if(conditions)
            return
        choices = [self.cp.new_bool_var("") for _ in alternatives]
        for choice, alternative in zip(choices, alternatives, strict=True):
            for before in alternative:
                self._precede(rank, before).only_enforce_if(choice)
        self.cp.add_bool_or(choices).only_enforce_if(conditions)
        for before in _asked_by_all(alternatives):
            self._precede(rank, before).only_enforce_if(conditions)

    def transfers(self) -> None:
        """F waits for the activation from above, B for the gradient from below."""
        for rank in self.scope.ranks:
            costs = self.ranks[rank]
            if rank < self.scope.last:
                self._link((rank, F), (rank + 1, F), costs.down_us)
            if rank > self.scope.first:
                self._link((rank, B), (rank - 1, B), self.ranks[rank - 1].up_us)

    def _link(self, source: tuple[int, OpKind], target: tuple[int, OpKind], lag_us: int) -> None:
        """The k-th transfer starts when its op has ended and the link is free."""
        takes_turns = lag_us > self.ranks[source[0]].duration_us[source[1]]
        previous: cp_model.LinearExprT | None = None
        fusion = self.fusions.get(source[0]) if source[1] == B else None
        for k in range(self.m):
            slot = Slot(source[1], k)
            reader = self.start[target[0], Slot(target[1], k)]
            arrival: cp_model.IntVar = reader
            if takes_turns:
                arrival = self.cp.new_int_var(0, 4 * self.horizon_us + lag_us, "")
                self.cp.add(reader >= arrival)
                if previous is not None:
                    self.cp.add(arrival >= previous + lag_us)
                previous = arrival
            self.cp.add(arrival >= self.end(source[0], slot) + lag_us)
            if fusion is not None:
                fused_end = self.start[source[0], slot] + self.ranks[source[0]].duration_us[BW]
                self.cp.add(arrival >= fused_end + lag_us).only_enforce_if(fusion.fused_b[k])

    def outside(self) -> None:
        """The ranks below are a delay between F and B (none for the last rank)."""
        rank = self.scope.last
        delay_us = self.ranks.round_trip_us(rank)
        for k in range(self.m):
            ready = self.end(rank, Slot(F, k)) + delay_us
            self.cp.add(self.start[rank, Slot(B, k)] >= ready)

    def minimise(self) -> None:
        """The last end of a rank, with its STEP; for the period less its first start.

        Ranks above the scope end no sooner than the last gradients that reach them and the W's
        that are then still to do.
        """
        self.value = self.cp.new_int_var(0, self.horizon_us, "value")
        for rank in self.scope.ranks:
            end = self.end(rank, Slot(W, self.m - 1)) + self.ranks[rank].duration_us[STEP]
            self.cp.add(self.value >= end - self._origin_us(rank))
        for above in range(self.scope.first):
            self._minimise_above(above)
        self.cp.minimize(self.value)

    def _origin_us(self, rank: int) -> int:
        """From when a rank's time counts; its first op is F 0, as early as can be."""
        return self.ranks.head_us(rank) if self.objective == Objective.PERIOD else 0

    def _minimise_above(self, above: int) -> None:
        """After B k has come up to a rank, it has m − 1 − k B's and m − k W's left at least."""
        durations = self.ranks[above].duration_us
        way_us = self.ranks.way_back_us(self.scope.first, above)
        for k in range(self.m):
            left_us = (self.m - 1 - k) * durations[B] + (self.m - k) * durations[W]
            tail_us = way_us + left_us + durations[STEP] - self._origin_us(above)
            self.cp.add(self.value >= self.end(self.scope.first, Slot(B, k)) + tail_us)

    def at_least(self, bound_us: int) -> None:
        """Tell the search a bound proven elsewhere."""
        self.cp.add(self.value >= bound_us)

    def hint(self, solution: Solution, value_us: int) -> None:
        """Begin from a complete solution."""
        for key, variable in self.start.items():
            self.cp.add_hint(variable, solution.starts[key])
        for fusion in self.fusions.values():
            fusion.hint(solution.fused)
        self.cp.add_hint(self.value, value_us)

    def read(self, value: Callable[[cp_model.IntVar], int]) -> Solution:
        """The solution, given how to look a variable's value up."""
        pairs = [pair for fusion in self.fusions.values() for pair in fusion.chosen(value)]
        return Solution({key: value(v) for key, v in self.start.items()}, frozenset(pairs))


def _asked_by_all(alternatives: Sequence[tuple[Before, ...]]) -> Iterator[Before]:
    """The loosest of each kind of precedence that every alternative has."""
    sides: dict[tuple[OpKind, bool], list[Before]] = {}
    slot = _common_slot(alternatives)
    for alternative in alternatives:
        for before in alternative:
            is_after = before.second == slot
            other = before.first if is_after else before.second
            sides.setdefault((other.kind, is_after), []).append(before)
    for (_, is_after), found in sides.items():
        if len(found) == len(alternatives):
            if is_after:
                yield min(found, key=lambda before: before.first.microbatch)
            else:
                yield max(found, key=lambda before: before.second.microbatch)


def _common_slot(alternatives: Sequence[tuple[Before, ...]]) -> Slot:
    """The op that all the precedences are about."""
    common = set.intersection(*({*before} for found in alternatives for before in found))
    return next(iter(common))
