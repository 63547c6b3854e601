"""Plans of generated realistic pipelines, against published schedules on many partitions.

    python -m benchmarks.realistic_suite [--cases 10] [--first 0] [--limit 15] [--placement v]
    python -m benchmarks.realistic_suite --json benchmarks/results/realistic.json

Each case is solved with the partition left to the search, and once more with a partition given, of
equal numbers of layers. It is compared with every published schedule of its placement that fits on
any candidate partition (`synth.plan.partition.candidates`) or on the balanced one, made for that
partition. Nothing recomputes. Limits are processor time of one worker, so that a busy machine does
not change them much.
"""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.cpsat_calls import processor_s
from benchmarks.generated_cases import case_parser, is_above, numbers_and_seeds
from benchmarks.realistic_profiles import PLACEMENTS, RealisticCase, realistic_case
from benchmarks.results_file import Run, markdown_table, parse_request, report_rows
from synth.costs.partition_costs import partition_costs
from synth.families import generate_for
from synth.objective import Objective
from synth.plan.choose.candidates import Candidate, Partitioning, SearchWatch
from synth.plan.choose.race import solve_best_of
from synth.plan.partition.balance import balance
from synth.plan.partition.candidates import candidate_cuts, equal_cuts
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.schedule.placements import placement
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.verify import verify
from synth.search.outcome import relative_gap
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result

FORMAT = "synth-realistic-benchmark-1"


class Row(NamedTuple):
    """A case with one seed of the search; times are makespans in µs, None: nothing fits or found.

    `published` is the fastest published schedule that fits on a candidate partition,
    and `equal_us` the plan on the given partition of equal numbers of layers.
    """

    case: int
    seed: int
    placement: str
    num_ranks: int
    num_micro_batches: int
    num_layers: int
    plan_us: int | None
    bound_us: int
    partition: tuple[int, ...]
    published: str | None
    published_us: int | None
    equal_us: int | None

    @property
    def gap_percent(self) -> float | None:
        """The gap of the plan to its bound."""
        return None if self.plan_us is None else 100 * relative_gap(self.plan_us, self.bound_us)

    def above_percent(self, other_us: int | None) -> float | None:
        """By how much the plan is longer than something else; less than 0 if it is shorter."""
        if self.plan_us is None or other_us is None:
            return None
        return 100 * (self.plan_us / other_us - 1)


@contextmanager
def in_processor_time() -> Iterator[None]:
    """Let the clocks of this process show the processor time that it and its workers took."""
    with patch("time.monotonic", processor_s):
        yield


def measured(number: int, name: str | None, options: SolveOptions) -> Row:
    """Solve one case, and judge the published schedules."""
    case = realistic_case(number, name)
    where = placement(case.placement, case.num_ranks)
    equal, *_ = equal_cuts(StageCostTable(case.profile), where.num_stages)
    with in_processor_time():
        found = solved(case, None, options)
        given = solved(case, equal, options)
    best_us, best = best_published(case) or (None, None)
    return Row(
        number,
        options.seed,
        case.placement,
        case.num_ranks,
        case.num_micro_batches,
        len(case.profile.layers),
        found.value_us,
        found.lower_bound_us,
        found.problem.partition or (),
        best,
        best_us,
        given.value_us,
    )


def solved(
    case: RealisticCase,
    sizes: tuple[int, ...] | None,
    options: SolveOptions,
    stop: threading.Event | None = None,
) -> Result:
    """The best schedule found on a given partition, or on any (None)."""
    way = Partitioning.SEARCHED if sizes is None else Partitioning.GIVEN
    candidates = [candidate_of(case, sizes)]
    watch = SearchWatch(stop=stop or threading.Event())
    return solve_best_of(candidates, case.profile, way, options, watch).result


