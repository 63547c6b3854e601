"""Visits of weights for a given order of a rank's ops: as few and as early as memory allows.

Weights that are read are held until their room is needed, and those whose next use is farthest go
first: of all ways to keep a limit this loads the fewest (Belady 1966). Then each UNSHARD moves
ahead of its first reader as far as allowed and as there is room. Room is counted by op, the same
for all ranks. What a schedule holds beyond it is found by the exact memory, which is checked
afterwards: the sum that ends at its home, and collectives.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from synth.op_kinds import ADDING, READING, OpKind
from synth.schedule.lowering.effects import Effects
from synth.schedule.model import Buffering
from synth.schedule.ops import Op, Value
from synth.schedule.weight_flow import Sharded
from synth.solver.weight_passing.compute_order import ComputeOrder
from synth.solver.weight_passing.free_bytes import FreeBytes, Span
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem

DEFAULT_BUFFERING = Buffering()


@dataclass(frozen=True)
class Placing:
    """The choices by which visits are placed.

    Attributes:
        ahead: the number of ops before its first reader at which a visit may begin.
        most_open: the most stages whose weights are on a rank at once; None: as many as fit.
        scatter_every: the number of W's of a stage after which its gradient is reduced. Whole
            gradients (ZeRO-1) are reduced once, whatever it says.
        gathers_first: True if all-gathers come before reduce-scatters among collectives at one
            place.
        buffering: the buffering of the schedule.
        sharded: the state that homes alone keep.
        reserve_bytes: room that visits leave.
    """

    ahead: int = 1
    most_open: int | None = None
    scatter_every: int = 1
    gathers_first: bool = False
    buffering: Buffering = DEFAULT_BUFFERING
    sharded: Sharded = Sharded.WEIGHTS
    reserve_bytes: int = 0


class OpNeeds:
    """The bytes that an order of a rank's ops needs besides weights and static bytes.

    A rank holds all stages, so all values but weights and gradients stay on it.
    """

    def __init__(self, passing: WeightPassingProblem) -> None:
        self.passing = passing
        self._effects = Effects(passing.problem.costs, passing.rounds)
        self._known: dict[Op, tuple[list[Value], list[Value], int, int]] = {}

    def free_bytes(self, order: ComputeOrder, placing: Placing, headroom: int) -> FreeBytes:
        """Return the bytes that an order leaves for weights, with its sums of gradients counted."""
        rows = [self._row(op) for op in order]
        last: dict[Value, int] = {}
        for place, (reads, makes, *_) in enumerate(rows):
            last |= dict.fromkeys((*reads, *makes), place)
        freed: defaultdict[int, int] = defaultdict(int)
        for value, place in last.items():
            freed[place] += self._effects.bytes_of(value)
        left = headroom - placing.reserve_bytes
        running, waiting = [], []
        for place, (_, _, made_bytes, rise_bytes) in enumerate(rows):
            waiting.append(left)
            running.append(left - rise_bytes)
            left -= made_bytes - freed[place]
        free = FreeBytes(running, waiting)
        self._take_gradients(order, placing, free)
        return free

    def _row(self, op: Op) -> tuple[list[Value], list[Value], int, int]:
        if op not in self._known:
            makes = self._effects.makes(op)
            made_bytes = sum(map(self._effects.bytes_of, makes))
            rise_bytes = self._effects.rise_bytes(op)
            self._known[op] = self._effects.reads(op), makes, made_bytes, rise_bytes
        return self._known[op]

    def _take_gradients(self, order: ComputeOrder, placing: Placing, free: FreeBytes) -> None:
        """Count the sums that come and go, or those that are accumulated until they are reduced."""
        ahead, behind = placing.buffering.receive_ahead, placing.buffering.send_behind
        is_ring = self.passing.movement == WeightMovement.RING
        if not is_ring and placing.sharded == Sharded.OPTIMIZER:
            return
        opened: dict[int, int] = {}
        added: defaultdict[int, int] = defaultdict(int)
        for place, op in enumerate(order):
            if op.kind not in ADDING:
                continue
            num_bytes = self.passing.stages[op.stage].gradient_bytes
            begin = max(0, place - ahead) if is_ring else opened.setdefault(op.stage, place)
            added[op.stage] += 1
            if is_ring or self.is_reduced(added[op.stage], placing):
                opened.pop(op.stage, None)
                free.take(Span(begin, place), num_bytes)
                free.take(Span(place + 1, place + behind, is_sent=True), num_bytes)

    def is_reduced(self, count: int, placing: Placing) -> bool:
        """True if a REDUCE_GRAD follows the `count`-th W of a stage."""
        if placing.sharded == Sharded.OPTIMIZER:
            return count == self.passing.rounds
        return count % placing.scatter_every == 0 or count == self.passing.rounds


class _Visit:
    """The visit of a stage from one op to another; it may begin earlier."""

    def __init__(self, stage: int, first: int, behind: int) -> None:
        self.stage, self.begin, self.first, self.last = stage, first, first, first
        self.behind = behind

    @property
    def span(self) -> Span:
        """The ops during which its weights are held, also until they have been sent on."""
        sent = self.first + self.behind
        return Span(self.begin, max(self.last, sent), is_sent=sent >= self.last)


def with_chosen_visits(
    table: OpNeeds, order: ComputeOrder, placing: Placing, headroom: int | None
) -> list[Op]:
    """Put UNSHARDs and REDUCE_GRADs into an order; their numbers count the visits of a stage.

    Args:
        table: the table of the problem.
        order: the order of a rank's ops.
        placing: the choices.
        headroom: bytes for all that is not static; None: no limit.
    """
    free = None
    if headroom is not None and placing.sharded == Sharded.WEIGHTS:
        free = table.free_bytes(order, placing, headroom)
    visits = _visits(table.passing, order, free, placing)
    if table.passing.movement == WeightMovement.RING:
        _begin_in_turn(table.passing, order, visits, free, placing)
    else:
        _begin_early(table.passing, visits, free, placing.ahead)
    return _listed(table, order, visits, placing)


def _visits(
    passing: WeightPassingProblem, order: ComputeOrder, free: FreeBytes | None, placing: Placing
) -> list[_Visit]:
    """Cut the ops that read each stage's weights into visits."""
    sizes = [stage.parameter_bytes for stage in passing.stages]
    is_ring = passing.movement == WeightMovement.RING
    behind = placing.buffering.send_behind if is_ring else 0
    never = len(order)
    next_use, seen = [never] * len(order), dict.fromkeys(range(len(sizes)), never)
    for place in reversed(range(len(order))):
        if order[place].kind in READING:
            next_use[place] = seen[order[place].stage]
            seen[order[place].stage] = place
    found: list[_Visit] = []
    held: dict[int, _Visit] = {}
    upcoming: dict[int, int] = {}
    most_open = placing.most_open if placing.sharded == Sharded.WEIGHTS else None
    for place, op in enumerate(order):
        if op.kind in READING:
            if op.stage not in held:
                held[op.stage] = _Visit(op.stage, place, behind)
                found.append(held[op.stage])
            held[op.stage].last = place
            upcoming[op.stage] = next_use[place]
        reading = op.stage if op.kind in READING else None
        left = None
        if free is not None:
            leaving = (one for one in found[-behind - 1 :] if held.get(one.stage) is not one)
            gone = sum(sizes[one.stage] for one in leaving if one.span.last >= place)
            left = free.running[place] - gone
        while _is_too_much(held, sizes, left, most_open):
            others = [
                stage
                for stage, visit in held.items()
                if stage != reading and visit.first + behind < place
            ]
            if not others:
                break
            del held[max(others, key=upcoming.__getitem__)]
        for stage in [stage for stage in held if upcoming[stage] == never]:
            del held[stage]
    return found


