"""Offloads as a choice: plans of `--offload` beside PipeOffload's schedules and plans without.

    python -m benchmarks.offloading --seconds 60 --json benchmarks/results/chosen-offloads.json

Shipped profiles with a link to the host, of 25 or 50 GB/s in each direction, on one and two stages
per rank, each under several memory limits. Each row has the best variant of PipeOffload that fits,
the search without offloads and the one with them, each for as much processor time, and the bound
with offloads. In rows with the placement `auto` all placements are searched that `synth solve`
tries by default, and their partitions; there the variants of PipeOffload have any number of stages
per rank, and each has its best cut.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

from benchmarks.realistic_suite import in_processor_time
from benchmarks.results_file import Run, markdown_table, parse_request, parser_of, report_rows
from synth.errors import SynthError
from synth.families import generate_for, names_on
from synth.objective import Objective
from synth.plan.choose.candidates import (
    Candidate,
    Partitioning,
    SearchWatch,
    placements_to_try,
)
from synth.plan.offload.offload_space import WithOffloads, finer_placements
from synth.plan.problem_arguments import ProblemArguments
from synth.plan.published.family_searches import FamilySearches
from synth.plan.published.order_scores import Judge
from synth.plan.runtimes import Allowed
from synth.plan.search_space import OneCandidate, Placements
from synth.profile import Profile
from synth.profile.links import Link
from synth.profiles import find
from synth.schedule.placements import placement
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem

FORMAT = "synth-offloading-benchmark-1"

_PROFILES = ("zb-1.5b-p8-m24", "zb-6.2b-p8-m24")
_BANDWIDTHS = (25e9, 50e9)
_NUM_RANKS = 8
AUTO = "auto"
# By placement and profile, memory limits in GB.
_LIMITS = {
    ("looped:2", "zb-6.2b-p8-m24"): (24, 28),
    ("looped:2", "zb-1.5b-p8-m24"): (20,),
    ("linear", "zb-6.2b-p8-m24"): (36,),
    ("linear", "zb-1.5b-p8-m24"): (18,),
    (AUTO, "zb-6.2b-p8-m24"): (24,),
    (AUTO, "zb-1.5b-p8-m24"): (18,),
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


def arguments_of(name: str, bandwidth: float, limit_gb: float) -> ProblemArguments:
    """A profile's published sizes, with a link to the host."""
    profile = Profile.load(find(name))
    host = Link(latency_us=10, bandwidth_bytes_per_s=bandwidth)
    profile = profile.replace(links=profile.links.replace(host=host))
    caps = (round(limit_gb * 1e9),) * _NUM_RANKS
    allowed = Allowed(offloads=True)
    return ProblemArguments(profile, 24, "even", Objective.MAKESPAN, caps, allowed=allowed)


def problem_of(name: str, where: str, bandwidth: float, limit_gb: float) -> Problem:
    """The problem on a placement, in its even partition."""
    return arguments_of(name, bandwidth, limit_gb).on(placement(where, _NUM_RANKS))


def space_of(name: str, where: str, bandwidth: float, limit_gb: float) -> WithOffloads:
    """The search on a placement in its even partition, or on all that are tried by default, whose
    partitions are searched."""
    asked = arguments_of(name, bandwidth, limit_gb)
    if where != AUTO:
        return WithOffloads(OneCandidate(Candidate(where, asked.on(placement(where, _NUM_RANKS)))))
    num_layers = len(asked.profile.layers)
    every, finer = (
        tuple(
            Candidate(each, asked.on(placed))
            for each, placed in found.items()
            if asked.allowed.is_default_on(placed) and placed.num_stages <= num_layers
        )
        for found in (
            placements_to_try(_NUM_RANKS, num_layers),
            finer_placements(_NUM_RANKS, num_layers),
        )
    )
    return WithOffloads(Placements(every, asked.profile, Partitioning.SEARCHED), finer)


def best_pipeoffload_of_all_us(space: WithOffloads) -> int | None:
    """The fastest variant that fits, on any number of stages per rank, each on its best cut."""
    problem = space.problem
    assert space.space.profile is not None
    searches = FamilySearches(
        space.space.profile,
        problem.num_micro_batches,
        Judge(problem.objective, problem.caps_bytes),
    )
    values = []
    for one in space.all_candidates:
        for name in names_on(one.problem.placement):
            if name.startswith("pipeoffload"):
                with suppress(SynthError):  # the family does not admit the numbers
                    score = searches.of(name, one.problem.placement).plain().score
                    values += [score.value_us] if score.fits else []
    return min(values, default=None)


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
    space = space_of(*case)
    options = SolveOptions(time_limit_s=seconds, workers=1, seed=seed)
    watch = SearchWatch()
    with in_processor_time():
        without = space.space.search(options, watch).result
        result = space.search(options, watch).result
    if where == AUTO:
        rival_us = best_pipeoffload_of_all_us(space)
    else:
        rival_us = best_pipeoffload_us(space.problem)
    programs = () if result.schedule is None else result.schedule.programs
    return Row(
        name, where, bandwidth / 1e9, limit_gb, seed, rival_us,
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
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="processor time of each search")
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
        f"{given.seconds:g} s of processor time for each search"
    )
    asked = Run("chosen-offloads", about, given.seeds, 1, given.seconds)
    rows = (run(case, given.seconds, seed) for case, seed in product(cases, range(given.seeds)))
    report_rows(rows, given.json, FORMAT, asked, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
