"""Plans of generated pipelines over two sites or more: slow links between them, fast ones within.

    python -m benchmarks.two_sites [--cases 6] [--first 0] [--limit 20] [--sites 3]

The profiles are those of `benchmarks.realistic_suite` on one stage per rank. Each site has
consecutive ranks, as many as the others or nearly, and sites are 5 to 50 ms and 1 to 10 Gb/s apart.
Each case is solved with the placement left to the search (one stage per rank, v, looped:2), and
with one stage per rank given. It is compared with every published schedule of the three that fits
on any candidate partition. Nothing recomputes. Limits are processor time of one worker.
"""

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.generated_cases import (
    case_parser,
    is_above,
    numbers_and_seeds,
    plan_cells,
    published_cell,
)
from benchmarks.realistic_profiles import RealisticCase, realistic_case
from benchmarks.realistic_suite import best_published, candidate_of, in_processor_time
from benchmarks.results_file import Run, markdown_table, parse_request, report_rows
from synth.plan.choose.candidates import Partitioning, Ranking
from synth.plan.choose.race import solve_best_of
from synth.profile.links import Link, Links, NodeLink
from synth.solver.options import SolveOptions

FORMAT = "synth-two-sites-benchmark-1"
PLACEMENTS = ("linear", "v", "looped:2")


class Row(NamedTuple):
    """A case; times are makespans in µs, None: nothing fits or found."""

    case: int
    num_ranks: int
    latency_us: int
    gigabits_per_s: float
    placement: str
    plan_us: int | None
    bound_us: int
    linear_us: int | None
    linear_bound_us: int
    published: str | None
    published_us: int | None


def two_sites(number: int, sites: int = 2) -> RealisticCase:
    """Generate the case of a number: its ranks in so many sites at most."""
    case, rng = realistic_case(number, "linear"), random.Random(number)
    latency_us, gigabits = rng.choice([5_000, 20_000, 50_000]), rng.choice([1, 5, 10])
    apart = NodeLink(
        latency_us=latency_us,
        bandwidth_bytes_per_s=gigabits * 125e6,
        ranks_per_node=-(-case.num_ranks // sites),
    )
    within = Link(latency_us=10, bandwidth_bytes_per_s=100e9)
    links = Links(default=within, nodes=(apart,))
    return case._replace(profile=case.profile.model_copy(update={"links": links}))


def measured(number: int, sites: int, options: SolveOptions) -> Row:
    """Solve one case, and judge the published schedules."""
    case = two_sites(number, sites)
    with in_processor_time():
        ranking, given = solved(case, PLACEMENTS, options), solved(case, PLACEMENTS[:1], options)
    found, linear = ranking.result, given.result
    published = [best_published(case._replace(placement=name)) for name in PLACEMENTS]
    best_us, best = min((one for one in published if one is not None), default=(None, None))
    (link,) = case.profile.links.nodes
    return Row(
        number,
        case.num_ranks,
        round(link.latency_us),
        round((link.bandwidth_bytes_per_s or 0) / 125e6, 1),
        ranking.name,
        found.value_us,
        found.lower_bound_us,
        linear.value_us,
        linear.lower_bound_us,
        best,
        best_us,
    )


def solved(case: RealisticCase, names: Sequence[str], options: SolveOptions) -> Ranking:
    """The best schedule found on the placements of these names, on any partition."""
    candidates = [candidate_of(case._replace(placement=name)) for name in names]
    way = Partitioning.SEARCHED
    return solve_best_of(candidates, case.profile, way, options)


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown."""
    heads = (
        "case", "ranks", "between sites", "best placement", "plan s", "gap %", "linear alone s",
        "its gap %", "best published s",
    )  # fmt: skip
    rows = [Row(**row) for row in document["rows"]]
    return markdown_table(heads, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    return [
        str(row.case),
        str(row.num_ranks),
        f"{row.latency_us // 1000} ms, {row.gigabits_per_s:g} Gb/s",
        row.placement,
        *plan_cells(row.plan_us, row.bound_us, digits=1),
        *plan_cells(row.linear_us, row.linear_bound_us, digits=1),
        published_cell(row.published_us, row.published),
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Solve all cases; print and save their rows. Return 1 if a published schedule is shorter."""
    parser = case_parser("two_sites", __doc__, cases=6, limit_s=20)
    parser.add_argument("--sites", type=int, default=2)
    asked = parse_request(parser, given)
    about = (
        f"{asked.cases} generated pipelines over {asked.sites} sites, {asked.limit:g} s of "
        f"processor time each, against the best published schedule on the candidate partitions."
    )
    run = Run("two-sites", about, asked.seeds, 1, asked.limit)
    options = SolveOptions(asked.limit, workers=1)
    rows = (
        measured(number, asked.sites, replace(options, seed=seed))
        for number, seed in numbers_and_seeds(asked)
    )
    done = report_rows(rows, asked.json, FORMAT, run, table, lambda row: [" ".join(_cells(row))])
    return int(any(map(is_above, done)))


if __name__ == "__main__":
    sys.exit(main())
