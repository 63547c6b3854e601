"""The lowered form once more, op by op with dictionaries, to compare the one in arrays with.

Slow, and plain enough to be checked by reading. It knows any placement, copies of stages and
schedules that are not fit to run. `tests/synth/naive.py` is the other reading, of processes.
"""

import random
from collections import defaultdict
from typing import NamedTuple

from synth.costs.costs import Costs
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import MEASURED, OpKind
from synth.profile.links import Link, Links, PairLink
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op, Value, ValueKind
from synth.schedule.placements import placement

F, B, W, BW, STEP, R, O, L, K, G, U, D, A = OpKind  # noqa: E741 - the letters of schedule files
ACT, GRAD, SAVED, SAVED_W, WGRAD, REPLAY_INPUT, ACT_AGAIN, MOVED_OUT, PARKED, MOVED_BACK = list(
    ValueKind
)[:10]
WEIGHTS, GRAD_SUM, GRAD_ACC = list(ValueKind)[10:]
HOST = -1


class Route(NamedTuple):
    """A transfer: between whom, how much, how long; the places of its ends (host: none).

    `order` is what transfers of a link are ordered by: the place where the value was made, or for
    what comes back from the host, that of its RELOAD.
    """

    value: Value
    source: int
    target: int
    num_bytes: int
    duration_us: int
    order: int
    read: int
    post: int
    wait: int


class Ring(NamedTuple):
    """A reduction: its stage, ranks and duration, and by rank the place behind which it starts."""

    stage: int
    ranks: tuple[int, ...]
    duration_us: int
    behind: tuple[int, ...]


