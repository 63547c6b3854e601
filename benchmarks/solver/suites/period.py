"""Claimed periods against the time per iteration: iterations run back to back.

k iterations take at most the makespan and k − 1 periods. The claim is about iterations that only a
rank's own STEPs separate (*overlap*). The executor also waits between iterations for its sends and
for the receives that it then posts (*executor*); it is compared with a period that includes this.
The time per iteration is the time between the ends of the last two. It may be less than the claim
if the first iteration waits only because the pipeline is empty.
"""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.solver.back_to_back import executed_period_us, iteration_ends_us
from benchmarks.solver.case import Case, Look, Suite
from benchmarks.solver.probe import Cell
from benchmarks.solver.sample_problems import sample_problems
from synth.objective import Objective
from synth.solver.result import Result

ITERATIONS = 4


def look(result: Result) -> Look:
    """The steady time per iteration, against the claim."""
    line = result.timeline
    if line is None:
        return Look()
    columns: dict[str, Cell] = {"makespan": line.makespan_us}
    failures: list[str] = []
    for how, claim_us in (("overlap", line.period_us), ("executor", executed_period_us(line))):
        ends_us = iteration_ends_us(line.lowered, ITERATIONS, overlap=how == "overlap")
        columns[f"{how}: claim"] = claim_us
        columns[f"{how}: per iteration"] = ends_us[-1] - ends_us[-2]
        failures += late(how, ends_us, line.makespan_us, claim_us)
    return Look(columns, tuple(failures))


def late(how: str, ends_us: list[int], makespan_us: int, period_us: int) -> list[str]:
    """The iterations that end later than claimed, in words."""
    return [
        f"{how}: {k + 1} iterations take {end_us}, more than {makespan_us} + {k} · {period_us}"
        for k, end_us in enumerate(ends_us)
        if end_us > makespan_us + k * period_us
    ]


def _cases() -> Iterator[Case]:
    for name, problem in sample_problems().items():
        yield Case(name, replace(problem, objective=Objective.PERIOD), look=look)


SUITE = Suite("period", "Claimed periods against iterations run back to back.", _cases, 30.0)
