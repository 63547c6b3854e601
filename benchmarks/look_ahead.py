r"""Bounded look-ahead against the plan's order, under jitter, a slow rank and a slow link.

Equal stages, ops of 20 ms (W 15). Prints the median time of an iteration in the plan's order, and
with look-ahead as a share of it, with the number of ops that ran early in parentheses. The memory
limit of all ranks is a multiple of the largest planned peak. Iterations are simulated event by
event; with --emulate they are also run by real processes on emulated devices.

    python -m benchmarks.look_ahead --json benchmarks/results/look-ahead.json
    python -m benchmarks.look_ahead --emulate --ranks 4 --micro-batches 16 --families 1f1b \
        --modes 1:1.25 --op-ms 40 --json benchmarks/results/look-ahead-emulated.json
"""

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.emulation import plan_of
from benchmarks.look_ahead_simulation import LookAheadSimulation
from benchmarks.results_file import Run, markdown_table, parse_without_seeds, parser_of, report_rows
from synth.run_options.emulation_options import Disturbance, EmulationOptions
from synth.runtime.emulation.pace import Pace
from synth.schedule.files.plan_file import Plan

FORMAT = "synth-look-ahead-benchmark-1"

DISTURBANCES = {
    "none": Disturbance(),
    "jitter 5 %": Disturbance(jitter=0.05),
    "jitter 10 %": Disturbance(jitter=0.1),
    "jitter 20 %": Disturbance(jitter=0.2),
    "slow rank": Disturbance(slow_rank=1, slow_rank_factor=1.3),
    "slow link": Disturbance(slow_link=(1, 2), slow_link_factor=30.0),
}


class Mode(NamedTuple):
    """A number of ops to look ahead, and the memory limit as a multiple of the highest peak."""

    look_ahead: int
    of_peak: float

    def caps_bytes(self, plan: Plan) -> tuple[int, ...]:
        """The same limit for all ranks, as their devices are alike."""
        peaks = plan.claim.peak_bytes
        return (round(self.of_peak * max(peaks)),) * len(peaks)

    def __str__(self) -> str:
        """The head of its column."""
        return f"N = {self.look_ahead}, {self.of_peak:g} × peak"


STRICT = Mode(0, 1.0)


def mode_of(text: str) -> Mode:
    """Read `4:1.25`: a look-ahead of 4 ops, and limits of 1.25 times the largest peak."""
    look_ahead, of_peak = text.split(":")
    return Mode(int(look_ahead), float(of_peak))


class Row(NamedTuple):
    """Iterations of a schedule under a disturbance; `early` is the number of ops that ran early.

    `mode` is the head of its column, of which the plan's order has none. `way` is `simulated` or
    `emulated`.
    """

    schedule: str
    disturbance: str
    way: str
    mode: str | None
    time_ms: float
    early: float


Timing = Callable[[Plan, Disturbance, Mode], tuple[float, float]]
"""Returns the time of an iteration in ms, and the number of its early ops."""


def simulated(repeats: int) -> Timing:
    """Iterations with different random times, simulated."""

    def run(plan: Plan, disturbance: Disturbance, mode: Mode) -> tuple[float, float]:
        times_ms, early = [], []
        for seed in range(repeats):
            found = _simulation(plan, disturbance.replace(seed=seed), mode)
            times_ms.append(found.run() / 1000)
            early.append(sum(rank.num_early for rank in found.ranks))
        return median(times_ms), median(early)

    return run


def _simulation(plan: Plan, disturbance: Disturbance, mode: Mode) -> LookAheadSimulation:
    lowered, _ = plan.check()
    stages = lowered.costs.stages
    paces = [Pace(disturbance, rank) for rank in range(lowered.num_ranks)]
    op_us = {
        (rank, op): paces[rank].op_us(op.kind, op.stage, stages[op.stage].duration_us[op.kind])
        for rank, ops in enumerate(lowered.ops)
        for op in ops
    }
    transfer_us = {t: paces[t.source].transfer_us(t, sends=True) for t in lowered.transfers}
    return LookAheadSimulation(
        lowered,
        mode.look_ahead,
        mode.caps_bytes(plan),
        lambda rank, op: op_us[rank, op],
        transfer_us.__getitem__,
    )