class Plain:
    """A lowered schedule: programs as text, durations and predecessors by node, peaks, times."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.schedule, self.costs = schedule, costs
        self.ops = [self._with_steps(rank) for rank in range(schedule.num_ranks)]
        self.first = [sum(map(len, self.ops[:rank])) for rank in range(len(self.ops) + 1)]
        listed = {op for program in self.ops for op in program}
        self.rebuilt = {op[1:] for op in listed if op.kind == R}
        self.moved = {op[1:] for op in listed if op.kind == O}
        self.given = {op[1:] for op in listed if op.kind == G}
        self.maker = {
            value: (rank, place)
            for rank, program in enumerate(self.ops)
            for place, op in enumerate(program)
            for value in self.makes(op)
        }
        self._find_routes()
        self._find_rings()
        self._find_durations()
        self._find_predecessors()

    def _with_steps(self, rank: int) -> list[Op]:
        program = self.schedule.programs[rank]
        held = sorted(
            (stage, replica)
            for replica, ranks in enumerate(self.schedule.placement.ranks)
            for stage, r in enumerate(ranks)
            if r == rank
        )
        steps = [Op(STEP, stage, 0, replica) for stage, replica in held]
        return [*program, *(step for step in steps if step not in program)]

    def reads(self, op: Op) -> list[Value]:
        """The values that an op reads."""
        kind, s, j, r = op
        stage, last = self.costs.stages[s], len(self.costs.stages) - 1
        if kind == STEP:
            return [Value(WGRAD, s, k, r) for k in range(self.schedule.num_micro_batches)]
        if kind in (O, L, K, G):
            read = {O: [SAVED], L: [PARKED], K: [], G: [MOVED_OUT]}[kind]
            return [Value(value, s, j, r) for value in read]
        if kind in (F, R):
            values = [Value(ACT, s - 1, j, r)] if s else []
            return values + ([Value(REPLAY_INPUT, s, j, r)] if kind == R else [])
        # Of what is held until F, B or W: what this op needs.
        needed = {B: (B, W), BW: (B, W), W: (W,)}[kind]
        values = []
        if s > 0 and stage.input_until in needed:
            values.append(Value(ACT, s - 1, j, r))
        if s < last and stage.output_until in needed:
            values.append(Value(ACT_AGAIN if op[1:] in self.rebuilt else ACT, s, j, r))
        if s < last and stage.gradient_until in needed:
            values.append(Value(GRAD, s, j, r))
        kept = MOVED_BACK if op[1:] in self.moved else SAVED
        values.append(Value(SAVED_W if kind == W else kept, s, j, r))
        return values

    def makes(self, op: Op) -> list[Value]:
        """The values that an op makes."""
        kind, s, j, r = op
        last = len(self.costs.stages) - 1
        above = [Value(ACT, s, j, r)] if s < last else []
        below = [Value(GRAD, s - 1, j, r)] if s > 0 else []
        again = (
            [Value(ACT_AGAIN, s, j, r)] if above and self.costs.stages[s].output_until != F else []
        )
        return {
            F: [Value(REPLAY_INPUT if op[1:] in self.rebuilt else SAVED, s, j, r), *above],
            R: [Value(SAVED, s, j, r), *again],
            O: [Value(MOVED_OUT, s, j, r), Value(PARKED, s, j, r)],
            L: [],
            K: [],
            G: [Value(MOVED_BACK, s, j, r)],
            B: [*below, Value(SAVED_W, s, j, r)],
            BW: [*below, Value(WGRAD, s, j, r)],
            W: [Value(WGRAD, s, j, r)],
            STEP: [],
        }[kind]

    def size(self, value: Value) -> int:
        """Bytes of a value."""
        stage = self.costs.stages[value.stage]
        return {
            ACT: stage.output_bytes,
            GRAD: stage.returned_bytes,
            SAVED: stage.saved_bytes,
            SAVED_W: stage.saved_w_bytes,
            WGRAD: 0,
            REPLAY_INPUT: stage.replay_bytes,
            ACT_AGAIN: stage.output_bytes,
            MOVED_OUT: stage.saved_bytes,
            PARKED: 0,
            MOVED_BACK: stage.saved_bytes,
        }[value.kind]

    def rise(self, op: Op) -> int:
        """The rise of memory while an op runs."""
        stage = self.costs.stages[op.stage]
        light = stage.light_rise_bytes
        if op.kind == F and op[1:] in self.rebuilt and light is not None:
            return light
        return stage.rise_bytes[op.kind]

    def _rooms(self) -> dict[tuple[Value, int], int]:
        """The rank and place of the op that allocates a value's buffer, HOST_FOR or RELOAD.

        The last one counts.
        """
        found: dict[Value, tuple[int, int]] = {}
        for rank, program in enumerate(self.ops):
            for place, op in enumerate(program):
                if op.kind in (K, L):
                    found[Value(MOVED_OUT if op.kind == K else MOVED_BACK, *op[1:])] = (rank, place)
        return {(value, rank): place for value, (rank, place) in found.items()}

    def _find_routes(self) -> None:
        """Link by link, as the programs first mention them."""
        links: defaultdict[tuple[int, int], list[tuple[int, Value, int]]] = defaultdict(list)
        for target, program in enumerate(self.ops):
            seen = set()
            for place, op in enumerate(program):
                for value in self.reads(op):
                    source, made = self.maker.get(value, (target, 0))
                    if source != target and value not in seen:
                        seen.add(value)
                        links[source, target].append((made, value, place))
        ahead, behind = (
            self.schedule.buffering.receive_ahead,
            self.schedule.buffering.send_behind,
        )
        rooms = self._rooms()
        self.routes: list[list[Route]] = []
        for (source, target), queue in links.items():
            queue.sort()
            posts = [
                rooms.get((value, target), self._ahead(target, read, ahead))
                for _, value, read in queue
            ]
            opened = [
                posts[i] if (value, target) in rooms else 0 for i, (_, value, _) in enumerate(queue)
            ]
            routes = []
            for index, (made, value, read) in enumerate(queue):
                post = max(min(posts[index:]), *opened[: index + 1], 0)
                wait = self._behind(source, made, behind)
                link = self.costs.links.between(source, target)
                duration_us = link.transfer_us(self.size(value))
                ends = (source, target, self.size(value), duration_us, made, read, post, wait)
                routes.append(Route(value, *ends))
            self.routes.append(routes)
        for rank in range(len(self.ops)):
            self._find_host_routes(rank)

    def _ahead(self, rank: int, place: int, count: int) -> int:
        """The place of the op `count` before, moves not counted, or of the first one."""
        counted = [i for i, op in enumerate(self.ops[rank]) if op.kind not in (O, L, K, G)]
        index = max(0, len([i for i in counted if i < place]) - count)
        return min([place, *counted[index : index + 1]])

    def _behind(self, rank: int, place: int, count: int) -> int:
        """The place of the op with `count` ops in between, or the program's end."""
        counted = [i for i, op in enumerate(self.ops[rank]) if op.kind not in (O, L, K, G)]
        later = [i for i in counted if i > place]
        return [*later, *([len(self.ops[rank])] * (count + 1))][count]

    def _find_host_routes(self, rank: int) -> None:
        """Find the transfers to the host, by OFFLOAD, and back, by RELOAD."""
        program, link = self.ops[rank], self.costs.links.host
        outwards, back = [], []
        for place, op in enumerate(program):
            if op.kind not in (O, L) or op[1:] in self.given:
                continue
            assert link is not None
            size = self.costs.stages[op.stage].saved_bytes
            duration_us = link.transfer_us(size)
            value = Value(MOVED_OUT if op.kind == O else MOVED_BACK, *op[1:])
            if op.kind == O:
                wait = self._behind(rank, place, self.schedule.buffering.send_behind)
                ends = (rank, HOST, size, duration_us, place, -1, 0, wait)
                outwards.append(Route(value, *ends))
            reads = [i for i, other in enumerate(program) if value in self.reads(other)]
            if op.kind == L and reads:
                ends = (HOST, rank, size, duration_us, place, reads[0], place, 0)
                back.append(Route(value, *ends))
        self.routes += [routes for routes in (outwards, back) if routes]

    def _last_weight(self, rank: int, stage: int) -> int:
        """The place of a rank's last W of any copy of a stage, −1 without one.

        In a schedule that is not eager: of its last op that is no STEP, of whatever stage.
        """
        return max(
            (
                i
                for i, op in enumerate(self.ops[rank])
                if (op.kind in (W, BW) and op.stage == stage)
                or (op.kind != STEP and not self.schedule.eager)
            ),
            default=-1,
        )

    def _find_rings(self) -> None:
        """By set of ranks, in the order of the largest place of the last W, then of stages."""
        copies = zip(*self.schedule.placement.ranks, strict=True)
        of_ranks: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for stage, ranks in enumerate(copies):
            latest = max(self._last_weight(rank, stage) for rank in ranks)
            if len(set(ranks)) == 1 and not self.costs.stages[stage].reduce_us:
                continue
            of_ranks.setdefault(tuple(sorted(set(ranks))), []).append((latest, stage))
        self.rings: dict[tuple[int, ...], list[Ring]] = {}
        # Sets stand in the order of the first reduction among each.
        for ranks, queue in sorted(of_ranks.items(), key=lambda item: min(item[1])):
            queue.sort()
            self.rings[ranks] = [
                Ring(
                    stage,
                    ranks,
                    self._ring_us(stage, ranks),
                    tuple(
                        max(self._last_weight(rank, s) for _, s in queue[: k + 1]) for rank in ranks
                    ),
                )
                for k, (_, stage) in enumerate(queue)
            ]

    def _ring_us(self, stage: int, ranks: tuple[int, ...]) -> int:
        n, own = len(ranks), self.costs.stages[stage]
        within = own.reduce_us
        if (
            n == 1
            and stage == 0
            and sum(row.count(ranks[0]) for row in self.schedule.placement.ranks) == 1
        ):
            within = max(round(within / 10), within - own.duration_us[BW])
        share = self.costs.stages[stage].gradient_bytes / n
        rounds = []
        for i in range(n):
            link = self.costs.links.between(ranks[i], ranks[(i + 1) % n])
            bandwidth = link.bandwidth_bytes_per_s
            rounds.append(link.latency_us + (share / bandwidth * 1e6 if bandwidth else 0))
        return within + round(2 * (n - 1) * max(rounds))

    def _find_durations(self) -> None:
        ops = [op for program in self.ops for op in program]
        self.durations_us = [self.costs.stages[op.stage].duration_us[op.kind] for op in ops]
        self.durations_us += [r.duration_us for routes in self.routes for r in routes]
        self.durations_us += [r.duration_us for rings in self.rings.values() for r in rings]

    def _find_predecessors(self) -> None:
        before: list[list[int]] = [[] for _ in self.durations_us]
        for rank, program in enumerate(self.ops):
            for place, op in enumerate(program):
                node = self.first[rank] + place
                before[node] += [node - 1] if place else []
                for value in self.reads(op):
                    maker_rank, made = self.maker.get(value, (rank, -1))
                    if maker_rank == rank and made >= place:
                        before[node].append(self.first[rank] + made)
        node = self.first[-1]
        for routes in self.routes:
            for index, route in enumerate(routes):
                before[node].append(self._maker_node(route))
                before[node] += [self.first[route.target] + route.post - 1] if route.post else []
                before[node] += [node - 1] if index else []
                if route.target != HOST:
                    before[self.first[route.target] + route.read].append(node)
                if route.source != HOST and route.wait < len(self.ops[route.source]):
                    before[self.first[route.source] + route.wait].append(node)
                node += 1
        for rings in self.rings.values():
            for index, ring in enumerate(rings):
                for replica in range(len(self.schedule.placement.ranks)):
                    self._tie_copy(before, ring, node, replica)
                before[node] += [node - 1] if index else []
                node += 1
        self.predecessors = before

    def _maker_node(self, route: Route) -> int:
        """The node that a transfer waits for: an op, or the transfer to the host."""
        if route.source != HOST:
            return self.first[route.source] + route.order
        taken = route.value._replace(kind=MOVED_OUT)
        every = [r for routes in self.routes for r in routes]
        return self.first[-1] + [(r.value, r.target) for r in every].index((taken, HOST))

    def _tie_copy(self, before: list[list[int]], ring: Ring, node: int, replica: int) -> None:
        """A reduction waits for the copy's last W, the copy's STEP for it."""
        mine = [
            (self.first[rank] + place, op.kind)
            for rank, program in enumerate(self.ops)
            for place, op in enumerate(program)
            if (op.stage, op.replica) == (ring.stage, replica)
        ]
        weights = [n for n, kind in mine if kind in (W, BW)]
        if self.schedule.eager:
            before[node] += [max(weights)] if weights else []
        elif replica == 0:  # once, for all copies
            ends = [(rank, self._last_weight(rank, ring.stage)) for rank in ring.ranks]
            before[node] += [self.first[rank] + place for rank, place in ends if place >= 0]
        before[max(n for n, kind in mine if kind == STEP)].append(node)

    def program(self, rank: int) -> list[str]:
        """A rank's instructions, each with the values that die with it behind a bar."""
        lines: list[tuple[str, list[Value]]] = []
        self._weave(lines, rank, -1)
        for place in range(len(self.ops[rank]) + 1):
            for routes in self.routes:
                for r in routes:
                    if (r.target, r.post) == (rank, place):
                        lines.append((f"RECV {self._named(r)}", [r.value]))
            for routes in self.routes:
                for r in routes:
                    if (r.source, r.wait) == (rank, place):
                        lines.append((f"SENT {self._named(r)}", [r.value]))
            if place < len(self.ops[rank]):
                op = self.ops[rank][place]
                lines.append((str(op), [*self.makes(op), *self.reads(op)]))
                for routes in self.routes:
                    for r in routes:
                        if (r.source, r.order) == (rank, place):
                            lines.append((f"SEND {self._named(r)}", [r.value]))
                self._weave(lines, rank, place)
        death = {value: i for i, (_, touched) in enumerate(lines) for value in touched}
        return [
            " ".join([text, "|", *sorted(str(v) for v in set(touched) if death[v] == i)])
            for i, (text, touched) in enumerate(lines)
        ]

    def _named(self, route: Route) -> str:
        ends = [
            "the host" if end == HOST else f"rank {end}" for end in (route.source, route.target)
        ]
        return f"{route.value} from {ends[0]} to {ends[1]}"

    def _weave(self, lines: list[tuple[str, list[Value]]], rank: int, place: int) -> None:
        """The reductions that start behind the op at a place."""
        for rings in self.rings.values():
            for ring in rings:
                among_ranks = len(ring.ranks) > 1 and rank in ring.ranks
                if among_ranks and ring.behind[ring.ranks.index(rank)] == place:
                    among = ", ".join(map(str, ring.ranks))
                    name = f"gradient of stage {ring.stage} among ranks {among}"
                    lines.append((f"COLLECT {name}", []))

    def ends_us(self) -> list[int] | None:
        """The end of each node; None if some never end."""
        ends: dict[int, int] = {}
        moved = True
        while moved:
            moved = False
            for node, before in enumerate(self.predecessors):
                if node not in ends and all(other in ends for other in before):
                    start = max((ends[other] for other in before), default=0)
                    ends[node] = start + self.durations_us[node]
                    moved = True
        return [ends[n] for n in range(len(ends))] if len(ends) == len(self.durations_us) else None

    def peak(self, rank: int) -> int:
        """The highest level of a rank: allocated bytes less dead ones, line by line."""
        stages = self.costs.stages
        ways = self.schedule.placement.ranks
        level = sum(
            stages[stage].static_bytes for way in ways for stage, r in enumerate(way) if r == rank
        )
        values = {str(v): v for program in self.ops for op in program for v in self.reads(op)}
        values |= {str(v): v for v in self.maker}
        highest = level
        for line in self.program(rank):
            text, dead = line.split(" |")
            if text.startswith("RECV"):
                level += self.size(values[text.removeprefix("RECV ").split(" from")[0]])
            elif not text.startswith(("SEN", "COL")):
                op = Op.parse(text)
                highest = max(highest, level + self.rise(op))
                level += sum(self.size(value) for value in self.makes(op))
            level -= sum(self.size(values[name]) for name in _names(dead))
            highest = max(highest, level)
        return highest

    def name(self, node: int) -> str:
        """A node for people."""
        for rank, program in enumerate(self.ops):
            if self.first[rank] <= node < self.first[rank + 1]:
                return f"{program[node - self.first[rank]]} on rank {rank}"
        later = [f"transfer of {self._named(r)}" for routes in self.routes for r in routes]
        for ring in (ring for rings in self.rings.values() for ring in rings):
            among = f"ranks {', '.join(map(str, ring.ranks))}"
            if len(ring.ranks) == 1:
                among = f"the devices of rank {ring.ranks[0]}"
            later.append(f"all-reduce of the gradient of stage {ring.stage} among {among}")
        return later[node - self.first[-1]]