def _is_too_much(
    held: dict[int, _Visit], sizes: Sequence[int], room: int | None, most_open: int | None
) -> bool:
    if most_open is not None and len(held) > most_open:
        return True
    return room is not None and sum(sizes[stage] for stage in held) > room


def _begin_early(
    passing: WeightPassingProblem, visits: list[_Visit], free: FreeBytes | None, ahead: int
) -> None:
    """Begin visits up to `ahead` ops before their first reader, earlier ones first."""
    sizes = [stage.parameter_bytes for stage in passing.stages]
    ended: dict[int, int] = {}
    for visit in visits:
        if free is not None:
            free.take(visit.span, sizes[visit.stage])
    for visit in visits:
        earliest = max(visit.first - ahead, ended.get(visit.stage, -1) + 1, 0)
        while visit.begin > earliest:
            more = Span(visit.begin - 1, visit.begin - 1)
            if free is not None and not free.has(more, sizes[visit.stage]):
                break
            if free is not None:
                free.take(more, sizes[visit.stage])
            visit.begin -= 1
        ended[visit.stage] = visit.last


def _begin_in_turn(
    passing: WeightPassingProblem,
    order: ComputeOrder,
    visits: list[_Visit],
    free: FreeBytes | None,
    placing: Placing,
) -> None:
    """Begin visits early on a ring, where links serve transfers in the order of their readers.

    A visit begins no earlier than the one before it. Sums that are read before its weights are
    received as early as they are.
    """
    stages = passing.stages
    ended: dict[int, int] = {}
    ahead = placing.buffering.receive_ahead
    sums = [(place, op.stage) for place, op in enumerate(order) if op.kind in ADDING]
    posted = [max(0, place - ahead) for place, _ in sums]
    if free is not None:
        for visit in visits:
            free.take(visit.span, stages[visit.stage].parameter_bytes)
    begun = 0
    for visit in visits:
        earliest = max(visit.first - placing.ahead, ended.get(visit.stage, -1) + 1, begun)
        while visit.begin > earliest:
            before = visit.begin - 1
            pulled = [
                i for i, (place, _) in enumerate(sums) if posted[i] > before and place < visit.first
            ]
            added = stages[visit.stage].parameter_bytes + sum(
                stages[sums[i][1]].gradient_bytes for i in pulled
            )
            if free is not None and not free.has(Span(before, before), added):
                break
            if free is not None:
                free.take(Span(before, before), added)
            for i in pulled:
                posted[i] = before
            visit.begin = before
        ended[visit.stage] = visit.last
        begun = visit.begin


def _listed(
    table: OpNeeds, order: ComputeOrder, visits: list[_Visit], placing: Placing
) -> list[Op]:
    """The ops with their UNSHARDs before them, and where gradients are reduced REDUCE_GRADs."""
    begun: defaultdict[int, list[Op]] = defaultdict(list)
    counts: defaultdict[int, int] = defaultdict(int)
    for visit in visits:
        begun[visit.begin].append(Op(OpKind.UNSHARD, visit.stage, counts[visit.stage]))
        counts[visit.stage] += 1
    is_ring = table.passing.movement == WeightMovement.RING
    added: defaultdict[int, int] = defaultdict(int)
    reduced: defaultdict[int, int] = defaultdict(int)
    found: list[Op] = []
    reducing: list[Op] = []
    for place, op in enumerate(order):
        found += begun[place] + reducing if placing.gathers_first else reducing + begun[place]
        found.append(op)
        reducing = []
        if op.kind in ADDING and not is_ring:
            added[op.stage] += 1
            if table.is_reduced(added[op.stage], placing):
                reducing = [Op(OpKind.REDUCE_GRAD, op.stage, reduced[op.stage])]
                reduced[op.stage] += 1
    return found + reducing
