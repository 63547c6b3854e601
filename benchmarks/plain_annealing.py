"""Plans of generated pipelines against plain annealing that begins from them.

    python -m benchmarks.plain_annealing [--cases 4] [--first 300] [--limit 60] [--more 30]

Each case is searched for `--limit` seconds. From that plan a baseline anneals for `--more` seconds:
rounds of equal length, each from the best order so far at a first temperature of its own, on the
plan's partition, and nothing else. A search that takes as long as both together stands beside it.
What the baseline gains beyond that search is time that the search spends on less. Nothing
recomputes. Limits are processor time of one worker.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from benchmarks.cpsat_calls import processor_s
from benchmarks.generated_cases import case_parser, numbers_and_seeds, plan_cells
from benchmarks.realistic_profiles import realistic_case
from benchmarks.realistic_suite import in_processor_time, solved
from benchmarks.results_file import Run, markdown_table, parse_request, report_rows
from synth.solver.improve.annealing import Annealing
from synth.solver.options import SolveOptions
from synth.solver.result import Result
from synth.solver.tuning import ANNEALING

FORMAT = "synth-plain-annealing-benchmark-1"

# First temperatures of the rounds, in mean op durations.
TEMPERATURES = (0.3, 0.1, 0.03, 1.0)


class Row(NamedTuple):
    """A case with one seed; makespans in µs, None: no plan.

    `annealed_us` is what plain annealing makes of the plan, and `longer_us` the plan of a search
    with as much time as both.
    """

    case: int
    seed: int
    placement: str
    num_ranks: int
    num_micro_batches: int
    plan_us: int | None
    bound_us: int
    annealed_us: int | None
    longer_us: int | None


def annealed_us(plan: Result, seconds: float, seed: int) -> int | None:
    """Return the makespan of a plan after plain annealing; None without a plan."""
    if plan.schedule is None:
        return None
    annealing = Annealing(plan.problem, seed)
    annealing.add(plan.schedule.programs, [plan.schedule.buffering])
    best_us = plan.value_us
    for temperature in TEMPERATURES:
        end_s = processor_s() + seconds / len(TEMPERATURES)
        left, is_over = partial(_units_until, end_s), partial(_is_over, end_s)
        for better in annealing.run_long(left, is_over, ((1.0, temperature),)):
            best_us = min(best_us or better.value_us, better.value_us)
    return best_us


def _units_until(end_s: float) -> float:
    """Return the effort of annealing that is left until a moment of processor time."""
    return max(0.0, end_s - processor_s()) * ANNEALING.units_per_s


def _is_over(end_s: float) -> bool:
    return processor_s() >= end_s


def measured(number: int, options: SolveOptions, more_s: float) -> Row:
    """Search one case twice, and anneal from the shorter search's plan."""
    case = realistic_case(number)
    with in_processor_time():
        plan = solved(case, None, options)
        longer = solved(case, None, replace(options, time_limit_s=options.time_limit_s + more_s))
    return Row(
        number,
        options.seed,
        case.placement,
        case.num_ranks,
        case.num_micro_batches,
        plan.value_us,
        plan.lower_bound_us,
        annealed_us(plan, more_s, options.seed),
        longer.value_us,
    )


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown: by how much both are shorter than the plan, in percent."""
    heads = ("case", "pipeline", "plan s", "gap %", "annealed on", "searched on")
    return markdown_table(heads, [_cells(Row(**row)) for row in document["rows"]])


def _cells(row: Row) -> list[str]:
    return [
        str(row.case),
        f"{row.placement}, {row.num_ranks} ranks, {row.num_micro_batches} micro-batches",
        *plan_cells(row.plan_us, row.bound_us),
        _shorter(row.plan_us, row.annealed_us),
        _shorter(row.plan_us, row.longer_us),
    ]


def _shorter(plan_us: int | None, other_us: int | None) -> str:
    return "" if plan_us is None or other_us is None else f"{100 * (1 - other_us / plan_us):.2f} %"


def main(given: Sequence[str] | None = None) -> int:
    """Measure all cases; print and save their rows."""
    parser = case_parser("plain_annealing", __doc__, cases=4, limit_s=60)
    parser.add_argument("--more", type=float, default=30.0, help="seconds of annealing")
    asked = parse_request(parser, given)
    about = (
        f"{asked.cases} generated pipelines, {asked.limit:g} s of processor time each, then "
        f"{asked.more:g} s of plain annealing or of the same search."
    )
    run = Run("plain-annealing", about, asked.seeds, 1, asked.limit)
    rows = (
        measured(number, SolveOptions(asked.limit, workers=1, seed=seed), asked.more)
        for number, seed in numbers_and_seeds(asked)
    )
    report_rows(rows, asked.json, FORMAT, run, table, lambda row: [" | ".join(_cells(row))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