def candidate_of(case: RealisticCase, sizes: tuple[int, ...] | None = None) -> Candidate:
    """The candidate of a case, on a given partition or on the balanced one (None)."""
    where = placement(case.placement, case.num_ranks)
    begin = sizes or balance(case.profile, where, case.caps_bytes, case.num_micro_batches)
    problem = Problem(
        partition_costs(case.profile, begin),
        where,
        num_micro_batches=case.num_micro_batches,
        caps_bytes=case.caps_bytes,
        partition=begin,
    )
    return Candidate(case.placement, problem)


def best_published(case: RealisticCase) -> tuple[int, str] | None:
    """The least time of a published schedule that fits on some partition, and its name."""
    where = placement(case.placement, case.num_ranks)
    cuts = candidate_cuts(StageCostTable(case.profile), where.num_stages)
    cuts.append(balance(case.profile, where, case.caps_bytes, case.num_micro_batches))
    found = []
    for sizes in dict.fromkeys(cuts):
        costs = partition_costs(case.profile, sizes)
        numbers = (where, case.num_micro_batches, costs, case.caps_bytes)
        for name, schedule in generate_for(*numbers, objective=Objective.MAKESPAN):
            lowered, line = verify(schedule, costs)
            is_plain = schedule.keeps_saved and not lowered.schedule.offloads
            if is_plain and not exceeds_caps(peak_bytes(lowered), case.caps_bytes):
                found.append((line.makespan_us, name))
    return min(found, default=None)


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown: for each placement the gaps, and how often others are shorter."""
    rows = [Row(**row) for row in document["rows"]]
    lines = []
    for name in PLACEMENTS:
        own = [row for row in rows if row.placement == name]
        gaps = [gap for row in own if (gap := row.gap_percent) is not None]
        if not gaps:
            continue
        published = [row.above_percent(row.published_us) for row in own]
        equal = [row.above_percent(row.equal_us) for row in own]
        figures = (
            f"{median(gaps):.2f}", f"{max(gaps):.2f}", *_counted(published), *_counted(equal)
        )  # fmt: skip
        lines.append([name, str(len(own)), *figures])
    heads = (
        "placement", "rows", "median gap %", "largest gap %", "above published", "at most %",
        "above equal layers", "at most %",
    )  # fmt: skip
    return markdown_table(heads, lines)


def _counted(percents: Sequence[float | None]) -> tuple[str, str]:
    """Return the number of percentages above 0, and the largest one."""
    known = [percent for percent in percents if percent is not None]
    return str(sum(percent > 0 for percent in known)), f"{max([0.0, *known]):.2f}"


def main(given: Sequence[str] | None = None) -> int:
    """Solve all cases; print and save their rows. Return 1 if a published schedule is shorter."""
    parser = case_parser("realistic_suite", __doc__, cases=10, limit_s=15)
    parser.add_argument("--placement", help="of all cases; by default each has its own")
    asked = parse_request(parser, given)
    about = (
        f"{asked.cases} generated pipelines, {asked.limit:g} s of processor time each, against "
        f"the best published schedule on the candidate partitions, and against the plan on equal "
        f"numbers of layers."
    )
    run = Run("realistic", about, asked.seeds, 1, asked.limit)
    options = SolveOptions(asked.limit, workers=1)
    rows = (
        measured(number, asked.placement, replace(options, seed=seed))
        for number, seed in numbers_and_seeds(asked)
    )
    done = report_rows(rows, asked.json, FORMAT, run, table, lambda row: [_line(row)])
    return int(any(map(is_above, done)))


def _line(row: Row) -> str:
    def percent(value: float | None) -> str:
        return "none" if value is None else f"{value:.2f} %"

    return (
        f"{row.case}: {row.placement}, {row.num_ranks} ranks, {row.num_micro_batches} "
        f"micro-batches, {row.num_layers} layers: gap {percent(row.gap_percent)}, "
        f"{percent(row.above_percent(row.published_us))} above {row.published}, "
        f"{percent(row.above_percent(row.equal_us))} above equal layers"
    )


if __name__ == "__main__":
    sys.exit(main())
