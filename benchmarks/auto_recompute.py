"""Plans with the recomputation left to the search, against those of single choices in equal time.

    python -m benchmarks.auto_recompute [--limit 20] [--cases 0] [--gb 20 30 45] [--profile NAME]
    python -m benchmarks.auto_recompute --free --limit 120 --only auto
    python -m benchmarks.auto_recompute --json benchmarks/results/auto-recompute.json

Shipped profiles with one stage per rank, evenly partitioned, and generated pipelines on their own
placement and limit, with equal numbers of layers (`benchmarks.realistic_profiles`). Each is solved
with `--recompute auto`, without recomputation, with R of all stages or of the first half, and with
all layers recomputed within B. Beside them stands the best published schedule that fits, with the
recomputation of its family. With `--free`, placement and partition are left to the search, too.
Limits are processor time of one worker, so that a busy machine does not change them much.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import synth
from benchmarks.generated_cases import case_parser, numbers_of
from benchmarks.realistic_profiles import realistic_case
from benchmarks.realistic_suite import in_processor_time
from benchmarks.results_file import Run, markdown_table, parse_request, report_rows
from synth.costs.partition_costs import partition_costs
from synth.families import generate_for
from synth.op_kinds import OpKind
from synth.options.request import NoSchedule
from synth.plan.partition.candidates import equal_cuts
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.profile import Profile
from synth.profiles import load
from synth.schedule.files.plan_file import Plan
from synth.schedule.placements import placement
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.verify import verify
from synth.search.outcome import relative_gap

FORMAT = "synth-auto-recompute-benchmark-1"

# Shipped profiles with their ranks and micro-batches.
SHIPPED = {
    "zb-1.5b-p8-m24": (8, 24),
    "zb-1.5b-p8-m64": (8, 64),
    "zb-6.2b-p8-m24": (8, 24),
    "zb-14.6b-p16-m48": (16, 48),
    "zb-28.3b-p32-m96": (32, 96),
}

CHOICES = ("auto", "none", "all", "half", "layers")

_GB = 10**9


class Case(NamedTuple):
    """A pipeline to be planned; no limit of memory: None."""

    name: str
    profile: Profile
    placement: str
    partition: str | tuple[int, ...]
    num_ranks: int
    num_micro_batches: int
    limit_bytes: int | None


class Row(NamedTuple):
    """The makespans of a case with one seed, in µs, by choice; None: nothing was found that fits.

    `bound_us` is of every choice, and `recomputed` says what `auto` recomputes.
    """

    case: str
    seed: int
    values_us: dict[str, int | None]
    bound_us: int
    recomputed: str
    prover: str

    @property
    def single_us(self) -> int | None:
        """The best value of the single choices and of published schedules."""
        values = (us for name, us in self.values_us.items() if name != "auto")
        return min((us for us in values if us is not None), default=None)

    @property
    def gap_percent(self) -> float | None:
        """The gap of `auto` to the bound of every choice; None: it was not asked for, or failed."""
        value_us = self.values_us.get("auto")
        return None if value_us is None else 100 * relative_gap(value_us, self.bound_us)

    @property
    def behind_percent(self) -> float | None:
        """By how much `auto` is longer than the best single choice; less than 0: shorter."""
        value_us, single_us = self.values_us.get("auto"), self.single_us
        if single_us is None or "auto" not in self.values_us:
            return None
        return float("inf") if value_us is None else 100 * (value_us / single_us - 1)


def shipped_cases(names: Sequence[str], limits_gb: Sequence[float], *, free: bool) -> list[Case]:
    """Return the shipped profiles under each limit; a limit of 0 is none."""
    way = ("auto", "auto") if free else ("linear", "even")
    return [
        Case(
            f"{name}, {gb:g} GB" if gb else f"{name}, no limit",
            load(name),
            *way,
            *SHIPPED[name],
            round(gb * _GB) if gb else None,
        )
        for name in names
        for gb in limits_gb
    ]


def generated_case(number: int, *, free: bool) -> Case:
    """Return a generated pipeline on the partition of equal numbers of layers."""
    case = realistic_case(number)
    where = placement(case.placement, case.num_ranks)
    equal, *_ = equal_cuts(StageCostTable(case.profile), where.num_stages)
    way: tuple[str, str | tuple[int, ...]] = ("auto", "auto") if free else (case.placement, equal)
    sizes = case.num_ranks, case.num_micro_batches
    return Case(f"{number}: {case.placement}", case.profile, *way, *sizes, case.limit_bytes)


def measured(case: Case, choices: Sequence[str], seed: int, limit_s: float) -> Row:
    """Solve a case with each choice, and judge the published schedules."""
    values: dict[str, int | None] = {}
    bound_us, recomputed, prover = 0, "nothing", "nothing proven"
    for choice in choices:
        asked = _asked(case, choice)
        if asked is None:
            continue
        with in_processor_time():
            try:
                plan = _solved(case, asked, seed, limit_s)
            except NoSchedule:
                values[choice] = None
                continue
        values[choice] = round(plan.claim.value_us)
        if choice == "auto":
            bound_us, recomputed = plan.claim.lower_bound_us, _recomputed(plan)
            if plan.claim.certificate is not None:
                prover = plan.claim.certificate.words
    if not isinstance(case.partition, str):
        values["published"] = best_published(case, case.partition)
    return Row(case.name, seed, values, bound_us, recomputed, prover)


def best_published(case: Case, sizes: tuple[int, ...]) -> int | None:
    """Return the least makespan of a published schedule that fits and that does not offload."""
    where, costs = placement(case.placement, case.num_ranks), partition_costs(case.profile, sizes)
    caps = None if case.limit_bytes is None else (case.limit_bytes,) * case.num_ranks
    found = []
    for _, schedule in generate_for(where, case.num_micro_batches, costs, caps):
        lowered, line = verify(schedule, costs)
        if not lowered.schedule.offloads and not exceeds_caps(peak_bytes(lowered), caps):
            found.append(line.makespan_us)
    return min(found, default=None)


def _asked(case: Case, choice: str) -> str | None:
    """Return a choice as `--recompute` takes it; None if it is not known without a placement."""
    if choice == "layers":
        return f"layers:0-{len(case.profile.layers) - 1}"
    if choice != "half":
        return choice
    if case.placement == "auto":
        return None
    half = placement(case.placement, case.num_ranks).num_stages // 2
    return ",".join(map(str, range(half)))


def _solved(case: Case, choice: str, seed: int, limit_s: float) -> Plan:
    return synth.solve(
        case.profile,
        ranks=case.num_ranks,
        micro_batches=case.num_micro_batches,
        mem_limit="none" if case.limit_bytes is None else case.limit_bytes,
        placement=case.placement,
        partition=case.partition,
        recompute=choice,
        time_limit=limit_s,
        seed=seed,
        workers=1,
    )


def _recomputed(plan: Plan) -> str:
    """Return the layers that a plan recomputes, and the stages of its R."""
    programs = plan.schedule().programs
    again = sorted({op.stage for ops in programs for op in ops if op.kind == OpKind.R})
    words = [plan.recomputation.written] if plan.recomputed_layers else []
    words += [f"stages {','.join(map(str, again))}"] if again else []
    return "; ".join(words) or "nothing"


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown."""
    lines = []
    for row in (Row(**row) for row in document["rows"]):
        values = [_seconds(row.values_us.get(choice)) for choice in (*CHOICES, "published")]
        figures = _percent(row.behind_percent), _percent(row.gap_percent)
        lines.append([row.case, str(row.seed), *values, *figures, row.recomputed])
    heads = ("case", "seed", *CHOICES, "published", "behind %", "gap %", "recomputed")
    rows = [Row(**row) for row in document["rows"]]
    gaps = [row.gap_percent for row in rows if row.gap_percent is not None]
    behind = [row.behind_percent for row in rows if row.behind_percent is not None]
    if not gaps:
        return markdown_table(heads, lines)
    about = (
        f"Median gap {median(gaps):.2f} %, largest {max(gaps):.2f} %; longer than a single choice "
        f"in {sum(one > 0 for one in behind)} of {len(rows)} rows, at most by "
        f"{max([0.0, *behind]):.2f} %."
    )
    return f"{markdown_table(heads, lines)}\n\n{about}"