def emulated(steps: int) -> Timing:
    """Iterations of real processes on emulated devices; the first two warm up."""
    # Here, because whoever makes tables of saved results needs no torch.
    from synth.runtime.training.launch import launch

    def run(plan: Plan, disturbance: Disturbance, mode: Mode) -> tuple[float, float]:
        lowered, _ = plan.check()
        caps = mode.caps_bytes(plan)
        options = EmulationOptions(
            steps=steps, look_ahead=mode.look_ahead, caps_bytes=caps, disturbance=disturbance
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            plan.save(path)
            results = launch(path, plan, lowered, options)
        peaks = [result.peak_bytes for result in results]
        if any(peak > cap for peak, cap in zip(peaks, caps, strict=True)):
            raise SystemExit(f"peaks {peaks} exceed the limits {caps}")
        early = [sum(step) for step in zip(*(r.early_ops for r in results), strict=True)]
        return median(results[0].step_seconds[2:]) * 1000, median(early[2:] or [0])

    return run


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown: a line for each schedule and disturbance."""
    rows = [Row(**row) for row in document["rows"]]
    ways = list(dict.fromkeys(row.way for row in rows))
    modes = list(dict.fromkeys(row.mode for row in rows if row.mode is not None))
    of_way = {way: f", {way}" if len(ways) > 1 else "" for way in ways}
    heads = ["schedule", "disturbance", *(f"plan's order{of_way[way]}, ms" for way in ways)]
    heads += [f"{mode}{of_way[way]}" for mode, way in product(modes, ways)]
    found = {(row.schedule, row.disturbance, row.way, row.mode): row for row in rows}

    def cells(schedule: str, disturbance: str) -> Iterator[str]:
        yield from (schedule, disturbance)
        strict_ms = {way: found[schedule, disturbance, way, None].time_ms for way in ways}
        yield from (f"{strict_ms[way]:.0f}" for way in ways)
        for mode, way in product(modes, ways):
            row = found[schedule, disturbance, way, mode]
            yield f"{row.time_ms / strict_ms[way]:.3f} ({row.early:.0f})"

    lines = dict.fromkeys((row.schedule, row.disturbance) for row in rows)
    return markdown_table(heads, (cells(*line) for line in lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save the rows of all disturbances in all modes, then the table."""
    asked = _parse(arguments)
    ways = {"simulated": simulated(asked.repeats)}
    if asked.emulate:
        ways["emulated"] = emulated(asked.repeats + 2)
    about = (
        f"{asked.ranks} ranks, {asked.micro_batches} micro-batches, ops of {asked.op_ms:g} ms, "
        f"{asked.repeats} iterations."
    )
    request = Run("look-ahead", about, 1, 0, None)
    report_rows(_rows(asked, ways), asked.json, FORMAT, request, table)
    return 0


def _rows(asked: Namespace, ways: Mapping[str, Timing]) -> Iterator[Row]:
    for family in asked.families:
        plan = plan_of(family, asked.ranks, asked)
        for name, way, mode in product(asked.disturbances, ways, (None, *asked.modes)):
            time_ms, early = ways[way](plan, DISTURBANCES[name], mode or STRICT)
            title = None if mode is None else str(mode)
            yield Row(family, name, way, title, time_ms, early)


def _parse(arguments: Sequence[str] | None) -> Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--micro-batches", type=int, default=32)
    parser.add_argument("--families", nargs="+", default=["1f1b", "zb-h1", "zb-h2", "zb-v"])
    parser.add_argument("--disturbances", nargs="+", choices=DISTURBANCES, default=[*DISTURBANCES])
    parser.add_argument("--op-ms", type=float, default=20.0)
    parser.add_argument("--boundary-bytes", type=int, default=262_144)
    parser.add_argument("--repeats", type=int, default=12, help="iterations")
    parser.add_argument(
        "--modes",
        type=mode_of,
        nargs="+",
        default=list(map(mode_of, ("1:1", "4:1", "1:1.25", "4:1.25"))),
    )
    return parse_without_seeds(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
