"""Compares the plan of a search over all choices with every published schedule.

    python -m benchmarks.auto_placement [--cases 40] [--limit 10] [--first 0] [--workers 2]
    python -m benchmarks.auto_placement --seeds 3 --json benchmarks/results/auto-placement.json

Profiles are generated: layers of one to three kinds, some with a heavy first or last layer; 2 to 8
ranks; a memory limit between what the tightest partition needs and what 1F1B needs, or none.
`auto` chooses placement, partition and recomputation. It must not be worse than any published
pipeline schedule that fits, each on its own placement and cut evenly. Data parallelism is no
pipeline and no choice of `auto`.
"""

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import median
from typing import Any, NamedTuple

from benchmarks.generated_cases import case_parser, numbers_and_seeds
from benchmarks.results_file import Run, markdown_table, parse_request, report_rows
from synth.costs.partition_costs import partition_costs
from synth.families import generate, is_pipeline, variants_for
from synth.op_kinds import OpKind
from synth.plan.compare import compare
from synth.plan.comparison import Question, SearchRequest
from synth.plan.partition.balance import balance
from synth.profile import Profile, Provenance
from synth.profile.layer_profile import Layer, LayerProfile, Timing
from synth.profile.links import Link, Links
from synth.profile.workload import Workload
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Placement
from synth.schedule.rank_memory import peak_bytes
from synth.solver.options import SolveOptions

FORMAT = "synth-auto-placement-benchmark-1"

# Everything is left to the search.
AUTO = SearchRequest("auto", None, None)

# Memory limits between static memory plus one micro-batch and the memory of 1F1B, as shares.
_SHARES = (0.15, 0.3, 0.5, 0.75, 1.0)


class Row(NamedTuple):
    """The search for one generated profile with one seed, and the best published schedule.

    Times are makespans in µs; None: nothing was found, or nothing fits.
    """

    profile: int
    seed: int
    num_ranks: int
    num_layers: int
    num_micro_batches: int
    limit_bytes: int | None
    auto_us: int | None
    published: str | None
    published_us: int | None

    @property
    def is_worse(self) -> bool:
        """True if a published schedule that fits is better than the plan."""
        if self.published_us is None:
            return False
        return self.auto_us is None or self.auto_us > self.published_us

    @property
    def less_percent(self) -> float | None:
        """The percentage by which the plan is shorter than the published schedule."""
        if self.auto_us is None or self.published_us is None:
            return None
        return 100 * (1 - self.auto_us / self.published_us)


def question(seed: int) -> Question:
    """The generated profile of a seed, with its ranks, micro-batches and limit."""
    rng = random.Random(seed)
    num_ranks = rng.choice([2, 3, 4, 4, 6, 8])
    num_layers = num_ranks * rng.randint(1, 4) + rng.choice([0, 0, 1, 2])
    profile = _profile(rng, seed, num_layers)
    num_micro_batches = num_ranks * rng.randint(1, 3) + rng.choice([0, 0, 1])
    share = rng.choice([None, *_SHARES])
    caps = None if share is None else _caps(profile, num_ranks, num_micro_batches, share)
    return Question(profile, num_ranks, num_micro_batches, caps, partition_is_sought=True)


def _profile(rng: random.Random, seed: int, num_layers: int) -> Profile:
    kinds = {f"k{number}": _layer(rng, 1.0) for number in range(rng.randint(1, 3))}
    kinds["first"] = _layer(rng, rng.choice([0.2, 1.0]))
    kinds["last"] = _layer(rng, rng.choice([1.0, 2.0]))
    inner = [name for name in kinds if name.startswith("k")]
    names = ["first", *rng.choices(inner, k=num_layers - 2), "last"]
    return Profile(
        name=f"generated {seed}",
        provenance=Provenance(source="generated", device="none", date="2024-01-01"),
        workload=Workload(model="none", micro_batch_size=1, sequence_length=1, runnable=False),
        links=Links(default=Link(latency_us=rng.choice([0, 20, 200]))),
        layer_profiles=kinds,
        layers=tuple(Layer(name=f"l{i}", profile=name) for i, name in enumerate(names)),
    )


def _layer(rng: random.Random, factor: float) -> LayerProfile:
    forward = round(factor * rng.randint(500, 1500))
    backward, weight = round(forward * rng.uniform(0.8, 1.4)), round(forward * rng.uniform(0.6, 1))
    times = {OpKind.F: forward, OpKind.B: backward, OpKind.W: weight, OpKind.STEP: 10}
    times[OpKind.BW] = backward + weight
    saved = rng.randint(20, 60) * 1_000_000
    static = rng.randint(5, 40) * 1_000_000
    return LayerProfile(
        time_us={kind: Timing.exactly(us) for kind, us in times.items()},
        parameter_bytes=static,
        gradient_bytes=static,
        optimizer_bytes=2 * static,
        output_bytes=2_000_000,
        saved_bytes=saved,
        saved_w_bytes=saved // 2,
        rise_bytes={kind: (saved + 2_000_000) * (kind == OpKind.F) for kind in times},
    )


