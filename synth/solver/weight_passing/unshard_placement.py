"""Visits of weights for a given order of a rank's ops: as few and as early as memory allows.

Weights that are read are held until their room is needed, and those whose next use is farthest go
first: of all ways to keep a limit this loads the fewest (Belady 1966). Then each UNSHARD moves
ahead of its first reader as far as allowed and as there is room. Room is counted by op, the same
for all ranks. What a schedule holds beyond it is found by the exact memory, which is checked
afterwards: the sum that ends at its home, and collectives.
"""

from collections import defaultdict
from collections.abc import Sequence

from synth.costs.stage_costs import StageCosts
from synth.op_kinds import ADDING, READING, OpKind
from synth.schedule.lowering.effects import Effects
from synth.schedule.ops import Op, Value
from synth.schedule.weight_flow import Sharded
from synth.solver.weight_passing.compute_order import ComputeOrder
from synth.solver.weight_passing.free_bytes import FreeBytes, Span
from synth.solver.weight_passing.gradient_sums import rounds_of, take_sums
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.visit_options import VisitOptions


class OpNeeds:
    """The bytes that an order of a rank's ops needs besides weights and static bytes.

    A rank holds all stages, so all values but weights and gradients stay on it. Gradients that B
    computes itself count as where they wait for W; with ZeRO-1 alone they do not, but there the
    weights stay on the rank, too.
    """

    def __init__(self, passing: WeightPassingProblem) -> None:
        self.passing = passing
        self._effects = Effects(passing.problem.costs.with_early_gradients(), passing.rounds)
        self._known: dict[Op, tuple[list[Value], list[Value], int, int]] = {}

    def free_bytes(
        self, order: ComputeOrder, visit_options: VisitOptions, headroom: int
    ) -> FreeBytes:
        """Return the bytes that an order leaves for weights, with its sums of gradients counted."""
        rows = [self._row(op) for op in order]
        last: dict[Value, int] = {}
        for place, (reads, makes, *_) in enumerate(rows):
            last |= dict.fromkeys((*reads, *makes), place)
        freed: defaultdict[int, int] = defaultdict(int)
        for value, place in last.items():
            freed[place] += self._effects.bytes_of(value)
        left = headroom - visit_options.reserve_bytes
        running, waiting = [], []
        for place, (_, _, made_bytes, rise_bytes) in enumerate(rows):
            waiting.append(left)
            running.append(left - rise_bytes)
            left -= made_bytes - freed[place]
        free = FreeBytes(running, waiting)
        self._take_gradients(order, visit_options, free)
        return free

    def _row(self, op: Op) -> tuple[list[Value], list[Value], int, int]:
        if op not in self._known:
            makes = self._effects.makes(op)
            made_bytes = sum(map(self._effects.bytes_of, makes))
            rise_bytes = self._effects.rise_bytes(op)
            self._known[op] = self._effects.reads(op), makes, made_bytes, rise_bytes
        return self._known[op]

    def _take_gradients(
        self, order: ComputeOrder, visit_options: VisitOptions, free: FreeBytes
    ) -> None:
        """Count the sums that come and go, or those that are accumulated until they are reduced."""
        if self.passing.movement != WeightMovement.RING:
            take_sums(order, self.passing.stages, visit_options, free)
            return
        ahead, behind = visit_options.buffering.receive_ahead, visit_options.buffering.send_behind
        for place, op in enumerate(order):
            if op.kind in ADDING:
                num_bytes = self.passing.stages[op.stage].gradient_bytes
                free.take(Span(max(0, place - ahead), place), num_bytes)
                free.take(Span(place + 1, place + behind, is_sent=True), num_bytes)


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
    table: OpNeeds, order: ComputeOrder, visit_options: VisitOptions, headroom: int | None
) -> list[Op]:
    """Put UNSHARDs and REDUCE_GRADs into an order; their numbers count the visits of a stage.

    Args:
        order: the order of a rank's ops.
        headroom: bytes for all that is not static; None: no limit.
    """
    free = None
    if headroom is not None and visit_options.sharded == Sharded.WEIGHTS:
        free = table.free_bytes(order, visit_options, headroom)
    if table.passing.movement == WeightMovement.GATHER:
        return with_gathers(order, table.passing.stages, visit_options, free)
    visits = _visits(
        order, table.passing.stages, visit_options, free, visit_options.buffering.send_behind
    )
    _begin_in_turn(table.passing, order, visits, free, visit_options)
    return _with_unshards(order, visits)


