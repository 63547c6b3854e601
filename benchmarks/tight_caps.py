"""Tight memory limits with boundary tensors: gaps, and comparison with a simple annealer.

    python -m benchmarks.tight_caps --only small --count 5
    python -m benchmarks.tight_caps --seconds 8 --seeds 3 --json benchmarks/results/tight-caps.json

Sixty generated problems, one stage per rank, makespan: 30 small ones, and 30 with realistic ratios
(saved activations to boundary tensor 34 : 2). The memory limits leave room for some whole
micro-batches and one to three boundary tensors. The annealer swaps neighbours in ranks' programs,
begins from the best published schedule or list schedule that fits, with several bufferings, and
judges by the verifier. Its limit is processor time; with `--counted` the solver does not look at
the clock either. If all orders of all ranks can be tried with all bufferings, the optimum stands
beside the bound, and the gap is to the optimum.
"""

import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from benchmarks.results_file import Run, markdown_table, parse_request, parser_of, report_rows
from synth.costs.costs import Costs
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.search.outcome import StoppedBy
from synth.solver.infeasibility import may_fit, serial_schedule
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result
from synth.solver.solver import solve

FORMAT = "synth-tight-caps-benchmark-1"

_STATIC_BYTES = 100
_KINDS = (OpKind.F, OpKind.B, OpKind.W)

# The annealer's temperature falls between these shares of a mean op's duration.
_HOTTEST, _COLDEST = 0.4, 0.01
_BUFFERINGS = tuple(Buffering(*pair) for pair in ((1, 2), (1, 1), (0, 1), (0, 0)))

# Programs of all ranks, each with each, that are tried for the optimum.
_MOST_TRIED = 30_000


class Case(NamedTuple):
    """A problem with its name."""

    name: str
    problem: Problem


class Row(NamedTuple):
    """The results of a case with a seed; `optimum_us` where all orders were tried."""

    name: str
    seed: int
    size: str
    value_us: int | None
    bound_us: int
    optimum_us: int | None
    gap: float
    annealed_us: int | None
    stopped_by: str
    found_by: str
    wall_s: float

    @property
    def value_or_never_us(self) -> float:
        """The solver's value; infinite if it found none."""
        return math.inf if self.value_us is None else self.value_us

    @property
    def annealed_or_never_us(self) -> float:
        """The annealer's value; infinite if it found none."""
        return math.inf if self.annealed_us is None else self.annealed_us


def small(seed: int) -> Case:
    """Two to four ranks, three to six micro-batches, activations of a few boundary tensors."""
    rng = random.Random(seed)
    num_ranks, m = rng.choice([2, 3, 4]), rng.randint(3, 6)
    saved, output = rng.randint(4, 10), rng.randint(1, 2)
    costs = _costs(rng, num_ranks, saved, rng.randint(1, saved - 1), output, 10, rng.randint(0, 2))
    return Case(f"small {seed}", _capped(rng, costs, m, rng.randint(1, num_ranks)))


