"""Accuracy of emulated devices: measured against simulated iterations, and the sources of the rest.

Equal stages, ops of 20 ms (W 15), one real process per rank on this machine's processors, transfers
of the given size. Prints for every schedule the measured iteration against the simulated one.

    python -m benchmarks.emulation --ranks 8 16 --json benchmarks/results/emulation.json
"""

import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results_file import Run, markdown_table, parse_without_seeds, parser_of, report_rows
from synth.cli.work.run import trace_of
from synth.costs.costs import Costs, uniform_costs
from synth.families import generate
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profiles import find
from synth.report.explain.run_against_plan import MeasuredRun, RunComparison, compare
from synth.schedule.files.claim import Claim
from synth.schedule.files.plan_file import Plan
from synth.schedule.files.program_text import program_text
from synth.schedule.files.weight_records import Versions, Weights
from synth.schedule.measured.trace_file import Source
from synth.schedule.model import Schedule

FORMAT = "synth-emulation-benchmark-1"


class Row(NamedTuple):
    """One schedule, replayed; times in µs, medians over the iterations that count.

    The parts of the difference are those of `RunComparison`. `peaks_as_planned` tells that every
    rank's measured peak is the plan's to the byte, and `load` is the number of processes that
    wanted a processor when the run began.
    """

    ranks: int
    schedule: str
    simulated_us: float
    measured_us: float
    ops_us: float
    transfers_us: float
    gaps_us: float
    norm_us: float
    jitter_us: float
    outside_us: float
    slack_us: float
    peaks_as_planned: bool
    load: float


def run(name: str, num_ranks: int, asked: Namespace) -> Row:
    """Replay a schedule."""
    load = os.getloadavg()[0]
    found = replay(plan_of(name, num_ranks, asked), asked.steps)
    parts = found.difference
    assert parts is not None
    return Row(
        num_ranks, name, parts.predicted_us, parts.measured_us, parts.ops_us, parts.transfers_us,
        parts.gaps_us, parts.norm_us, parts.jitter_us, parts.outside_us, -parts.room_us,
        found.measured_peak_bytes == found.predicted_peak_bytes, round(load, 1),
    )  # fmt: skip


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown."""
    heads = (
        "ranks", "schedule", "simulated ms", "measured ms", "excess %", "ops ms", "transfers ms",
        "gaps ms", "norm ms", "jitter ms", "outside ms", "slack ms", "peaks as planned",
    )  # fmt: skip
    return markdown_table(heads, (_line(Row(**row)) for row in document["rows"]))


def _line(row: Row) -> list[str]:
    parts_us = (
        row.ops_us, row.transfers_us, row.gaps_us, row.norm_us, row.jitter_us, row.outside_us,
        row.slack_us,
    )  # fmt: skip
    return [
        str(row.ranks),
        f"`{row.schedule}`",
        *_ms((row.simulated_us, row.measured_us)),
        f"{(row.measured_us / row.simulated_us - 1) * 100:.1f}",
        *_ms(parts_us),
        "yes" if row.peaks_as_planned else "no",
    ]


def _ms(times_us: Sequence[float]) -> list[str]:
    return [f"{time_us / 1000:.1f}" for time_us in times_us]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save a row for each schedule, one after another, then the table."""
    asked = _parse(arguments)
    count = asked.micro_batches
    micro_batches = f"{count} micro-batches" if count else "two micro-batches per rank"
    about = (
        f"Ops of {asked.op_ms:g} ms, boundary tensors of {asked.boundary_bytes} bytes, "
        f"{micro_batches}, {asked.steps - 2} iterations."
    )
    request = Run("emulation", about, 1, 0, None)
    cases = product(asked.ranks, asked.families)
    rows = (run(name, num_ranks, asked) for num_ranks, name in cases)
    report_rows(rows, asked.json, FORMAT, request, table)
    return 0


def _parse(arguments: Sequence[str] | None) -> Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--families", nargs="+", default=["1f1b", "zb-h1", "zb-v", "chimera"])
    parser.add_argument("--micro-batches", type=int, help="default: two per rank")
    parser.add_argument("--op-ms", type=float, default=20.0)
    parser.add_argument("--boundary-bytes", type=int, default=262_144)
    parser.add_argument(
        "--steps", type=int, default=8, help="iterations; the first two do not count"
    )
    return parse_without_seeds(parser, arguments)


def plan_of(name: str, num_ranks: int, asked: Namespace) -> Plan:
    """A family on equal stages."""
    schedule = generate(name, num_ranks, asked.micro_batches or 2 * num_ranks)
    num_stages = schedule.placement.num_stages
    op_us = round(asked.op_ms * 1000)
    costs = uniform_costs(
        num_stages,
        forward_us=op_us,
        backward_input_us=op_us,
        backward_weight_us=op_us * 3 // 4,
        saved_bytes=2**20,
        saved_w_bytes=2**20,
        output_bytes=asked.boundary_bytes,
        gradient_bytes=2**20,
        parameter_bytes=2**20,
        static_bytes=2**22,
        links=Links(default=Link(latency_us=300.0, bandwidth_bytes_per_s=1e9)),
    )
    return plan_on(schedule, costs, f"equal stages of {asked.op_ms} ms")


def plan_on(schedule: Schedule, costs: Costs, about: str) -> Plan:
    """A schedule on costs of no profile; what the plan file needs besides is borrowed from one."""
    profile, num_stages = Profile.load(find("zb-1.5b-p8-m24")), costs.num_stages
    return Plan(
        name=schedule.name,
        profile_name=about,
        profile_fingerprint="none",
        device="emulated",
        workload=profile.workload,
        partition=(1,) * num_stages,
        layers=tuple(f"layer {number}" for number in range(num_stages)),
        placement=schedule.placement.ranks,
        receive_ahead=schedule.buffering.receive_ahead,
        send_behind=schedule.buffering.send_behind,
        eager=schedule.eager,
        weights=Weights.of(schedule.weights),
        versions=Versions.of(schedule.versions),
        num_micro_batches=schedule.num_micro_batches,
        costs=costs,
        claim=Claim.of(schedule, costs),
        programs=tuple(map(program_text, schedule.programs)),
    )


def replay(plan: Plan, steps: int) -> RunComparison:
    """Replay a plan, one process per rank, for some iterations, of which two are warm-up."""
    # Here, because whoever makes tables of saved results needs no torch.
    from synth.run_options.emulation_options import EmulationOptions
    from synth.runtime.training.launch import launch

    lowered, _ = plan.check()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        results = launch(path, plan, lowered, EmulationOptions(steps=steps))
    trace = trace_of(plan, results, Source.EMULATED)
    executions = [step.execution() for step in trace.steps]
    step_us = [step.step_us for step in trace.steps]
    peaks = [result.peak_bytes for result in results]
    return compare(plan, lowered, MeasuredRun(step_us, executions, peaks, plan.num_ranks))


if __name__ == "__main__":
    sys.exit(main())