def _caps(
    profile: Profile, num_ranks: int, num_micro_batches: int, share: float
) -> tuple[int, ...]:
    """A share of the way from one micro-batch at a time to 1F1B's peak, cut evenly."""
    costs = partition_costs(profile, balance(profile, Placement.linear(num_ranks)))
    ends = [
        max(peak_bytes(lower(generate("1f1b", num_ranks, count), costs)))
        for count in (1, num_micro_batches)
    ]
    return (round(ends[0] + share * (ends[1] - ends[0])),) * num_ranks


def judge(profile: int, options: SolveOptions) -> Row:
    """Search the plan of a generated profile, and judge the published schedules."""
    asked = question(profile)
    num_layers = len(asked.profile.layers)
    pipelines = [name for name in variants_for(asked.num_ranks, num_layers) if is_pipeline(name)]
    entries = compare(asked, pipelines, [AUTO], options).ranked()
    auto = next((entry for entry in entries if entry.name == AUTO.title), None)
    others = (
        entry
        for entry in entries
        if entry is not auto and not entry.delay and entry.fits is not False
    )
    best = next(others, None)
    return Row(
        profile,
        options.seed,
        asked.num_ranks,
        num_layers,
        asked.num_micro_batches,
        None if asked.caps_bytes is None else asked.caps_bytes[0],
        None if auto is None else auto.makespan_us,
        None if best is None else best.name,
        None if best is None else best.makespan_us,
    )


def table(document: Mapping[str, Any]) -> str:
    """A saved run's counts in Markdown: of profiles, by the median of their seeds.

    The plan counts as worse if it is worse with any seed.
    """
    rows = sorted(Row(**row) for row in document["rows"])
    profiles = [list(group) for _, group in groupby(rows, key=lambda row: row.profile)]
    worse = sum(map(_is_worse, profiles))
    less = [found for group in profiles if (found := _less_percent(group)) is not None]
    better = sum((_less_percent(group) or 0) > 0 and not _is_worse(group) for group in profiles)
    alone = sum(group[0].published_us is None for group in profiles)
    counts = (len(profiles), worse, len(profiles) - worse - better - alone, better, alone)
    figures = (median(less or [0.0]), max(less, default=0.0))
    heads = ("profiles", "worse", "equal", "better", "alone", "median less %", "most less %")
    return markdown_table(heads, [[*map(str, counts), *(f"{figure:.2f}" for figure in figures)]])


def _is_worse(rows: Sequence[Row]) -> bool:
    return any(row.is_worse for row in rows)


def _less_percent(rows: Sequence[Row]) -> float | None:
    """The median of a profile's seeds; None if there is nothing to compare."""
    found = [row.less_percent for row in rows if row.less_percent is not None]
    return median(found) if found else None


def main(given: Sequence[str] | None = None) -> int:
    """Judge all profiles; print and save their rows."""
    parser = case_parser("auto_placement", __doc__, cases=40, limit_s=10.0)
    parser.add_argument("--workers", type=int, default=2)
    asked = parse_request(parser, given)
    about = (
        f"{asked.cases} generated profiles, 2 to 8 ranks, {asked.limit:g} s each; placement, "
        f"partition and recomputation chosen by the search, against the best published pipeline "
        f"schedule that fits, cut evenly (alone: none fits)."
    )
    run = Run("auto-placement", about, asked.seeds, asked.workers, asked.limit)
    options = SolveOptions(asked.limit, gap=0.005, workers=asked.workers)
    cases = numbers_and_seeds(asked)
    rows = (judge(profile, replace(options, seed=seed)) for profile, seed in cases)
    report_rows(rows, asked.json, FORMAT, run, table, lambda row: [_line(row)])
    return 0


def _line(row: Row) -> str:
    limit = "no limit" if row.limit_bytes is None else f"{row.limit_bytes / 1e9:.3f} GB"
    auto, best = (
        "none" if us is None else f"{us / 1000:.3f} ms" for us in (row.auto_us, row.published_us)
    )
    less = "" if row.less_percent is None else f", {row.less_percent:.2f} % less"
    return (
        f"{row.profile}: {row.num_ranks} ranks, {row.num_layers} layers, {row.num_micro_batches} "
        f"micro-batches, {limit}, seed {row.seed}: auto {auto}, {row.published or 'published'} "
        f"{best}{less}{', WORSE' if row.is_worse else ''}"
    )


if __name__ == "__main__":
    sys.exit(main())