def refusal(schedule: Schedule, costs: Costs, caps_bytes: list[int] | None = None) -> str | None:
    """The message that the verifier must give for a schedule; None if it is valid.

    Checks come one after another.
    """
    ranks = range(schedule.num_ranks)
    complaints = [_unknown_op(schedule, rank) for rank in ranks]
    complaints.append(_doubled_guest(schedule))
    complaints += [
        _bad_passage(schedule, stage, j)
        for stage in range(schedule.placement.num_stages)
        for j in range(schedule.num_micro_batches)
    ]
    found = next(filter(None, complaints), None)
    if found is not None:
        return found
    plain = Plain(schedule, costs)
    found = next(filter(None, (_bad_order(plain, rank) for rank in ranks)), None)
    if found is not None:
        return found
    if plain.ends_us() is None:
        return _cycle(plain)
    for rank, cap in enumerate(caps_bytes or []):
        if plain.peak(rank) > cap:
            return f"rank {rank} at "
    return None


def _unknown_op(schedule: Schedule, rank: int) -> str | None:
    program = schedule.programs[rank]
    ways = enumerate(schedule.placement.ranks)
    held = sorted((s, r) for r, way in ways for s, holder in enumerate(way) if holder == rank)
    for place, op in enumerate(program):
        where = f"rank {rank}, op {place} ({op}): "
        if op.kind in (K, G):
            ranks = schedule.placement.ranks
            if op.replica >= len(ranks) or op.stage >= len(ranks[0]):
                return where + "there is no such stage"
            if (op.stage, op.replica) in held:
                return (
                    f"{where}this rank holds stage {op.stage} itself; K and G stand on another rank"
                )
        elif (op.stage, op.replica) not in held:
            stages = ", ".join(str(stage) for stage, _ in held)
            return where + f"this rank holds stage {stages}, not {op.stage}"
        if op.microbatch >= schedule.num_micro_batches:
            return where + f"micro-batches run from 0 to {schedule.num_micro_batches - 1}"
        if op in program[:place]:
            return where + f"{op} stands here for the second time"
    return None


