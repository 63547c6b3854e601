"""Plans of generated realistic pipelines under growing memory limits: none may get worse.

    python -m benchmarks.more_memory [--cases 4] [--first 0] [--limit 6] [--slow-link] [--alone]
    python -m benchmarks.more_memory --json benchmarks/results/more-memory.json

Each case is solved on every placement by searches of their own, one for each limit: the case's own
limit, and several multiples of it. Nothing recomputes, and partitions are left to the search. With
`--slow-link` one link in the middle takes half of a rank's forward; with `--alone` no search also
runs under a lower limit. Limits of time are processor time of one worker.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, NamedTuple

from benchmarks.generated_cases import case_parser, numbers_of
from benchmarks.realistic_profiles import PLACEMENTS, RealisticCase, realistic_case
from benchmarks.realistic_suite import in_processor_time, solved
from benchmarks.results_file import Run, markdown_table, parse_request, report_rows
from synth.op_kinds import OpKind
from synth.profile.links import Links, PairLink
from synth.solver.options import SolveOptions

FORMAT = "synth-more-memory-benchmark-1"

# The limits, as multiples of the case's own.
FACTORS = (1.0, 1.1, 1.2, 1.35, 1.5, 2.0)

_SLOW_SHARE = 0.5


class Row(NamedTuple):
    """A case on a placement with one seed: the makespan in µs under each limit; None: no plan."""

    case: int
    seed: int
    placement: str
    num_ranks: int
    num_micro_batches: int
    values_us: tuple[int | None, ...]

    @property
    def rises_percent(self) -> list[float]:
        """By how much a plan is longer than the best one of all smaller limits, where it is."""
        best, found = float("inf"), []
        for value in self.values_us:
            us = float("inf") if value is None else value
            if us > best:
                found.append(100 * (us / best - 1))
            best = min(best, us)
        return found


def with_slow_link(case: RealisticCase) -> RealisticCase:
    """The same pipeline with one slow link between the two ranks in the middle."""
    profile, links = case.profile, case.profile.links
    assert links is not None
    forward_us = sum(each.time_us[OpKind.F].median_us for each in profile.layer_profiles.values())
    slow_us = round(_SLOW_SHARE * forward_us / case.num_ranks) + links.default.latency_us
    ends = case.num_ranks // 2 - 1, case.num_ranks // 2
    pairs = tuple(
        PairLink(source=source, target=target, latency_us=slow_us)
        for source, target in (ends, ends[::-1])
    )
    return case._replace(profile=profile.replace(links=Links(default=links.default, pairs=pairs)))


def measured(number: int, name: str, options: SolveOptions, *, slow_link: bool) -> Row:
    """Solve one case on one placement under all limits."""
    case = realistic_case(number, name)
    case = with_slow_link(case) if slow_link else case
    values = []
    for factor in FACTORS:
        more = case._replace(limit_bytes=round(factor * case.limit_bytes))
        with in_processor_time():
            values.append(solved(more, None, options).value_us)
    sizes = case.num_ranks, case.num_micro_batches
    return Row(number, options.seed, name, *sizes, tuple(values))


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown: for each placement how often a plan got worse with more memory."""
    rows, lines = [Row(**row) for row in document["rows"]], []
    for name in PLACEMENTS:
        own = [row for row in rows if row.placement == name]
        rises = [rise for row in own for rise in row.rises_percent]
        pairs = sum(len([*pairwise(row.values_us)]) for row in own)
        if own:
            largest = f"{max([0.0, *rises]):.2f}"
            lines.append([name, str(len(own)), str(pairs), str(len(rises)), largest])
    heads = "placement", "cases", "larger limits", "worse plans", "at most %"
    return markdown_table(heads, lines)


def main(given: Sequence[str] | None = None) -> int:
    """Solve all cases; print and save their rows. Return 1 if a plan got worse with more memory."""
    parser = case_parser("more_memory", __doc__, cases=4, limit_s=6)
    parser.add_argument("--placement", action="append", help="only these")
    parser.add_argument("--slow-link", action="store_true", help="with a slow link in the middle")
    parser.add_argument("--alone", action="store_true", help="search under no lower limit")
    asked = parse_request(parser, given)
    about = (
        f"{asked.cases} generated pipelines{' with a slow link' if asked.slow_link else ''}, each "
        f"under {len(FACTORS)} memory limits, {asked.limit:g} s of processor time for each search."
    )
    run = Run("more-memory", about, asked.seeds, 1, asked.limit)
    options = SolveOptions(asked.limit, workers=1, tries_less_memory=not asked.alone)

    def rows() -> Iterator[Row]:
        for number in numbers_of(asked):
            for name, seed in product(asked.placement or PLACEMENTS, range(asked.seeds)):
                own = replace(options, seed=seed)
                yield measured(number, name, own, slow_link=asked.slow_link)

    done = report_rows(rows(), asked.json, FORMAT, run, table, lambda row: [_line(row)])
    return int(any(row.rises_percent for row in done))


def _line(row: Row) -> str:
    values = " ".join("none" if us is None else str(us) for us in row.values_us)
    rises = ", ".join(f"{rise:.2f} %" for rise in row.rises_percent) or "none"
    return (
        f"{row.case}: {row.placement}, {row.num_ranks} ranks, {row.num_micro_batches} "
        f"micro-batches: {values}; worse: {rises}"
    )


if __name__ == "__main__":
    sys.exit(main())