def with_gathers(
    order: Sequence[Op],
    stages: Sequence[StageCosts],
    visit_options: VisitOptions,
    free: FreeBytes | None,
) -> list[Op]:
    """Put UNSHARDs and REDUCE_GRADs of collectives into an order; numbers count those of a stage.

    Args:
        order: the ops of a rank.
        free: the bytes left for weights at each op; None: no limit.
    """
    visits = _visits(order, stages, visit_options, free)
    _begin_early(stages, visits, free, visit_options.ahead)
    return _with_collectives(order, visits, visit_options)


def _visits(
    order: Sequence[Op],
    stages: Sequence[StageCosts],
    visit_options: VisitOptions,
    free: FreeBytes | None,
    behind: int = 0,
) -> list[_Visit]:
    """Cut the ops that read each stage's weights into visits."""
    sizes = [stage.parameter_bytes for stage in stages]
    never = len(order)
    next_use, seen = [never] * len(order), dict.fromkeys(range(len(sizes)), never)
    for place in reversed(range(len(order))):
        if order[place].kind in READING:
            next_use[place] = seen[order[place].stage]
            seen[order[place].stage] = place
    found: list[_Visit] = []
    held: dict[int, _Visit] = {}
    upcoming: dict[int, int] = {}
    most_open = visit_options.most_open if visit_options.sharded == Sharded.WEIGHTS else None
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
    stages: Sequence[StageCosts], visits: list[_Visit], free: FreeBytes | None, ahead: int
) -> None:
    """Begin visits up to `ahead` ops before their first reader, earlier ones first."""
    sizes = [stage.parameter_bytes for stage in stages]
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
    visit_options: VisitOptions,
) -> None:
    """Begin visits early on a ring, where links serve transfers in the order of their readers.

    A visit begins no earlier than the one before it. Sums that are read before its weights are
    received as early as they are.
    """
    stages = passing.stages
    ended: dict[int, int] = {}
    ahead = visit_options.buffering.receive_ahead
    sums = [(place, op.stage) for place, op in enumerate(order) if op.kind in ADDING]
    posted = [max(0, place - ahead) for place, _ in sums]
    if free is not None:
        for visit in visits:
            free.take(visit.span, stages[visit.stage].parameter_bytes)
    begun = 0
    for visit in visits:
        earliest = max(visit.first - visit_options.ahead, ended.get(visit.stage, -1) + 1, begun)
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


def _unshards(visits: list[_Visit]) -> defaultdict[int, list[Op]]:
    """The UNSHARDs of visits, by the place of the op that they come before."""
    begun: defaultdict[int, list[Op]] = defaultdict(list)
    counts: defaultdict[int, int] = defaultdict(int)
    for visit in visits:
        begun[visit.begin].append(Op(OpKind.UNSHARD, visit.stage, counts[visit.stage]))
        counts[visit.stage] += 1
    return begun


def _with_unshards(order: Sequence[Op], visits: list[_Visit]) -> list[Op]:
    begun = _unshards(visits)
    return [each for place, op in enumerate(order) for each in (*begun[place], op)]


def _with_collectives(
    order: Sequence[Op], visits: list[_Visit], visit_options: VisitOptions
) -> list[Op]:
    """The ops with their UNSHARDs before them, and REDUCE_GRADs where gradients are reduced."""
    begun, rounds = _unshards(visits), rounds_of(order)
    added: defaultdict[int, int] = defaultdict(int)
    reduced: defaultdict[int, int] = defaultdict(int)
    found: list[Op] = []
    reducing: list[Op] = []
    for place, op in enumerate(order):
        found += begun[place] + reducing if visit_options.gathers_first else reducing + begun[place]
        found.append(op)
        reducing = []
        if op.kind in ADDING:
            added[op.stage] += 1
            if visit_options.is_reduced(added[op.stage], rounds[op.stage]):
                reducing = [Op(OpKind.REDUCE_GRAD, op.stage, reduced[op.stage])]
                reduced[op.stage] += 1
    return found + reducing