def _doubled_guest(schedule: Schedule) -> str | None:
    for rank, program in enumerate(schedule.programs):
        for place, op in enumerate(program):
            before = [r for r in range(rank) if op in schedule.programs[r]]
            if op.kind in (K, G) and before:
                return f"rank {rank}, op {place} ({op}): {op} stands on rank {before[0]} already"
    return None


def _bad_passage(schedule: Schedule, stage: int, j: int) -> str | None:
    ways = range(len(schedule.placement.ranks))
    every = [Op(kind, stage, j, way) for way in ways for kind in (F, B, W, BW, R, O, L, K, G)]
    there = [op for op in every if any(op in program for program in schedule.programs)]
    copies = {op.replica for op in there}
    rank = schedule.placement.ranks[min(copies, default=0)][stage]
    if len(copies) > 1:
        listed = ", ".join(map(str, there))
        return f"rank {rank}: one micro-batch is split over replicas: {listed}"
    kinds = [op.kind for op in there]
    for kind in (F, B, W):
        if kind not in kinds and not (BW in kinds and kind != F):
            return f"rank {rank}: {Op(kind, stage, j)} is missing"
    if BW in kinds and (B in kinds or W in kinds):
        extra = next(op for op in there if op.kind in (B, W))
        return f"rank {rank}: {extra} does again what {Op(BW, stage, j)} does"
    return _bad_moves(schedule, {op.kind: op for op in there if op.kind in (O, L, K, G)})


