r"""Bounded look-ahead against the plan's order, under jitter, a slow rank and a slow link.

Equal stages, ops of 20 ms (W 15). Prints the median time of an iteration in the plan's order, and
with look-ahead as a share of it. The memory limit of all ranks is a multiple of the largest planned
peak. With --emulate the iterations are run by real processes on emulated devices, else they are
simulated event by event.

    python -m benchmarks.look_ahead
    python -m benchmarks.look_ahead --emulate --ranks 4 --micro-batches 16 --families 1f1b zb-h1 \
        --modes 1:1.25
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.emulation import plan_of
from benchmarks.look_ahead_simulation import LookAheadSimulation
from synth.emulation_options import Disturbance, EmulationOptions
from synth.report.text.tables import table
from synth.runtime.emulation.pace import Pace
from synth.runtime.training.launch import launch
from synth.schedule.files.plan_file import Plan

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
        return f"N = {self.look_ahead},\n{self.of_peak:g} × peak"


STRICT = Mode(0, 1.0)


def mode_of(text: str) -> Mode:
    """Read `4:1.25`: a look-ahead of 4 ops, and limits of 1.25 times the largest peak."""
    look_ahead, of_peak = text.split(":")
    return Mode(int(look_ahead), float(of_peak))


Run = Callable[[Plan, Disturbance, Mode], tuple[float, float]]
"""Returns the time of an iteration in ms, and the number of its early ops."""


def simulated(repeats: int) -> Run:
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


def emulated(steps: int) -> Run:
    """Iterations of real processes on emulated devices; the first two warm up."""

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


def main() -> None:
    """Run all disturbances in all modes."""
    parser = argparse.ArgumentParser(description=__doc__)
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
    asked = parser.parse_args()
    run = emulated(asked.repeats + 2) if asked.emulate else simulated(asked.repeats)
    rows = []
    for family in asked.families:
        plan = plan_of(family, asked.ranks, asked)
        for name in asked.disturbances:
            disturbance = DISTURBANCES[name]
            strict_ms, _ = run(plan, disturbance, STRICT)
            cells = []
            for mode in asked.modes:
                taken_ms, early = run(plan, disturbance, mode)
                cells.append(f"{taken_ms / strict_ms:.3f} ({early:.0f})")
            rows.append((family, name, f"{strict_ms:.0f}", *cells))
            print(*rows[-1], sep="  ", flush=True)
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    print(table(("schedule", "disturbance", "plan's order\nms", *map(str, asked.modes)), rows))


if __name__ == "__main__":
    main()
