"""Schedules without a flush under tight memory, against an independent random list scheduler.

    python -m benchmarks.flush_free_rival [--cases 12] [--limit 5]

The rival runs, on each rank, a random one of the ops whose input has come and which fit, by random
weights of its own, and lets a rank wait now and then. It counts activations and stashed versions as
one memory, by replaying what each forward read; the verifier judges what it made. It has as much
processor time as the search.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.cpsat_calls import processor_s
from benchmarks.generated_cases import case_parser, numbers_of
from benchmarks.realistic_suite import in_processor_time
from synth.costs.costs import Costs, uniform_costs
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering
from synth.schedule.ops import Op
from synth.schedule.steady_state import steady_us
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.flush_free.search import solve_flush_free
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem

F, B, W = OpKind.F, OpKind.B, OpKind.W

_RULES = (Consistency.STASH, Consistency.VERTICAL, Consistency.TWO_VERSIONS)
_SAVED = 1000


class Row(NamedTuple):
    """A case: the time of a micro-batch found by the search and by the rival; None: none."""

    case: int
    rule: str
    found_us: float | None
    bound_us: float
    rival_us: float | None

    @property
    def loss_percent(self) -> float:
        """By how much the search takes longer than the rival, at least 0."""
        if self.rival_us is None:
            return 0.0
        found = float("inf") if self.found_us is None else self.found_us
        return max(0.0, 100 * (found / self.rival_us - 1))


def case(number: int) -> FlushFreeProblem:
    """Generate a problem of two to four ranks within one to three activations and a version."""
    rng = random.Random(number)
    num_ranks, rule = rng.randint(2, 4), _RULES[number % len(_RULES)]
    parameters = rng.choice((300, 700, 1000, 1500, 2000))
    saved_w, link_us = rng.choice((0, 300, 600)), 10 * rng.randint(0, 6)
    made = uniform_costs(
        num_ranks,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        saved_bytes=_SAVED,
        saved_w_bytes=saved_w,
        parameter_bytes=parameters,
        gradient_bytes=parameters,
        static_bytes=4 * parameters,
        links=Links(default=Link(latency_us=link_us)),
    )
    stages = tuple(_timed(stage, rng) for stage in made.stages)
    costs: Costs = made.replace(stages=stages)
    share = rng.uniform(0.0, 1.0)
    cap = 4 * parameters + round(_SAVED + share * (_SAVED * (num_ranks - 1) + parameters))
    every = num_ranks if rule == Consistency.TWO_VERSIONS else 1
    return FlushFreeProblem(Problem.linear(costs, 60, cap), rule, every)


def _timed(stage: StageCosts, rng: random.Random) -> StageCosts:
    f, b, w = (10 * rng.randint(2, 8) for _ in range(3))
    us = {F: f, B: b, W: w, OpKind.BW: b + w, OpKind.STEP: rng.choice((0, 4))}
    return stage.replace(duration_us={kind: us.get(kind, 0) for kind in stage.duration_us})


class _Rank:
    """A rank of the rival: what it ran, and what it holds."""

    def __init__(self, rival: "Rival", number: int, rng: random.Random) -> None:
        self.rival, self.number = rival, number
        self.weights = {kind: rng.random() for kind in (F, B, W)}
        self.most_waiting = rng.choice((1, 1, 2, 3, 8))
        self.done, self.program = {F: 0, B: 0, W: 0}, list[Op]()
        self.free_us, self.read = 0, list[int]()  # the version that each forward read

    def bytes_after(self, kind: OpKind) -> int:
        """The most bytes while an op runs or right after it, without static ones."""
        done, stage = dict(self.done), self.rival.stages[self.number]
        before = self._bytes(done, self.read)
        done[kind] += 1
        read = [*self.read, self.version(done[F] - 1)] if kind == F else self.read
        return max(before if kind == B else 0, self._bytes(done, read), stage.saved_w_bytes)

    def _bytes(self, done: dict[OpKind, int], read: Sequence[int]) -> int:
        stage, every = self.rival.stages[self.number], self.rival.every
        newest = done[W] // every
        held = {version for version in read[done[B] :] if version != newest}
        if self.rival.is_two:  # the version of the next forwards, too
            held |= {max(0, done[F] // every - 1)} - {newest}
        kept = (done[F] - done[B]) * stage.saved_bytes + (done[B] - done[W]) * stage.saved_w_bytes
        return kept + len(held) * stage.parameter_bytes

    def version(self, number: int) -> int:
        """The version that a forward reads."""
        rival = self.rival
        if rival.is_two:
            return max(0, number // rival.every - 1)
        if rival.is_vertical and self.number:
            return rival.ranks[0].read[number]
        return self.done[W] // rival.every


class Rival:
    """Random list schedules of one problem."""

    def __init__(self, asked: FlushFreeProblem) -> None:
        """Prepare for a problem on ranks of one stage each."""
        self.asked, self.problem, self.every = asked, asked.problem, asked.every
        self.stages = self.problem.costs.stages
        self.is_two = asked.consistency == Consistency.TWO_VERSIONS
        self.is_vertical = asked.consistency == Consistency.VERTICAL
        self.ranks: list[_Rank] = []
        caps = self.problem.caps_bytes or ()
        self.rooms = [cap - self.problem.static_bytes(rank) for rank, cap in enumerate(caps)]

    def order(self, rng: random.Random) -> list[list[Op]] | None:
        """Make the programs of one random order; None: its ranks wait for each other."""
        num, m = self.problem.num_ranks, self.problem.num_micro_batches
        self.ranks = [_Rank(self, number, rng) for number in range(num)]
        most = [rng.randint(1, num + 1) for _ in range(num)]
        ended: dict[tuple[int, OpKind, int], int] = {}
        for _ in range(3 * m * num):
            options = []
            for rank in self.ranks:
                for kind in (F, B, W):
                    at = self._ready_us(rank, kind, ended, most[rank.number])
                    if at is not None and rank.bytes_after(kind) <= self.rooms[rank.number]:
                        start = max(at, rank.free_us)
                        options.append((start, -rank.weights[kind], rank.number, kind))
            if not options:
                return None
            start, _, number, kind = min(options)
            rank = self.ranks[number]
            at = rank.done[kind]
            if kind == F:
                rank.read.append(rank.version(at))
            rank.program.append(Op(kind, number, at))
            rank.done[kind] += 1
            times = self.stages[number].duration_us
            updates = kind == W and rank.done[W] % self.every == 0
            rank.free_us = start + times[kind] + (times[OpKind.STEP] if updates else 0)
            ended[number, kind, at] = start + times[kind]
        return [rank.program for rank in self.ranks]

    def _ready_us(
        self, rank: _Rank, kind: OpKind, ended: dict[tuple[int, OpKind, int], int], most: int
    ) -> int | None:
        done, number, last = rank.done, rank.number, self.problem.num_ranks - 1
        at = done[kind]
        if at == self.problem.num_micro_batches:
            return None
        waiting = done[B] - done[W]
        if kind == W:
            return 0 if waiting else None
        if waiting >= rank.most_waiting or (kind == F and done[F] - done[B] >= most):
            return None
        if kind == F:
            if self.is_two and rank.done[W] // self.every < rank.version(at):
                return None
            source = (number - 1, F, at) if number else None
        else:
            if done[F] <= at:
                return None
            source = (number + 1, B, at) if number < last else None
        if source is None:
            return 0
        link_us = self.problem.costs.boundary_us(min(number, source[0]), source[0], number)
        return ended[source] + link_us if source in ended else None

    def best_us(self, seed: int, seconds: float) -> float | None:
        """Return the least time of a micro-batch of orders that the verifier accepts."""
        rng, began, best = random.Random(seed), processor_s(), None
        while processor_s() - began < seconds:
            programs = self.order(rng)
            if programs is None:
                continue
            schedule = self.asked.schedule(programs, Buffering(200, 200))
            judged = evaluate(self.problem, schedule, "rival")
            us = None if judged is None else steady_us(judged.timeline)
            if us is not None and (best is None or us < best):
                best = us
        return best


def measured(number: int, options: SolveOptions) -> Row:
    """Search, and let the rival try for as long."""
    asked = case(number)
    with in_processor_time():
        found = solve_flush_free(asked, options)
    rival_us = Rival(asked).best_us(number, options.time_limit_s)
    steady = found.steady
    us, bound = (None, 0.0) if steady is None else (steady.us, steady.lower_bound_us)
    return Row(number, asked.name, us, bound, rival_us)


def main(given: Sequence[str] | None = None) -> int:
    """Print a line for each case. Return 1 if the rival is better by more than 0.1 %."""
    parser = case_parser("flush_free_rival", __doc__, cases=12, limit_s=5)
    asked = parser.parse_args(given)
    options = replace(SolveOptions(asked.limit, workers=1), gap=0.0)
    worst = 0.0
    for number in numbers_of(asked):
        row = measured(number, options)
        worst = max(worst, row.loss_percent)
        print(
            f"{number}: {row.rule}: found {row.found_us}, bound {row.bound_us:.1f}, rival "
            f"{row.rival_us}, loss {row.loss_percent:.2f} %",
            flush=True,
        )
    return int(worst > 0.1)


if __name__ == "__main__":
    sys.exit(main())
