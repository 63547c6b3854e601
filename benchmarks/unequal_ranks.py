"""Plans of generated pipelines whose ranks differ in speed and in memory.

    python -m benchmarks.unequal_ranks [--cases 8] [--first 0] [--limit 15]

The profiles are those of `benchmarks.realistic_suite`, on one stage per rank, v, looped:2 and
wave:2 in turn. One rank of the pipeline is slow, half of them are, or each has its own speed; a
slow rank may have less memory. The partition is left to the search. The plan is compared with every
published schedule of the placement that fits on any candidate partition, or on one balanced for
these speeds. Nothing recomputes. Limits are processor time of one worker.
"""

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import synth
from benchmarks.generated_cases import (
    case_parser,
    is_above,
    numbers_and_seeds,
    plan_cells,
    published_cell,
)
from benchmarks.realistic_profiles import RealisticCase, realistic_case
from benchmarks.realistic_suite import in_processor_time
from benchmarks.results_file import Run, markdown_table, parse_request, report_rows
from synth.costs.partition_costs import partition_costs
from synth.families import generate_for
from synth.objective import Objective
from synth.plan.partition.candidates import Sizes, candidate_cuts
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.partition.unequal_ranks import UnequalRanks
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.verify import verify

FORMAT = "synth-unequal-ranks-benchmark-1"
PLACEMENTS = ("linear", "v", "looped:2", "wave:2")


class UnequalCase(NamedTuple):
    """A pipeline on ranks of these speeds, and a memory limit for each of them."""

    pipeline: RealisticCase
    speeds: tuple[float, ...]
    caps_bytes: tuple[int, ...]

    @property
    def where(self) -> Placement:
        """The placement."""
        return placement(self.pipeline.placement, self.pipeline.num_ranks)


class Row(NamedTuple):
    """A case; times are makespans in µs, None: nothing fits or found."""

    case: int
    placement: str
    num_ranks: int
    num_micro_batches: int
    speeds: tuple[float, ...]
    plan_us: int | None
    bound_us: int
    published: str | None
    published_us: int | None


def unequal_case(number: int) -> UnequalCase:
    """Generate the case of a number."""
    rng = random.Random(number)
    case = realistic_case(number, PLACEMENTS[number % len(PLACEMENTS)])
    count, slow = case.num_ranks, rng.choice([0.5, 0.6, 0.75, 0.9])
    kind = rng.choice(["one", "half", "each"])
    if kind == "one":
        speeds = [1.0] * count
        speeds[rng.randrange(count)] = slow
    elif kind == "half":
        speeds = [1.0] * (count - count // 2) + [slow] * (count // 2)
        rng.shuffle(speeds)
    else:
        speeds = [round(rng.uniform(slow, 1), 2) for _ in range(count)]
    less = rng.choice([1.0, 1.0, 0.75])
    caps = [round(case.limit_bytes * (less if speed < 1 else 1)) for speed in speeds]
    return UnequalCase(case, tuple(speeds), tuple(caps))


def measured(number: int, limit_s: float, seed: int) -> Row:
    """Solve one case, and judge the published schedules."""
    case = unequal_case(number)
    pipeline = case.pipeline
    value_us, bound_us = None, 0
    with in_processor_time():
        try:
            plan = synth.solve(
                pipeline.profile,
                ranks=pipeline.num_ranks,
                micro_batches=pipeline.num_micro_batches,
                mem_limit=[f"{cap}B" for cap in case.caps_bytes],
                placement=pipeline.placement,
                recompute="none",
                rank_speed=case.speeds,
                time_limit=limit_s,
                workers=1,
                seed=seed,
                gap=0,
            )
            value_us, bound_us = plan.claim.makespan_us, plan.claim.lower_bound_us
        except synth.SynthError as error:
            print(f"{number}: {error}", file=sys.stderr)
    best_us, best = min(published(case), default=(None, None))
    return Row(
        number,
        pipeline.placement,
        pipeline.num_ranks,
        pipeline.num_micro_batches,
        case.speeds,
        value_us,
        bound_us,
        best,
        best_us,
    )


def published(case: UnequalCase) -> Iterator[tuple[int, str]]:
    """Yield the published schedules that fit on some partition: their times and names."""
    pipeline, where = case.pipeline, case.where
    profile = pipeline.profile.replace(rank_speeds=case.speeds)
    for sizes in dict.fromkeys(_cuts(case)):
        costs = partition_costs(profile, sizes, where.ranks)
        numbers = (where, pipeline.num_micro_batches, costs, case.caps_bytes)
        for name, schedule in generate_for(*numbers, objective=Objective.MAKESPAN):
            lowered, line = verify(schedule, costs)
            is_plain = schedule.keeps_saved and not lowered.schedule.offloads
            if is_plain and not exceeds_caps(peak_bytes(lowered), case.caps_bytes):
                yield line.makespan_us, f"{name} on {','.join(map(str, sizes))}"


def _cuts(case: UnequalCase) -> list[Sizes]:
    profile, where = case.pipeline.profile, case.where
    unequal = UnequalRanks(profile.replace(rank_speeds=case.speeds), where, case.caps_bytes)
    cuts = candidate_cuts(StageCostTable(profile), where.num_stages)
    return [*cuts, *unequal.best_cuts(8, lambda: False)]


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown."""
    heads = ("case", "pipeline", "speeds", "plan s", "gap %", "best published s", "partition")
    return markdown_table(heads, [_cells(Row(**row)) for row in document["rows"]])


def _cells(row: Row) -> list[str]:
    name, _, sizes = (row.published or "").partition(" on ")
    return [
        str(row.case),
        f"{row.placement}, {row.num_ranks} ranks, {row.num_micro_batches} micro-batches",
        " ".join(f"{speed:g}" for speed in row.speeds),
        *plan_cells(row.plan_us, row.bound_us),
        published_cell(row.published_us, name),
        sizes,
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Solve all cases; print and save their rows. Return 1 if a published schedule is shorter."""
    parser = case_parser("unequal_ranks", __doc__, cases=8, limit_s=15)
    asked = parse_request(parser, given)
    about = (
        f"{asked.cases} generated pipelines on ranks of unequal speed, {asked.limit:g} s of "
        f"processor time each, against the best published schedule on many partitions."
    )
    run = Run("unequal-ranks", about, asked.seeds, 1, asked.limit)
    rows = (measured(number, asked.limit, seed) for number, seed in numbers_and_seeds(asked))
    done = report_rows(rows, asked.json, FORMAT, run, table, lambda row: [" | ".join(_cells(row))])
    return int(any(map(is_above, done)))


if __name__ == "__main__":
    sys.exit(main())
