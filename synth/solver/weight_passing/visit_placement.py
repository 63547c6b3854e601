"""Visits of weights for a given order of a rank's ops: as few and as early as memory allows.

Weights that are read are held until their room is needed, and those whose next use is farthest go
first: of all ways to keep a limit this loads the fewest (Belady 1966). Then each UNSHARD moves
ahead of its first reader as far as allowed and as there is room. Room is counted by op; the
receives and sends of gradients are estimated, so the exact memory is checked afterwards.
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

    def __init__(self, travel: WeightPassingProblem) -> None:
        self.travel = travel
        self._effects = Effects(travel.problem.costs, travel.rounds)
        self._known: dict[Op, tuple[list[Value], list[Value], int, int]] = {}

    def needs(self, order: ComputeOrder, placing: Placing) -> list[int]:
        """The bytes held at each op besides static bytes and weights, with the op's rise."""
        rows = [self._row(op) for op in order]
        last: dict[Value, int] = {}
        for place, (reads, makes, *_) in enumerate(rows):
            last |= dict.fromkeys((*reads, *makes), place)
        freed: defaultdict[int, int] = defaultdict(int)
        for value, place in last.items():
            freed[place] += self._effects.bytes_of(value)
        level, needs = 0, []
        for place, (_, _, made_bytes, rise_bytes) in enumerate(rows):
            needs.append(level + rise_bytes)
            level += made_bytes - freed[place]
        self._add_gradients(order, placing, needs)
        return needs

    def _row(self, op: Op) -> tuple[list[Value], list[Value], int, int]:
        if op not in self._known:
            makes = self._effects.makes(op)
            made_bytes = sum(map(self._effects.bytes_of, makes))
            rise_bytes = self._effects.rise_bytes(op)
            self._known[op] = self._effects.reads(op), makes, made_bytes, rise_bytes
        return self._known[op]

    def _add_gradients(self, order: ComputeOrder, placing: Placing, needs: list[int]) -> None:
        """Add the sums that come and go, or those that are accumulated until they are reduced."""
        ahead, behind = placing.buffering.receive_ahead, placing.buffering.send_behind
        is_ring = self.travel.movement == WeightMovement.RING
        if not is_ring and placing.sharded == Sharded.OPTIMIZER:
            return
        opened: dict[int, int] = {}
        added: defaultdict[int, int] = defaultdict(int)
        for place, op in enumerate(order):
            if op.kind not in ADDING:
                continue
            num_bytes = self.travel.stages[op.stage].gradient_bytes
            begin = max(0, place - ahead) if is_ring else opened.setdefault(op.stage, place)
            added[op.stage] += 1
            if is_ring or self.is_reduced(added[op.stage], placing):
                opened.pop(op.stage, None)
                spans = [(begin, place), (place + 1, place + behind)]
                for first, end in spans:
                    for at in range(first, min(end + 1, len(needs))):
                        needs[at] += num_bytes

    def is_reduced(self, count: int, placing: Placing) -> bool:
        """True if a REDUCE_GRAD follows the `count`-th W of a stage."""
        if placing.sharded == Sharded.OPTIMIZER:
            return count == self.travel.rounds
        return count % placing.scatter_every == 0 or count == self.travel.rounds


class _Visit:
    """The visit of a stage from one op to another; it may begin earlier."""

    def __init__(self, stage: int, first: int) -> None:
        self.stage, self.begin, self.first, self.last = stage, first, first, first


def with_visits(
    table: OpNeeds, order: ComputeOrder, placing: Placing, headroom: int | None
) -> list[Op]:
    """Put UNSHARDs and REDUCE_GRADs into an order; their numbers count the visits of a stage.

    Args:
        table: the table of the problem.
        order: the order of a rank's ops.
        placing: the choices.
        headroom: bytes for all that is not static; None: no limit.
    """
    room = None
    if headroom is not None and placing.sharded == Sharded.WEIGHTS:
        left = headroom - placing.reserve_bytes
        room = [left - need for need in table.needs(order, placing)]
    sizes = [stage.parameter_bytes for stage in table.travel.stages]
    visits = _visits(order, sizes, room, placing)
    _begin_early(visits, sizes, room, placing.ahead, len(order))
    return _listed(table, order, visits, placing)


def _visits(
    order: ComputeOrder, sizes: Sequence[int], room: list[int] | None, placing: Placing
) -> list[_Visit]:
    """Cut the ops that read each stage's weights into visits."""
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
                held[op.stage] = _Visit(op.stage, place)
                found.append(held[op.stage])
            held[op.stage].last = place
            upcoming[op.stage] = next_use[place]
        reading = op.stage if op.kind in READING else None
        left = None if room is None else room[place]
        while _is_too_much(held, sizes, left, most_open):
            others = [stage for stage in held if stage != reading]
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
    visits: list[_Visit], sizes: Sequence[int], room: list[int] | None, ahead: int, num_ops: int
) -> None:
    """Begin visits up to `ahead` ops before their first reader, earlier ones first."""
    used = [0] * num_ops
    ended: dict[int, int] = {}
    for visit in visits:
        for place in range(visit.first, visit.last + 1):
            used[place] += sizes[visit.stage]
    for visit in visits:
        earliest = max(visit.first - ahead, ended.get(visit.stage, -1) + 1, 0)
        while visit.begin > earliest:
            before, size = visit.begin - 1, sizes[visit.stage]
            if room is not None and used[before] + size > room[before]:
                break
            used[before] += size
            visit.begin = before
        ended[visit.stage] = visit.last


def _listed(
    table: OpNeeds, order: ComputeOrder, visits: list[_Visit], placing: Placing
) -> list[Op]:
    """The ops with their UNSHARDs before them, and where gradients are reduced REDUCE_GRADs."""
    begun: defaultdict[int, list[Op]] = defaultdict(list)
    counts: defaultdict[int, int] = defaultdict(int)
    for visit in visits:
        begun[visit.begin].append(Op(OpKind.UNSHARD, visit.stage, counts[visit.stage]))
        counts[visit.stage] += 1
    is_ring = table.travel.movement == WeightMovement.RING
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
