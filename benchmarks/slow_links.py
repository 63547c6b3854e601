"""Plans of generated pipelines with slow links, against published schedules on many partitions.

    python -m benchmarks.slow_links [--cases 8] [--first 0] [--limit 12]

The profiles are those of `benchmarks.realistic_suite`, on one stage per rank, v, looped:2 and
wave:2 in turn. One link of the pipeline is slow, or each of them with a chance of a third, or all
are; a transfer over it takes 0.3 to 1.5 of a rank's forward, by its latency, its bandwidth, or
both. The partition is left to the search. Nothing recomputes. Limits are processor time of one
worker.
"""

import random
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks.generated_cases import (
    case_parser,
    is_above,
    numbers_and_seeds,
    plan_cells,
    published_cell,
)
from benchmarks.realistic_profiles import RealisticCase, realistic_case
from benchmarks.realistic_suite import best_published, in_processor_time, solved
from benchmarks.results_file import Run, markdown_table, parse_request, report_rows
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links, PairLink
from synth.search.outcome import relative_gap
from synth.solver.options import SolveOptions

FORMAT = "synth-slow-links-benchmark-1"
PLACEMENTS = ("linear", "v", "looped:2", "wave:2")

_FAST = Link(latency_us=10, bandwidth_bytes_per_s=100e9)


class Row(NamedTuple):
    """A case; times are makespans in µs, None: nothing fits or found.

    `slow` has the first ranks of the slow links, and `share` the time of a transfer over one of
    them, in forwards of a rank.
    """

    case: int
    placement: str
    num_ranks: int
    num_micro_batches: int
    slow: tuple[int, ...]
    share: float
    plan_us: int | None
    bound_us: int
    partition: tuple[int, ...]
    published: str | None
    published_us: int | None


class SlowCase(NamedTuple):
    """A pipeline, the first ranks of its slow links, and their time in forwards of a rank."""

    pipeline: RealisticCase
    slow: tuple[int, ...]
    share: float


def slow_case(number: int) -> SlowCase:
    """Generate the case of a number; a slow link is so in both directions."""
    rng = random.Random(number)
    case = realistic_case(number, PLACEMENTS[number % len(PLACEMENTS)])
    count = case.num_ranks
    kind, after = rng.choice(["one", "some", "all"]), range(count - 1)
    slow = [rank for rank in after if kind == "all" or rng.random() < 1 / 3]
    if kind == "one" or not slow:
        slow = [rng.choice(after)]
    share, latency_share = rng.choice([0.3, 0.5, 1.0, 1.5]), rng.choice([0.0, 0.5, 1.0])
    layers = [case.profile.layer_profile(i) for i in range(len(case.profile.layers))]
    slow_us = share * sum(layer.time_us[OpKind.F].median_us for layer in layers) / count
    num_bytes = max(layer.output_bytes for layer in layers)
    sent_us = (1 - latency_share) * slow_us
    latency_us = round(latency_share * slow_us)
    bandwidth = num_bytes / sent_us * 1e6 if sent_us else None
    ends = [(rank + shift, rank + 1 - shift) for rank in slow for shift in (0, 1)]
    pairs = tuple(
        PairLink(source=one, target=other, latency_us=latency_us, bandwidth_bytes_per_s=bandwidth)
        for one, other in ends
    )
    links = Links(default=_FAST, pairs=pairs)
    if kind == "all":  # that from the last rank to the first, too
        links = Links(default=Link(latency_us=latency_us, bandwidth_bytes_per_s=bandwidth))
    return SlowCase(case._replace(profile=case.profile.replace(links=links)), tuple(slow), share)


def measured(number: int, options: SolveOptions) -> Row:
    """Solve one case, and judge the published schedules."""
    case, slow, share = slow_case(number)
    with in_processor_time():
        found = solved(case, None, options)
    best_us, best = best_published(case) or (None, None)
    return Row(
        number,
        case.placement,
        case.num_ranks,
        case.num_micro_batches,
        slow,
        share,
        found.value_us,
        found.lower_bound_us,
        found.problem.partition or (),
        best,
        best_us,
    )


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown, and a line with the median of its gaps."""
    heads = ("case", "pipeline", "slow links", "plan s", "gap %", "best published s")
    rows = [Row(**row) for row in document["rows"]]
    return f"{markdown_table(heads, map(_cells, rows))}\n\n{summary(rows)}"


def summary(rows: Sequence[Row]) -> str:
    """The median and the largest gap, and how many plans are above a published schedule."""
    gaps = [100 * relative_gap(row.plan_us, row.bound_us) for row in rows if row.plan_us]
    if not gaps:
        return "No plan was found."
    above = sum(is_above(row) for row in rows)
    return (
        f"{len(gaps)} plans: the median gap is {median(gaps):.2f} %, the largest {max(gaps):.2f} %;"
        f" {above} are above a published schedule."
    )


def _cells(row: Row) -> list[str]:
    is_all = len(row.slow) == row.num_ranks - 1
    links = "all" if is_all else f"after {' '.join(map(str, row.slow))}"
    return [
        str(row.case),
        f"{row.placement}, {row.num_ranks} ranks, {row.num_micro_batches} micro-batches",
        f"{links}: {row.share:g} F",
        *plan_cells(row.plan_us, row.bound_us),
        published_cell(row.published_us, row.published),
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Solve all cases; print and save their rows. Return 1 if a published schedule is shorter."""
    parser = case_parser("slow_links", __doc__, cases=8, limit_s=12)
    asked = parse_request(parser, given)
    about = (
        f"{asked.cases} generated pipelines with slow links, {asked.limit:g} s of processor time "
        f"each, against the best published schedule on the candidate partitions."
    )
    run = Run("slow-links", about, asked.seeds, 1, asked.limit)
    rows = (
        measured(number, SolveOptions(asked.limit, workers=1, seed=seed))
        for number, seed in numbers_and_seeds(asked)
    )
    done = report_rows(rows, asked.json, FORMAT, run, table, lambda row: [" | ".join(_cells(row))])
    return int(any(map(is_above, done)))


if __name__ == "__main__":
    sys.exit(main())
