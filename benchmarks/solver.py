"""How good the solver is, and how fast: the table of known values, and published profiles.

    python benchmarks/solver.py [--time-limit 60] [--only 8,32] [--workers 2]

One row per problem: value found, proven lower bound, gap, seconds, who found it. Times F 55, B 58,
W 35, 2 between ranks; F keeps 3 of which 2 are left after B; the cap is a share of what 1F1B holds
on rank 0; the objective is the makespan. `known` is the best value known before, or the range
between bound and value where it was not proven.
"""

import argparse
import os
import platform
from typing import NamedTuple

from synth.costs import uniform_costs
from synth.profile import Link, Links
from synth.solve import Objective, Problem, Result, SolveOptions, solve


class Row(NamedTuple):
    """A problem of the table."""

    num_ranks: int
    num_micro_batches: int
    share: float
    known: str


ROWS = (
    Row(4, 8, 0.75, "1676"),
    Row(4, 12, 0.75, "2416"),
    Row(4, 12, 1, "2034"),
    Row(4, 16, 0.5, "4326"),
    Row(4, 16, 0.75, "3180"),
    Row(4, 32, 0.5, "8566"),
    Row(8, 8, 0.5, "2378"),
    Row(8, 16, 0.5, "4472"),
    Row(8, 16, 0.75, "3427"),
    Row(8, 16, 1, "2970"),
    Row(8, 32, 0.5, "8180-8836"),
    Row(8, 32, 0.75, "6045-6199"),
    Row(8, 32, 1, "5338"),
    Row(8, 32, 1.5, "5135"),
    Row(16, 16, 0.75, "4250"),
    Row(16, 32, 0.75, "6745-7107"),
    Row(16, 32, 1, "6026"),
    Row(16, 64, 1, "10762"),
)

# Zero-bubble paper (arXiv 2401.10241), tables 5 and 6: stage times on A100 in µs.
#          name    ranks  m    F      B      W     transfer
PUBLISHED = (
    ("1.5B", 8, 24, 18522, 18086, 9337, 601),
    ("6.2B", 8, 24, 29718, 29444, 19927, 527),
    ("14.6B", 16, 48, 11347, 11248, 8132, 377),
)


def table_problem(row: Row) -> Problem:
    """The problem of a row."""
    costs = uniform_costs(
        row.num_ranks,
        forward_us=55,
        backward_input_us=58,
        backward_weight_us=35,
        links=Links(default=Link(latency_us=2)),
        saved_bytes=3,
        saved_w_bytes=2,
    )
    return Problem.linear(costs, row.num_micro_batches, int(row.share * 3 * row.num_ranks))


def published_problem(name: str) -> Problem:
    """A published profile in 1F1B's memory, for the period; F keeps 34 parts, 32 remain after B."""
    _, ranks, m, forward, backward, weight, lag = next(row for row in PUBLISHED if row[0] == name)
    costs = uniform_costs(
        ranks,
        forward_us=forward,
        backward_input_us=backward,
        backward_weight_us=weight,
        links=Links(default=Link(latency_us=lag)),
        saved_bytes=34,
        saved_w_bytes=32,
    )
    return Problem.linear(costs, m, 34 * ranks, Objective.PERIOD)


def line(label: str, known: str, result: Result) -> str:
    """One row of the answer."""
    return (
        f"{label:<18} {known:>11} {result.value_us:>8} {result.lower_bound_us:>8} "
        f"{(result.gap or 0) * 100:>6.2f} {result.wall_s:>8.2f}  {result.found_by} "
        f"({result.stopped_by})"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=60, help="seconds per row")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="rows whose 'ranks,m,share' starts like this")
    arguments = parser.parse_args()
    options = SolveOptions(time_limit_s=arguments.time_limit, workers=arguments.workers)
    print(f"{platform.machine()}, {arguments.workers} workers, {arguments.time_limit:g} s per row")
    head = ("ranks,m,share", "known", "value", "bound", "gap %", "seconds")
    print("{:<18} {:>11} {:>8} {:>8} {:>6} {:>8}  found by (stopped by)".format(*head))
    for row in ROWS:
        label = f"{row.num_ranks},{row.num_micro_batches},{row.share:g}"
        if label.startswith(arguments.only):
            print(line(label, row.known, solve(table_problem(row), options)), flush=True)
    for name, ranks, m, *_ in PUBLISHED:
        label = f"{name} {ranks},{m} period"
        if label.startswith(arguments.only):
            result = solve(published_problem(name), options)
            zb_h1 = next((r.period_us for r in result.rivals if r.name == "zb-h1"), None)
            print(line(label, f"H1 {zb_h1}", result), flush=True)


if __name__ == "__main__":
    main()