def _bad_moves(schedule: Schedule, there: dict[OpKind, Op]) -> str | None:
    ranks = {
        kind: next(r for r, program in enumerate(schedule.programs) if op in program)
        for kind, op in there.items()
    }
    for kind in (O, L, K, G) if K in there or G in there else (O, L):
        if there and kind not in there:
            first, op = next(iter(there.items()))
            return f"rank {ranks[first]}: {op} needs {op._replace(kind=kind)}, which is missing"
    if K in there and ranks[K] != ranks[G]:
        return f"rank {ranks[G]}: {there[G]} stands here, {there[K]} on rank {ranks[K]}"
    return None


def _bad_order(plain: Plain, rank: int) -> str | None:
    program = plain.ops[rank]
    kinds = [op.kind for op in program]
    first = kinds.index(STEP) if STEP in kinds else len(kinds)
    for place in range(first, len(program)):
        if kinds[place] != STEP:
            return (
                f"rank {rank}, op {place} ({program[place]}): stands behind {program[first]}; "
                f"STEP waits for all ranks, so it comes last"
            )
    for place, op in enumerate(program):
        for value in plain.reads(op):
            maker_rank, made = plain.maker.get(value, (rank, -1))
            if maker_rank == rank and made >= place:
                return f"rank {rank}, op {place} ({op}): runs before {program[made]}"
    return None


