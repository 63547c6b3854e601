"""A judge of plans that shares nothing with the verifier: ranks as processes, memory by recount.

Completeness and memory are those of `tests/synth/plain.py`. Deadlocks are found by replaying the
programs: a rank stops at what has not arrived, and a link delivers its messages one after the
other, each as soon as both ends are posted.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

from synth.costs.costs import Costs
from synth.op_kinds import OpKind
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Schedule
from tests.synth.plain import HOST, MOVED_OUT, Plain, Ring, Route, refusal

# An instruction of a rank: it is done once it returns True; until then its rank waits.
Instruction = Callable[[], bool]


def complaint(plan: Plan) -> str | None:
    """Find what is wrong with a plan; None if nothing is."""
    schedule = plan.schedule()
    caps = list(plan.caps_bytes) if plan.caps_bytes is not None else None
    found = refusal(schedule, plan.costs, caps)
    if found is not None:
        return found
    plain = Plain(schedule, plan.costs)
    if Replay(plain).is_stuck():
        return "deadlock: the replay does not end"
    ends_us = plain.ends_us()
    assert ends_us is not None
    ops = range(plain.first[-1])
    makespan_us = max(ends_us[i] for i in ops) - min(
        ends_us[i] - plain.durations_us[i] for i in ops
    )
    if plan.claim.makespan_us != makespan_us:
        return f"makespan {makespan_us} µs, claimed {plan.claim.makespan_us}"
    peaks = tuple(map(plain.peak, range(schedule.num_ranks)))
    if plan.claim.peak_bytes != peaks:
        return f"peaks {peaks}, claimed {plan.claim.peak_bytes}"
    return None


class Replay:
    """The programs of all ranks, run side by side."""

    def __init__(self, plain: Plain) -> None:
        self._plain = plain
        self._sent: set[Route] = set()
        self._received: set[Route] = set()
        self._arrived: set[Route] = set()
        self._reduced: set[Ring] = set()
        self._joined: defaultdict[Ring, set[int]] = defaultdict(set)
        self._programs = [list(self._program(rank)) for rank in range(len(plain.ops))]

    def is_stuck(self) -> bool:
        """Run everything as far as it goes; True if something is left."""
        done = [0] * len(self._programs)
        goes_on = True
        while goes_on:
            goes_on = self._deliver() or self._reduce()
            for rank, program in enumerate(self._programs):
                while done[rank] < len(program) and program[done[rank]]():
                    done[rank] += 1
                    goes_on = True
        return done != list(map(len, self._programs))

    def _program(self, rank: int) -> Iterable[Instruction]:
        plain = self._plain
        routes = [route for link in plain.routes for route in link]
        rings = [ring for queue in plain.rings.values() for ring in queue if rank in ring.ranks]
        for place in range(-1, len(plain.ops[rank]) + 1):
            for route in routes:
                if (route.target, route.post) == (rank, place):
                    yield self._adding(self._received, route)
            for route in routes:
                if (route.source, route.wait) == (rank, place):
                    yield self._waiting([route])
            if 0 <= place < len(plain.ops[rank]):
                op = plain.ops[rank][place]
                yield self._waiting([r for r in routes if (r.target, r.read) == (rank, place)])
                if op.kind == OpKind.STEP:
                    yield self._waiting_for_rings(
                        [ring for ring in rings if ring.stage == op.stage]
                    )
                for route in routes:
                    if (route.source, route.order) == (rank, place):
                        yield self._adding(self._sent, route)
            for ring in rings:
                if ring.behind[ring.ranks.index(rank)] == place:
                    yield self._joining(ring, rank)

    def _adding(self, posted: set[Route], route: Route) -> Instruction:
        def act() -> bool:
            posted.add(route)
            return True

        return act

    def _waiting(self, routes: list[Route]) -> Instruction:
        return lambda: self._arrived.issuperset(routes)

    def _waiting_for_rings(self, rings: list[Ring]) -> Instruction:
        return lambda: self._reduced.issuperset(rings)

    def _joining(self, ring: Ring, rank: int) -> Instruction:
        def act() -> bool:
            self._joined[ring].add(rank)
            return True

        return act

    def _deliver(self) -> bool:
        """Move the first message of every link whose two ends are posted."""
        moved = False
        for link in self._plain.routes:
            first = next((route for route in link if route not in self._arrived), None)
            if first is not None and self._is_ready(first):
                self._arrived.add(first)
                moved = True
        return moved

    def _is_ready(self, route: Route) -> bool:
        if route.target == HOST:
            return route in self._sent
        if route.source != HOST:
            return route in self._sent and route in self._received
        taken = route.value._replace(kind=MOVED_OUT)
        is_there = any(r.target == HOST and r.value == taken for r in self._arrived)
        return is_there and route in self._received

    def _reduce(self) -> bool:
        moved = False
        for queue in self._plain.rings.values():
            first = next((ring for ring in queue if ring not in self._reduced), None)
            if first is not None and self._joined[first] == set(first.ranks):
                self._reduced.add(first)
                moved = True
        return moved


def is_stuck(schedule: Schedule, costs: Costs) -> bool:
    """True if a schedule deadlocks; it must be complete."""
    return Replay(Plain(schedule, costs)).is_stuck()
