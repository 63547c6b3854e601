"""Compares the plan of a search over all choices with every published schedule.

    python benchmarks/auto_placement.py [--profiles 40] [--limit 10] [--seed 0] [--workers 2]

Profiles are generated: layers of one to three kinds, some with a heavy first or last layer; 2 to 8
ranks; a memory limit between what the tightest partition needs and what 1F1B needs, or none.
`auto` chooses placement, partition and recomputation. It must not be worse than any published
pipeline schedule that fits, each on its own placement and cut evenly. Data parallelism is no
pipeline and no choice of `auto`.
"""

import argparse
import random
from collections.abc import Sequence
from typing import NamedTuple

from synth.families import generate, is_pipeline, variants_for
from synth.op_kinds import OpKind
from synth.partition_costs import partition_costs
from synth.plan.compare import compare
from synth.plan.comparison import Entry, Question, Search
from synth.plan.partition.balance import balance
from synth.profile import (
    Layer,
    LayerProfile,
    Link,
    Links,
    Profile,
    Provenance,
    Timing,
    Workload,
)
from synth.report.text.tables import table
from synth.schedule import lower, peak_bytes
from synth.schedule.model import Placement
from synth.solve.options import SolveOptions

# Everything is left to the search.
AUTO = Search("auto", None, None)

# Memory limits between static memory plus one micro-batch and the memory of 1F1B, as shares.
_SHARES = (0.15, 0.3, 0.5, 0.75, 1.0)


class Outcome(NamedTuple):
    """The values found for one generated problem; None: nothing was found."""

    question: Question
    auto: Entry | None
    best: Entry | None

    @property
    def is_worse(self) -> bool:
        """True if a published schedule that fits is better than the plan."""
        if self.best is None:
            return False
        value_us = self.question.objective.value_us
        return self.auto is None or value_us(self.auto) > value_us(self.best)


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


def judge(asked: Question, options: SolveOptions, names: Sequence[str] | None = None) -> Outcome:
    """Search, and compare with the published schedules, all of them or those named."""
    pipelines = names or [
        name
        for name in variants_for(asked.num_ranks, len(asked.profile.layers))
        if is_pipeline(name)
    ]
    entries = compare(asked, pipelines, [AUTO], options).ranked()
    auto = next((entry for entry in entries if entry.name == AUTO.title), None)
    others = (
        entry
        for entry in entries
        if entry is not auto and not entry.delay and entry.fits is not False
    )
    return Outcome(asked, auto, next(others, None))


def main() -> None:
    """Judge all, and print the table and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profiles", type=int, default=40)
    parser.add_argument("--limit", type=float, default=10.0, help="the time limit, in seconds")
    parser.add_argument("--seed", type=int, default=0, help="of the first profile")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    rows, outcomes = [], []
    for seed in range(asked.seed, asked.seed + asked.profiles):
        options = SolveOptions(asked.limit, gap=0.005, workers=asked.workers)
        found = judge(question(seed), options)
        outcomes.append(found)
        rows.append(_row(seed, found))
        print(" ".join(rows[-1]), flush=True)
    header = [
        "seed",
        "ranks",
        "layers",
        "micro-\nbatches",
        "limit\nGB",
        "auto\nms",
        "best published\nms",
    ]
    print(table([*header, "of", "less\n%", "worse"], rows))
    fitting = [one for one in outcomes if one.best is not None]
    worse = sum(one.is_worse for one in outcomes)
    better = sum(_less(one) > 0 for one in fitting)
    alone = sum(one.auto is not None and one.best is None for one in outcomes)
    print(
        f"{len(outcomes)} profiles, {asked.limit:g} s each: auto worse {worse}, equal "
        f"{len(fitting) - better - worse}, better {better}; nothing published fits {alone}"
    )


def _less(found: Outcome) -> float:
    """The share by which the plan is shorter than the best published schedule."""
    if found.auto is None or found.best is None:
        return 0.0
    value_us = found.question.objective.value_us
    return 1 - value_us(found.auto) / value_us(found.best)


def _row(seed: int, found: Outcome) -> list[str]:
    asked = found.question
    caps = "none" if asked.caps_bytes is None else f"{asked.caps_bytes[0] / 1e9:.3f}"
    auto, best = found.auto, found.best
    return [
        str(seed),
        str(asked.num_ranks),
        str(len(asked.profile.layers)),
        str(asked.num_micro_batches),
        caps,
        "none" if auto is None else f"{auto.makespan_us / 1000:.3f}",
        "none" if best is None else f"{best.makespan_us / 1000:.3f}",
        "" if best is None else best.name,
        f"{100 * _less(found):.2f}",
        "yes" if found.is_worse else "no",
    ]


if __name__ == "__main__":
    main()
