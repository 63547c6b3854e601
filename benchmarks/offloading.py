"""Offloads as a choice: plans of `--offload` beside PipeOffload's schedules and plans without.

    python -m benchmarks.offloading --seconds 60 --json benchmarks/results/chosen-offloads.json

Shipped profiles with a link to the host, of 25 or 50 GB/s in each direction, on one and two stages
per rank, each under several memory limits. Each row has the best variant of PipeOffload that fits
(on any rank's limit), the search without offloads and the one with them, each for as many counted
seconds, and the bound with offloads.
"""

import argparse
import sys
import threading
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from benchmarks.results_file import Run, markdown_table, parse_request, report_rows
from synth.families import generate_for
from synth.objective import Objective
from synth.plan.choose.candidates import Candidate, SearchWatch
from synth.plan.offload.search import search_with_offloads
from synth.plan.problem_arguments import ProblemArguments
from synth.plan.search_space import OneCandidate
from synth.profile import Profile
from synth.profile.links import Link
from synth.profiles import find
from synth.schedule.placements import placement
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve

FORMAT = "synth-offloading-benchmark-1"

_PROFILES = ("zb-1.5b-p8-m24", "zb-6.2b-p8-m24")
_BANDWIDTHS = (25e9, 50e9)
# By placement and profile, memory limits in GB.
_LIMITS = {
    ("looped:2", "zb-6.2b-p8-m24"): (24, 28),
    ("looped:2", "zb-1.5b-p8-m24"): (20,),
    ("linear", "zb-6.2b-p8-m24"): (36,),
    ("linear", "zb-1.5b-p8-m24"): (18,),
}


class Row(NamedTuple):
    """The results of a problem with a seed, in µs; None: nothing fits."""

    profile: str
    placement: str
    host_gb_per_s: float
    limit_gb: float
    seed: int
    pipeoffload_us: int | None
    without_us: int | None
    value_us: int | None
    bound_us: int
    moves: int
    found_by: str

    @property
    def case(self) -> tuple[object, ...]:
        """The problem."""
        return self[:4]


def problem_of(name: str, where: str, bandwidth: float, limit_gb: float) -> Problem:
    """A profile's published sizes, with a link to the host, in its even partition."""
    profile = Profile.load(find(name))
    host = Link(latency_us=10, bandwidth_bytes_per_s=bandwidth)
    profile = profile.replace(links=profile.links.replace(host=host))
    caps = (round(limit_gb * 1e9),) * 8
    asked = ProblemArguments(profile, 24, "even", Objective.MAKESPAN, caps)
    return asked.on(placement(where, 8))


def best_pipeoffload_us(problem: Problem) -> int | None:
    """The fastest variant that fits."""
    values = []
    made = generate_for(
        problem.placement,
        problem.num_micro_batches,
        problem.costs,
        problem.caps_bytes,
        timed=True,
        objective=problem.objective,
    )
    for name, schedule in made:
        if name.startswith("pipeoffload"):
            found = evaluate(problem, schedule, name)
            values += [] if found is None else [found.value_us]
    return min(values, default=None)


def run(case: tuple[str, str, float, float], seconds: float, seed: int) -> Row:
    """Solve a problem without offloads and with them."""
    name, where, bandwidth, limit_gb = case
    problem = problem_of(*case)
    options = SolveOptions(time_limit_s=seconds, workers=1, seed=seed, deterministic=True)
    without = solve(problem, options)
    space = OneCandidate(Candidate(where, problem))
    result = search_with_offloads(space, options, SearchWatch(None, threading.Event())).result
    programs = () if result.schedule is None else result.schedule.programs
    return Row(
        name, where, bandwidth / 1e9, limit_gb, seed, best_pipeoffload_us(problem),
        without.value_us, result.value_us, result.lower_bound_us,
        sum(op.kind == "O" for program in programs for op in program), result.found_by or "",
    )  # fmt: skip


def _ratio(one_us: int | None, value_us: int | None) -> str:
    return "–" if one_us is None or value_us is None else f"{value_us / one_us:.3f}"


def _ms(us: int | None) -> str:
    return "–" if us is None else f"{us / 1000:,.0f}"


def table(document: Mapping[str, Any]) -> str:
    """A saved run's figures in Markdown; of several seeds the median plan."""
    by_case: dict[tuple[object, ...], list[Row]] = {}
    for given in document["rows"]:
        row = Row(**given)
        by_case.setdefault(row.case, []).append(row)
    heads = (
        "profile", "placement", "host GB/s", "limit GB", "PipeOffload ms", "without ms",
        "with ms", "moved", "to PipeOffload", "to without", "gap %",
    )  # fmt: skip
    lines = []
    for rows in by_case.values():
        rows.sort(key=lambda row: (row.value_us is None, row.value_us or 0))
        row = rows[len(rows) // 2]
        gap = "–" if row.value_us is None else f"{100 * (1 - row.bound_us / row.value_us):.1f}"
        lines.append(
            [
                row.profile,
                row.placement,
                f"{row.host_gb_per_s:g}",
                f"{row.limit_gb:g}",
                _ms(row.pipeoffload_us),
                _ms(row.without_us),
                _ms(row.value_us),
                f"{row.moves}",
                _ratio(row.pipeoffload_us, row.value_us),
                _ratio(row.without_us, row.value_us),
                gap,
            ]
        )
    return markdown_table(heads, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save a row for each problem and seed, then the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="counted, of each search")
    parser.add_argument("--profile", choices=_PROFILES)
    given = parse_request(parser, arguments)
    cases = [
        (name, where, bandwidth, float(limit))
        for (where, name), limits in _LIMITS.items()
        for bandwidth, limit in product(_BANDWIDTHS, limits)
        if given.profile in (None, name)
    ]
    about = (
        f"shipped profiles with a link to the host, 8 ranks and 24 micro-batches, "
        f"{given.seconds:g} counted seconds for each search"
    )
    asked = Run("chosen-offloads", about, given.seeds, 1, given.seconds)
    rows = (run(case, given.seconds, seed) for case, seed in product(cases, range(given.seeds)))
    report_rows(rows, given.json, FORMAT, asked, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