def realistic(seed: int) -> Case:
    """Four to eight ranks, eight to sixteen micro-batches, 34 : 2."""
    rng = random.Random(1000 + seed)
    num_ranks, m = rng.choice([4, 4, 6, 8]), rng.choice([8, 12, 16])
    costs = _costs(rng, num_ranks, 34, rng.choice([10, 16, 22]), 2, 100, rng.choice([1, 3, 6]))
    whole = rng.randint(max(2, num_ranks // 2), num_ranks)
    return Case(f"realistic {seed}", _capped(rng, costs, m, whole))


def _costs(
    rng: random.Random,
    num_ranks: int,
    saved: int,
    saved_w: int,
    output: int,
    mean_us: int,
    lag: int,
) -> Costs:
    """Stages alike in bytes, with times up to a fifth off the mean."""
    stages = []
    for _ in range(num_ranks):
        times = {kind: round(mean_us * rng.uniform(0.8, 1.2)) for kind in _KINDS}
        together = times[OpKind.B] + times[OpKind.W]
        rises = dict.fromkeys((OpKind.B, OpKind.BW), output)
        stages.append(
            StageCosts(
                duration_us={**times, OpKind.BW: together, OpKind.STEP: 0},
                static_bytes=_STATIC_BYTES,
                output_bytes=output,
                saved_bytes=saved,
                saved_w_bytes=saved_w,
                rise_bytes={**rises, OpKind.F: saved + output, OpKind.W: 0, OpKind.STEP: 0},
            )
        )
    return Costs(stages=tuple(stages), links=Links(default=Link(latency_us=lag)))


def _capped(rng: random.Random, costs: Costs, m: int, whole: int) -> Problem:
    """A cap of whole micro-batches and one to three boundary tensors, the first that can do."""
    stage, tensors = costs.stages[0], rng.randint(1, 3)
    while True:
        cap = _STATIC_BYTES + whole * stage.saved_bytes + tensors * stage.output_bytes
        problem = Problem.linear(costs, m, cap)
        if may_fit(problem):
            return problem
        whole += 1


class Annealer:
    """Adjacent swaps, each order judged as a whole by the verifier."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem, self.rng = problem, random.Random(seed)

    def run(self, start: Schedule, seconds: float) -> int | None:
        """The best value found."""
        until = time.process_time() + seconds
        starts = [replace(start, buffering=b) for b in (start.buffering, *_BUFFERINGS)]
        values = [self._value_us(schedule) for schedule in starts]
        fitting = [(v, i) for i, v in enumerate(values) if v is not None]
        if not fitting:
            return None
        for round_ in range(len(fitting)):
            left_s = max(0.0, until - time.process_time()) / (len(fitting) - round_)
            value_us, which = fitting[round_]
            fitting[round_] = (self._round(starts[which], value_us, left_s), which)
        return min(value for value, _ in fitting)

    def _round(self, schedule: Schedule, value_us: int, seconds: float) -> int:
        began, best_us = time.process_time(), value_us
        times = [t for s in self.problem.costs.stages for k in _KINDS for t in [s.duration_us[k]]]
        hottest = _HOTTEST * statistics.mean(times)
        while (share := (time.process_time() - began) / max(seconds, 1e-9)) < 1:
            temperature_us = hottest * (_COLDEST / _HOTTEST) ** share
            tried = self._swapped(schedule)
            tried_us = None if tried is None else self._value_us(tried)
            limit_us = value_us - temperature_us * math.log(1 - self.rng.random())
            if tried is not None and tried_us is not None and tried_us <= limit_us:
                schedule, value_us = tried, tried_us
                best_us = min(best_us, value_us)
        return best_us

    def _swapped(self, schedule: Schedule) -> Schedule | None:
        programs = [list(program) for program in schedule.programs]
        program = self.rng.choice(programs)
        i = self.rng.randrange(len(program) - 1)
        if program[i].kind == program[i + 1].kind:
            return None
        program[i], program[i + 1] = program[i + 1], program[i]
        return replace(schedule, programs=tuple(map(tuple, programs)))

    def _value_us(self, schedule: Schedule) -> int | None:
        try:
            _, timeline = verify(schedule, self.problem.costs, self.problem.caps_bytes)
        except ScheduleError:
            return None
        return self.problem.objective.value_us(timeline)


def optimum_us(problem: Problem, seconds: float) -> int | None:
    """The least value of all orders with all bufferings; None where they are too many.

    A rank's memory follows from its own program, so that only programs that fit are combined.
    More buffering never takes longer, and never less memory.
    """
    m, best, until = problem.num_micro_batches, None, time.monotonic() + seconds
    if math.comb(3 * m, m) * math.comb(2 * m, m) > 1_000_000:
        return None
    orders = [list(_orders(rank, m)) for rank in range(problem.num_ranks)]
    if sum(map(len, orders)) > 300:
        return None
    for ahead, behind in product(range(2 * m), range(2 * m)):
        fitting = [
            _fitting(problem, orders, rank, Buffering(ahead, behind))
            for rank in range(problem.num_ranks)
        ]
        if math.prod(map(len, fitting)) > _MOST_TRIED or time.monotonic() > until:
            return None
        for programs in product(*fitting):
            schedule = Schedule(problem.placement, m, programs, "", Buffering(ahead, behind))
            value = Annealer(problem, 0)._value_us(schedule)
            if value is not None and (best is None or value < best):
                best = value
    return best


def _orders(stage: int, m: int) -> Iterator[tuple[Op, ...]]:
    """Every order of a rank's F, B and W, each kind in micro-batch order."""

    def grow(done: tuple[int, int, int], order: tuple[Op, ...]) -> Iterator[tuple[Op, ...]]:
        if done == (m, m, m):
            yield order
        for which, kind in enumerate(_KINDS):
            if done[which] < (m if which == 0 else done[which - 1]):
                op = Op(kind, stage, done[which])
                more = tuple(count + (i == which) for i, count in enumerate(done))
                yield from grow(more, (*order, op))  # type: ignore[arg-type]

    return grow((0, 0, 0), ())


def _fitting(
    problem: Problem, orders: list[list[tuple[Op, ...]]], rank: int, buffering: Buffering
) -> list[tuple[Op, ...]]:
    """The orders of a rank that keep its cap, the others' being any."""
    programs = list(serial_schedule(problem).programs)
    found, caps = [], problem.caps_bytes or ()
    for order in orders[rank]:
        programs[rank] = order
        m = problem.num_micro_batches
        schedule = Schedule(problem.placement, m, tuple(programs), "", buffering)
        try:
            lowered, _ = verify(schedule, problem.costs)
        except ScheduleError:  # this rank's memory can be read off all the same
            from synth.schedule.lowering.lower import lower

            lowered = lower(schedule, problem.costs)
        if peak_bytes(lowered)[rank] <= caps[rank]:
            found.append(order)
    return found


def run(case: Case, seconds: float, seed: int = 0, *, is_counted: bool = False) -> Row:
    """Solve a case, anneal as long, and look for its optimum."""
    options = SolveOptions(time_limit_s=seconds, workers=1, seed=seed, deterministic=is_counted)
    result = solve(case.problem, options)
    first = frozenset(Part) - {
        Part.FAMILIES,
        Part.LIST_SCHEDULING,
        Part.SIMPLIFICATION,
        Part.CLOSED_FORMS,
    }
    drafts = replace(options, time_limit_s=1, without=first)
    start = solve(case.problem, drafts).schedule or serial_schedule(case.problem)
    annealed = Annealer(case.problem, seed).run(start, seconds)
    optimum = None
    if result.stopped_by != StoppedBy.OPTIMAL and case.name.startswith("small"):
        optimum = optimum_us(case.problem, 10 * seconds)
    return _row(case, seed, result, optimum, annealed)


def _row(case: Case, seed: int, result: Result, optimum: int | None, annealed: int | None) -> Row:
    value = result.value_us
    least = max(result.lower_bound_us, optimum or 0)
    gap = 1.0 if value is None else (value - least) / value
    p, caps = case.problem, case.problem.caps_bytes or (0,)
    saved = p.costs.stages[0].saved_bytes
    whole, beyond = divmod(caps[0] - _STATIC_BYTES, saved)
    size = f"{p.num_ranks},{p.num_micro_batches} {whole}·{saved}+{beyond}"
    return Row(
        case.name, seed, size, value, result.lower_bound_us, optimum, gap, annealed,
        str(result.stopped_by), result.found_by or "", round(result.wall_s, 1),
    )  # fmt: skip


# Rows of earlier versions have the second word.
_ENDED = (StoppedBy.NOTHING_BETTER, "exhausted")


def table(document: Mapping[str, Any]) -> str:
    """A saved run's figures in Markdown: of each kind of problems, by the medians of their seeds.

    "Ended" counts problems whose search ended by itself with a gap, with any seed.
    """
    rows = [Row(**row) for row in document["rows"]]
    heads = ("problems", "median gap %", "largest gap %", "ended", "the annealer is better in")
    kinds = dict.fromkeys(row.name.split()[0] for row in rows)
    return markdown_table(heads, (_figures(kind, rows) for kind in kinds))


def _figures(kind: str, rows: Sequence[Row]) -> list[str]:
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        if row.name.startswith(kind):
            by_name.setdefault(row.name, []).append(row)
    gaps = [100 * statistics.median(row.gap for row in group) for group in by_name.values()]
    ended = sum(any(row.stopped_by in _ENDED for row in group) for group in by_name.values())
    won = sum(
        statistics.median(row.annealed_or_never_us for row in group)
        < statistics.median(row.value_or_never_us for row in group)
        for group in by_name.values()
    )
    figures = (f"{statistics.median(gaps):.2f}", f"{max(gaps):.2f}", str(ended), str(won))
    return [f"{len(by_name)} {kind}", *figures]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save a row for each case and seed, then the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--only", choices=("small", "realistic"))
    parser.add_argument("--count", type=int, default=30, help="of each kind")
    parser.add_argument("--counted", action="store_true", help="limits in steps, not by the clock")
    given = parse_request(parser, arguments)
    kinds = [make for make in (small, realistic) if given.only in (None, make.__name__)]
    effort = "counted seconds" if given.counted else "s"
    about = (
        f"generated problems, memory limits of whole micro-batches and one to three boundary "
        f"tensors, {given.seconds:g} {effort} each; the annealer has as much processor time."
    )
    asked = Run("tight-caps", about, given.seeds, 1, given.seconds)
    rows = (
        run(make(number), given.seconds, seed, is_counted=given.counted)
        for make, number, seed in product(kinds, range(given.count), range(given.seeds))
    )
    report_rows(
        rows, given.json, FORMAT, asked, table, lambda row: row._replace(gap=round(row.gap, 4))
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
