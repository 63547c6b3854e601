"""Accuracy of emulated devices: measured against simulated iterations, and the sources of the rest.

Equal stages, ops of 20 ms (W 15), one real process per rank on this machine's processors, transfers
of the given size. Prints for every schedule the measured iteration against the simulated one.

    python -m benchmarks.emulation --ranks 8 16 --op-ms 20
"""

import argparse
import os
import tempfile
from pathlib import Path

from synth.cli.answer.run import trace_of
from synth.costs import Costs, uniform_costs
from synth.families import generate
from synth.links import Link, Links
from synth.profile import Profile
from synth.profiles import find
from synth.report.explain.run_against_plan import RunComparison, compare
from synth.report.text.tables import table
from synth.schedule.files.claim import Claim
from synth.schedule.files.plan_file import Plan
from synth.schedule.files.program_text import program_text
from synth.schedule.files.weight_records import Versions, Weights
from synth.schedule.measured.trace_file import Source
from synth.schedule.model import Schedule


def main() -> None:
    """Run the schedules asked for, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--families", nargs="+", default=["1f1b", "zb-h1", "zb-v", "chimera"])
    parser.add_argument("--micro-batches", type=int, help="default: two per rank")
    parser.add_argument("--op-ms", type=float, default=20.0)
    parser.add_argument("--boundary-bytes", type=int, default=262_144)
    parser.add_argument("--steps", type=int, default=8)
    asked = parser.parse_args()
    rows = []
    for num_ranks in asked.ranks:
        for name in asked.families:
            found = replay(plan_of(name, num_ranks, asked), asked.steps)
            rows.append((str(num_ranks), name, *_cells(found)))
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    head = (
        "ranks",
        "schedule",
        "simulated\nms",
        "measured\nms",
        "over\n%",
        "ops\nms",
        "transfers\nms",
        "gaps\nms",
        "norm\nms",
        "jitter\nms",
        "outside\nms",
        "slack\nms",
    )
    print(table(head, rows))


def plan_of(name: str, num_ranks: int, asked: argparse.Namespace) -> Plan:
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
    from synth.emulation_options import EmulationOptions
    from synth.runtime.training.launch import launch

    lowered, _ = plan.check()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        results = launch(path, plan, lowered, EmulationOptions(steps=steps))
    trace = trace_of(plan, results, Source.EMULATED)
    executions = [step.execution() for step in trace.steps]
    step_us = [step.step_us for step in trace.steps]
    return compare(
        plan, lowered, step_us, executions, [r.peak_bytes for r in results], plan.num_ranks
    )


def _cells(found: RunComparison) -> list[str]:
    pieces = found.difference
    assert pieces is not None
    if found.measured_peak_bytes != found.predicted_peak_bytes:
        print(f"peaks: {found.measured_peak_bytes}, predicted {found.predicted_peak_bytes}")
    over = (pieces.measured_us / pieces.predicted_us - 1) * 100
    times = (pieces.predicted_us, pieces.measured_us)
    parts = (
        pieces.ops_us,
        pieces.transfers_us,
        pieces.gaps_us,
        pieces.norm_us,
        pieces.jitter_us,
        pieces.outside_us,
        -pieces.room_us,
    )
    return [*_ms(times), f"{over:.1f}", *_ms(parts)]


def _ms(times_us: tuple[float, ...]) -> list[str]:
    return [f"{time_us / 1000:.1f}" for time_us in times_us]


if __name__ == "__main__":
    main()
