"""Local search on a schedule with offloads.

A step shifts an op, O or L, adds or removes a pair of O and L, fuses B and W or splits BW, or
changes the buffering.

Every step is verified and simulated exactly, links to the host included. It is simulated annealing
(Kirkpatrick, Gelatt and Vecchi 1983, "Optimization by simulated annealing"). Most steps change a
program near an op on the critical path.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from synth.op_kinds import OpKind
from synth.plan.tuning import OFFLOAD
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.simulate import Timeline
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate
from synth.solver.problem import Problem

_O, _L, _W, _BW = OpKind.OFFLOAD, OpKind.RELOAD, OpKind.W, OpKind.BW
_BACKWARD = (OpKind.B, _BW)


class MoveSearch:
    """Annealing from a schedule; `best` is the fastest found."""

    def __init__(self, problem: Problem, start: EvaluatedSchedule, seed: int) -> None:
        self.problem, self.best, self._current = problem, start, start
        self._rng = random.Random(seed)
        self._critical = list(_critical(start.timeline))
        self.steps = 0

    def run(self, done: Callable[[], float]) -> None:
        """Search until a function that gives the share of the effort spent, from 0 on, is at 1."""
        ops = self.problem.num_ops
        mean_us = sum(self._current.timeline.work_us) / ops
        while (share := done()) < 1:
            hot, cold = OFFLOAD.hottest_ops, OFFLOAD.coldest_ops
            self._step(mean_us * hot * (cold / hot) ** share)

    def _step(self, temperature_us: float) -> None:
        self.steps += 1
        current = self._current
        changed = self._changed(current.schedule)
        if changed is None:
            return
        found = evaluate(self.problem, changed, current.found_by)
        if found is None:
            return
        most_us = current.value_us - temperature_us * math.log(1 - self._rng.random())
        if found.value_us <= most_us:
            self._current, self._critical = found, list(_critical(found.timeline))
            if found.value_us < self.best.value_us:
                self.best = found

    def _changed(self, schedule: Schedule) -> Schedule | None:
        """Return a neighbour; None where the step drawn changes nothing."""
        rng, programs = self._rng, schedule.programs
        if rng.random() < OFFLOAD.buffering_share:
            ahead, behind = (max(0, count + rng.choice((-1, 0, 1))) for count in _pair(schedule))
            return replace(schedule, buffering=Buffering(ahead, behind))
        if rng.random() < OFFLOAD.critical_share and self._critical:
            rank, place = rng.choice(self._critical)
            place = min(max(0, place + rng.randint(-2, 2)), len(programs[rank]) - 1)
        else:
            rank = rng.randrange(len(programs))
            place = rng.randrange(len(programs[rank]))
        program = list(programs[rank])
        changed = self._change(program, place)
        if not changed:
            return None
        return replace(schedule, programs=(*programs[:rank], tuple(program), *programs[rank + 1 :]))

    def _change(self, program: list[Op], place: int) -> bool:
        """Change a program at a place; return False if nothing can change there."""
        rng, op = self._rng, program[place]
        if op.kind in (_O, _L) and rng.random() < OFFLOAD.renewal_share:
            for kind in (_O, _L):
                program.remove(op._replace(kind=kind))
            return True
        if op.kind == OpKind.F and rng.random() < OFFLOAD.renewal_share:
            return self._add(program, place)
        if op.kind in (_BW, _W) and rng.random() < OFFLOAD.renewal_share:
            _split_or_fuse(program, place)
            return True
        to = place + rng.choice((-1, 1)) * (1 + int(rng.expovariate(0.5)))
        passed = program[min(place, to) : max(place, to) + 1]
        if not 0 <= to < len(program) or sum(one[1:] == op[1:] for one in passed) > 1:
            return False  # ops of a micro-batch on a stage keep their order
        program.insert(to, program.pop(place))
        return True

    def _add(self, program: list[Op], place: int) -> bool:
        """Let a micro-batch move that does not."""
        op, rng = program[place], self._rng
        if op._replace(kind=_O) in program:
            return False
        end = next(
            i for i, one in enumerate(program) if one[1:] == op[1:] and one.kind in _BACKWARD
        )
        first = max(place + 1 + OFFLOAD.fewest_away, end - OFFLOAD.most_ahead)
        if first > end:
            return False
        program.insert(rng.randint(first, end), op._replace(kind=_L))
        program.insert(place + 1, op._replace(kind=_O))
        return True


def _split_or_fuse(program: list[Op], place: int) -> None:
    """Replace BW by B and W behind it, or a W and its B by BW in the place of B."""
    op = program[place]
    if op.kind == _BW:
        program[place : place + 1] = [op._replace(kind=OpKind.B), op._replace(kind=_W)]
    else:
        del program[place]
        program[program.index(op._replace(kind=OpKind.B))] = op._replace(kind=_BW)


def _pair(schedule: Schedule) -> tuple[int, int]:
    return schedule.buffering.receive_ahead, schedule.buffering.send_behind


def _critical(line: Timeline) -> Iterator[tuple[int, int]]:
    """Yield the ranks and places of ops on a critical path, last first."""
    lowered, ends = line.lowered, line.end_us
    first, last = lowered.first_node, max(range(len(ends)), key=ends.__getitem__)
    before: Sequence[Sequence[int]] = lowered.predecessors
    rank_of, node = lowered.arrays.rank, last
    while True:
        if node < first[-1]:
            rank = int(rank_of[node])
            place = node - first[rank]
            if lowered.ops[rank][place].kind != OpKind.STEP:
                yield rank, place
        tight = [one for one in before[node] if ends[one] == line.start_us[node]]
        if not tight or line.start_us[node] == 0:
            return
        node = tight[0]
