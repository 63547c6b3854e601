"""Emulated devices on two networks: predicted against replayed iterations, with 8 and 16 ranks.

    python -m benchmarks.emulated_networks --json benchmarks/results/emulated-networks.json
    python -m benchmarks.emulated_networks --ranks 4 --systems 1f1b weipipe --times 0.2 --steps 4

Model, devices and links are those of `weight_passing_model`: a Llama-like model with full
recomputation, on 10 GbE and on NVLink. Beside 1F1B, which passes activations, there are schedules
with weight passing (WeiPipe-Interleave by a ring, ZeRO-3 by collectives) and schedules without a
flush (PipeDream, with vertical sync too, and 2BW). All of them are replayed with one process per
rank on emulated devices, whose ops and links take the times of the model. Sizes are divided, so
that processes of one machine can pass them on; transfers keep their times.

The predicted time is the makespan, with a global norm before STEP where the pipeline is flushed.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from benchmarks.emulation import plan_on, replay
from benchmarks.results_file import Run, markdown_table, parse_without_seeds, parser_of, report_rows
from benchmarks.weight_passing_model import Model, costs_of, network
from synth.families import generate
from synth.schedule.files.plan_file import Plan
from synth.schedule.files.scaled import scaled

FORMAT = "synth-emulated-networks-benchmark-1"

_HIDDEN, _LAYERS, _TOKENS = 1024, 32, 16_384
_NETWORKS = ("10 GbE", "NVLink")
_BASE = "1f1b"
_SYSTEMS = (_BASE, "weipipe", "zero3:1", "pipedream", "pipedream:vertical", "2bw")
# With 16 ranks up to 75 GB are sent in an iteration of 3.5 s; loopback has to pass on 20 MB/s.
_SIZES = 1e-3


class Row(NamedTuple):
    """One schedule, replayed; times in µs, those replayed over the iterations that count.

    `peaks_as_planned` tells that every rank's measured peak is the plan's to the byte, and `load`
    is the number of processes that wanted a processor when the run began.
    """

    ranks: int
    network: str
    system: str
    predicted_us: int
    replayed_us: int
    p10_us: int
    p90_us: int
    peaks_as_planned: bool
    load: float

    @property
    def excess(self) -> float:
        """The share by which the replay took longer."""
        return self.replayed_us / self.predicted_us - 1


def plan_of(system: str, num_ranks: int, network_name: str, rounds: int) -> Plan:
    """The plan of a schedule with `rounds` micro-batches for each rank."""
    model = Model(_HIDDEN, _LAYERS, _TOKENS, _TOKENS)
    costs = costs_of(model, num_ranks, network(network_name))
    schedule = generate(system, num_ranks, rounds * num_ranks, costs=costs)
    return plan_on(schedule, costs, f"H = {_HIDDEN}, {_LAYERS} layers, {network_name}")


def run(case: tuple[int, str, str], asked: Namespace) -> Row:
    """Replay a case: ranks, network and schedule."""
    num_ranks, name, system = case
    plan = plan_of(system, num_ranks, name, asked.rounds)
    load = os.getloadavg()[0]
    found = replay(scaled(plan, times=asked.times, sizes=asked.sizes), asked.steps)
    return Row(
        num_ranks, name, system,
        found.predicted_us, found.measured_us, found.measured_p10_us, found.measured_p90_us,
        found.measured_peak_bytes == found.predicted_peak_bytes, round(load, 1),
    )  # fmt: skip


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown."""
    rows = [Row(**row) for row in document["rows"]]
    bases = {(row.ranks, row.network): row for row in rows if row.system == _BASE}
    heads = (
        "ranks", "network", "schedule", "predicted ms", "replayed ms", "10–90 %", "excess %",
        "× 1F1B, predicted", "replayed", "peaks as planned",
    )  # fmt: skip
    return markdown_table(heads, (_line(row, bases.get((row.ranks, row.network))) for row in rows))


def _line(row: Row, base: Row | None) -> Iterator[str]:
    yield from (str(row.ranks), row.network, f"`{row.system}`")
    yield from (_ms(row.predicted_us), _ms(row.replayed_us))
    yield f"{_ms(row.p10_us)}–{_ms(row.p90_us)}"
    yield f"{100 * row.excess:.1f}"
    if base is None:
        yield from ("", "")
    else:
        yield f"{row.predicted_us / base.predicted_us:.2f}"
        yield f"{row.replayed_us / base.replayed_us:.2f}"
    yield "yes" if row.peaks_as_planned else "no"


def _ms(time_us: int) -> str:
    return f"{time_us / 1000:.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save a row for each case, then the table."""
    asked = _parse(arguments)
    about = (
        f"H = {_HIDDEN}, {_LAYERS} layers, {asked.rounds} micro-batches of {_TOKENS} tokens per "
        f"rank; times × {asked.times:g}, sizes × {asked.sizes:g}, {asked.steps - 2} iterations."
    )
    request = Run("emulated-networks", about, 1, 0, None)
    cases = product(asked.ranks, asked.networks, asked.systems)
    rows = (run(case, asked) for case in cases)
    report_rows(
        rows, asked.json, FORMAT, request, table, lambda row: [*row, f"{100 * row.excess:.1f} %"]
    )
    return 0


def _parse(arguments: Sequence[str] | None) -> Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--networks", nargs="+", choices=_NETWORKS, default=_NETWORKS)
    parser.add_argument("--systems", nargs="+", default=_SYSTEMS)
    parser.add_argument("--rounds", type=int, default=2, help="micro-batches per rank")
    parser.add_argument(
        "--steps", type=int, default=7, help="iterations; the first two do not count"
    )
    parser.add_argument("--times", type=float, default=1.0, help="factor for all times")
    parser.add_argument("--sizes", type=float, default=_SIZES, help="factor for all sizes")
    return parse_without_seeds(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