def _cycle(plain: Plain) -> str:
    """From the first stuck node back through the first stuck predecessor of each, to a repeat."""
    stuck = set(range(len(plain.predecessors)))
    while free := [n for n in stuck if stuck.isdisjoint(plain.predecessors[n])]:
        stuck -= set(free)
    path = [min(stuck)]
    while path[-1] not in path[:-1]:
        path.append(next(n for n in plain.predecessors[path[-1]] if n in stuck))
    cycle = path[path.index(path[-1]) : -1]
    names = " ← ".join(map(plain.name, cycle[:8])) + (" ← …" if len(cycle) > 8 else "")
    return f"deadlock: {names} ← {plain.name(cycle[0])} (each waits for the next)"


def _names(dead: str) -> list[str]:
    """`act(0, 1) act(0, 2)@1` without the blanks inside the brackets being taken for ends."""
    return [name.replace(",", ", ") for name in dead.replace(", ", ",").split()]


def random_costs(rng: random.Random, num_stages: int, num_ranks: int) -> Costs:
    """Unequal stages and links, every field drawn at random."""
    stages = tuple(
        StageCosts(
            duration_us={kind: rng.randint(0, 20) for kind in (*MEASURED, R)},
            static_bytes=rng.randint(0, 50),
            output_bytes=rng.randint(1, 9),
            output_gradient_bytes=rng.choice((None, 0, rng.randint(0, 9))),
            saved_bytes=rng.randint(0, 20),
            saved_w_bytes=rng.randint(0, 20),
            rise_bytes={kind: rng.randint(0, 30) for kind in (*MEASURED, R)},
            input_until=rng.choice((F, B, W)),
            output_until=rng.choice((F, B, W)),
            gradient_until=rng.choice((B, W)),
            gradient_bytes=rng.randint(0, 60),
            replay_bytes=rng.randint(0, 3),
            light_rise_bytes=rng.choice((None, 5, 15)),
            reduce_us=rng.choice((0, 0, rng.randint(1, 40))),
        )
        for _ in range(num_stages)
    )
    pairs: dict[tuple[int, int], PairLink] = {}
    for _ in range(rng.randint(0, 3)):
        ends = rng.randrange(num_ranks), rng.randrange(num_ranks)
        link = Link(latency_us=rng.randint(0, 9), bandwidth_bytes_per_s=rng.choice((None, 4e5)))
        if ends[0] != ends[1]:
            source, target = ends
            pairs.setdefault(ends, PairLink(source=source, target=target, **dict(link)))
    default = Link(latency_us=rng.randint(0, 5), bandwidth_bytes_per_s=1e6)
    host = Link(latency_us=rng.randint(0, 9), bandwidth_bytes_per_s=rng.choice((None, 5e5)))
    return Costs(
        stages=stages, links=Links(default=default, pairs=tuple(pairs.values()), host=host)
    )