def _seconds(value_us: int | None) -> str:
    return "none" if value_us is None else f"{value_us / 1e6:.3f}"


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def main(given: Sequence[str] | None = None) -> int:
    """Solve all cases; print and save their rows. Return 1 if a single choice is better."""
    parser = case_parser("auto_recompute", __doc__, cases=0, limit_s=20.0)
    parser.add_argument("--profile", action="append", choices=[*SHIPPED], help="only these")
    parser.add_argument("--gb", type=float, nargs="*", default=[20, 30, 45], help="0: no limit")
    parser.add_argument("--only", nargs="*", default=CHOICES, choices=CHOICES, metavar="CHOICE")
    parser.add_argument("--free", action="store_true", help="search placement and partition, too")
    asked = parse_request(parser, given)
    about = (
        f"Recomputation by choice, {asked.limit:g} s of processor time for each search, "
        f"{'placement and partition searched' if asked.free else 'partition given'}."
    )
    run = Run("auto-recompute", about, asked.seeds, 1, asked.limit)

    def rows() -> Iterator[Row]:
        cases = shipped_cases(asked.profile or [*SHIPPED], asked.gb, free=asked.free)
        generated = numbers_of(asked)
        for case in [*cases, *(generated_case(number, free=asked.free) for number in generated)]:
            for seed in range(asked.seeds):
                yield measured(case, asked.only, seed, asked.limit)

    done = report_rows(rows(), asked.json, FORMAT, run, table, lambda row: [_line(row)])
    return int(any((row.behind_percent or 0) > 0 for row in done))


def _line(row: Row) -> str:
    values = ", ".join(f"{name} {_seconds(us)}" for name, us in row.values_us.items())
    return (
        f"{row.case}, seed {row.seed}: {values}; bound {_seconds(row.bound_us)}, gap "
        f"{_percent(row.gap_percent)} %, behind {_percent(row.behind_percent)} %; "
        f"{row.recomputed}; {row.prover}"
    )


if __name__ == "__main__":
    sys.exit(main())