def random_placement(rng: random.Random) -> Placement:
    """A named one, or stages and copies anywhere."""
    names = ("linear", "looped:2", "looped:3", "v", "wave:2")
    mirrors = ("bidirectional", "bidirectional-v", "bidirectional-looped:2")
    num_ranks = rng.randint(1, 4)
    if rng.random() < 0.75:
        return placement(rng.choice(names + mirrors), num_ranks)
    num_stages, num_replicas = rng.randint(num_ranks, 5), rng.randint(1, 3)
    ways = [[rng.randrange(num_ranks) for _ in range(num_stages)] for _ in range(num_replicas)]
    ways[0][:num_ranks] = range(num_ranks)
    return Placement(tuple(map(tuple, ways)))


def random_schedule(
    rng: random.Random, *, where: Placement | None = None, keeping: bool = False
) -> Schedule:
    """Ops in an order that respects what they read; its transfers may still deadlock.

    The micro-batches are split over the copies in any way; a copy may get none. In every other one,
    what some stages save of some micro-batches is rebuilt or moved, to the host or another rank;
    in none if `keeping`.
    """
    where, num_micro_batches = where or random_placement(rng), rng.randint(1, 4)
    num_stages = where.num_stages
    chains = []
    for j in range(num_micro_batches):
        r = rng.randrange(len(where.ranks))
        fused = [rng.random() < 0.3 for _ in range(num_stages)]
        chain = [Op(F, s, j, r) for s in range(num_stages)]
        chain += [Op(BW if fused[s] else B, s, j, r) for s in reversed(range(num_stages))]
        chains.append((chain, [Op(W, s, j, r) for s in range(num_stages) if not fused[s]]))
    programs: list[list[Op]] = [[] for _ in range(where.num_ranks)]
    placed: set[Op] = set()
    while any(chain or weights for chain, weights in chains):
        chain, weights = rng.choice(chains)
        ready = [w for w in weights if w._replace(kind=B) in placed]
        if ready and (not chain or rng.random() < 0.4):
            op = rng.choice(ready)
            weights.remove(op)
        elif chain:
            op = chain.pop(0)
        else:
            continue
        placed.add(op)
        programs[where.rank_of(op.stage, op.replica)].append(op)
    if rng.random() < 0.5 and not keeping:
        for op in [op for program in programs for op in program if op.kind == F]:
            if rng.random() < 0.3:
                _rebuild(rng, programs, op)
            if rng.random() < 0.3:
                _move(rng, programs, op)
    buffering = Buffering(rng.randint(0, 3), rng.randint(0, 3))
    ordered = tuple(map(tuple, programs))
    eager = rng.random() < 0.7
    return Schedule(where, num_micro_batches, ordered, "random", buffering, eager)


def _put_between(rng: random.Random, program: list[Op], op: Op, first: Op, last: Op) -> None:
    """Somewhere behind one op and before another."""
    program.insert(rng.randint(program.index(first) + 1, program.index(last)), op)


def _rebuild(rng: random.Random, programs: list[list[Op]], forward: Op) -> None:
    program = next(program for program in programs if forward in program)
    backward = next(op for op in program if op[1:] == forward[1:] and op.kind in (B, BW))
    _put_between(rng, program, forward._replace(kind=R), forward, backward)


def _move(rng: random.Random, programs: list[list[Op]], forward: Op) -> None:
    """To the host, or to another rank, where there may be room too early or too late."""
    program = next(program for program in programs if forward in program)
    backward = next(op for op in program if op[1:] == forward[1:] and op.kind in (B, BW))
    rebuilt = forward._replace(kind=R)
    maker = rebuilt if rebuilt in program else forward
    _put_between(rng, program, forward._replace(kind=O), maker, backward)
    _put_between(rng, program, forward._replace(kind=L), forward._replace(kind=O), backward)
    others = [other for other in programs if other is not program]
    if others and rng.random() < 0.5:
        other = rng.choice(others)
        place = rng.randint(0, len(other))
        other.insert(rng.randint(place, len(other)), forward._replace(kind=G))
        other.insert(place, forward._replace(kind=K))


def shuffled(rng: random.Random, schedule: Schedule) -> Schedule:
    """Ops exchanged, a STEP among them or an op lost: they all exist, but not in any good order."""
    programs = [list(program) for program in schedule.programs]
    if rng.random() < 0.3:
        program = rng.choice([p for p in programs if p])
        op = rng.choice(program)
        program.insert(rng.randint(0, len(program)), Op(STEP, op.stage, 0, op.replica))
    if rng.random() < 0.3:
        program = rng.choice([p for p in programs if p])
        del program[rng.randrange(len(program))]
    if not any(programs):
        return _with_programs(schedule, programs)
    for _ in range(rng.randint(1, 2)):
        program = rng.choice([p for p in programs if p])
        i, k = rng.randrange(len(program)), rng.randrange(len(program))
        program[i], program[k] = program[k], program[i]
    return _with_programs(schedule, programs)


def damaged(rng: random.Random, schedule: Schedule) -> Schedule:
    """One op lost, doubled, on another rank, of another name, or a STEP among the others."""
    programs = [list(program) for program in schedule.programs]
    program = rng.choice([p for p in programs if p])
    place = rng.randrange(len(program))
    op = program[place]
    match rng.randrange(7):
        case 0:
            del program[place]
        case 1:
            program.insert(rng.randint(0, len(program)), op)
        case 2:
            rng.choice(programs).append(program.pop(place))
        case 3:
            program[place] = op._replace(microbatch=rng.randint(0, schedule.num_micro_batches))
        case 4:
            program[place] = op._replace(
                kind=rng.choice((F, B, W, BW, R, O, L, K, G)),
                replica=rng.randrange(3),
                stage=rng.randrange(3),
            )
        case 5:
            program.insert(place, op._replace(kind=rng.choice((R, O, L, K, G))))
        case _:
            program.insert(place, Op(STEP, op.stage, 0, op.replica))
    return _with_programs(schedule, programs)


def _with_programs(schedule: Schedule, programs: list[list[Op]]) -> Schedule:
    return Schedule(
        schedule.placement,
        schedule.num_micro_batches,
        tuple(map(tuple, programs)),
        schedule.name,
        schedule.buffering,
        schedule.eager,
    )
