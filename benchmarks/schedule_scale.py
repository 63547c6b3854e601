"""Cost of judging a schedule as it grows: lowering, simulation, memory and verification.

    python -m benchmarks.schedule_scale [--ranks 64] [--micro-batches 512] [--repeat 3] [--svg F]

One row per schedule, F, B and W split, two stages per rank in a V. Both tables end at the largest
schedule: one grows in ranks, one in micro-batches; `×` is the growth of `verify` from row to row.
`verify` is with memory limits, so it contains the three before it and all checks. Seconds are the
best of the repetitions. Each row runs in a process of its own: `built` is its memory with the
schedule made, `peak` the highest until it was verified once. The third table has small schedules,
of which a search judges thousands, in milliseconds.
"""

import argparse
import multiprocessing
import platform
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.line_plot import LinePlot
from synth.costs.costs import Costs, uniform_costs
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.records.safe_write import write_atomically
from synth.report.picture.scale import Scale
from synth.report.picture.svg import svg_text
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import simulate
from synth.schedule.verify import verify


class Row(NamedTuple):
    """The measurements of one schedule."""

    num_ranks: int
    num_micro_batches: int
    num_ops: int
    num_transfers: int
    lower_s: float
    simulate_s: float
    memory_s: float
    verify_s: float
    built_bytes: int
    peak_bytes: int


def v_schedule(num_ranks: int, num_micro_batches: int) -> Schedule:
    """A valid order in a V: each micro-batch six ops behind the one before it, on every rank."""
    where = placement("v", num_ranks)
    num_stages = where.num_stages
    programs = []
    for held in where.held:
        slots: list[tuple[int, OpKind, Op]] = []
        for stage, _ in held:
            back = 2 * num_stages - 1 - stage
            for j in range(num_micro_batches):
                slots.append((stage + 6 * j, OpKind.F, Op(OpKind.F, stage, j)))
                slots.append((back + 6 * j, OpKind.B, Op(OpKind.B, stage, j)))
                slots.append((back + 6 * j, OpKind.W, Op(OpKind.W, stage, j)))
        programs.append(tuple(op for *_, op in sorted(slots)))
    return Schedule(where, num_micro_batches, tuple(programs), "v")


def stage_costs(num_stages: int) -> Costs:
    """Equal stages, and some bytes of everything."""
    return uniform_costs(
        num_stages,
        forward_us=10,
        backward_input_us=11,
        backward_weight_us=9,
        links=Links(default=Link(latency_us=2)),
        saved_bytes=3,
        saved_w_bytes=2,
        output_bytes=1,
    )


def measure(num_ranks: int, num_micro_batches: int, repeat: int) -> Row:
    """Judge one schedule, step by step and as a whole."""
    schedule = v_schedule(num_ranks, num_micro_batches)
    costs = stage_costs(schedule.placement.num_stages)
    built_bytes = _peak_rss_bytes()
    lowered, _ = verify(schedule, costs, _unlimited(schedule))
    verified_bytes = _peak_rss_bytes()
    caps = peak_bytes(lowered)
    return Row(
        num_ranks,
        num_micro_batches,
        sum(map(len, schedule.programs)),
        len(lowered.transfer_table),
        _best_s(lambda: lower(schedule, costs), repeat),
        _best_s(lambda: simulate(lowered), repeat),
        _best_s(lambda: peak_bytes(lowered), repeat),
        _best_s(lambda: verify(schedule, costs, caps), repeat),
        built_bytes,
        verified_bytes,
    )


def _unlimited(schedule: Schedule) -> list[int]:
    """Caps that everything keeps."""
    return [2**60] * schedule.num_ranks


def _best_s(work: Callable[[], object], repeat: int) -> float:
    seconds = []
    for _ in range(repeat):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _peak_rss_bytes() -> int:
    """The highest memory of this process so far (Linux tells it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def alone(num_ranks: int, num_micro_batches: int, repeat: int) -> Row:
    """Measure in a fresh process."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=fresh) as pool:
        return pool.submit(measure, num_ranks, num_micro_batches, repeat).result()


def line(row: Row, before: Row | None, unit_s: float) -> str:
    """One row of the answer, times in the unit given."""
    times = (row.lower_s, row.simulate_s, row.memory_s, row.verify_s)
    cells = " ".join(f"{seconds / unit_s:>8.3f}" for seconds in times)
    growth = f"{row.verify_s / before.verify_s:>5.2f}" if before else f"{'':>5}"
    return (
        f"{row.num_ranks:>5} {row.num_micro_batches:>6} {row.num_ops:>8} {row.num_transfers:>9} "
        f"{cells} {growth} {row.built_bytes / 1e6:>8.0f} {row.peak_bytes / 1e6:>8.0f}"
    )


def table(
    title: str, sizes: Iterable[tuple[int, int]], repeat: int, unit_s: float = 1.0
) -> list[Row]:
    """Measure and print a table; its rows."""
    unit = "s" if unit_s == 1.0 else "ms"
    steps = " ".join(f"{f'{name} {unit}':>8}" for name in ("lower", "simul.", "memory", "verify"))
    head = f"{'ranks':>5} {'micro.':>6} {'ops':>8} {'transfers':>9} {steps} {'×':>5}"
    print(f"\n{title}\n{head} {'built MB':>8} {'peak MB':>8}")
    rows: list[Row] = []
    for num_ranks, num_micro_batches in sizes:
        row = alone(num_ranks, num_micro_batches, repeat)
        print(line(row, rows[-1] if rows else None, unit_s), flush=True)
        rows.append(row)
    return rows


def picture(curves: Mapping[str, Sequence[Row]]) -> str:
    """Seconds of `verify` against ops, both by equal factors, as SVG."""
    points = [(row.num_ops, row.verify_s) for rows in curves.values() for row in rows]
    across = Scale.fitting(min(x for x, _ in points), max(x for x, _ in points), 70, 460)
    up = Scale.fitting(min(y for _, y in points), max(y for _, y in points), 250, 40)
    plot = LinePlot((640, 310), across, up, COLOURS, "seconds to verify against ops")
    names = "ops (F, B, W; two stages per rank, V)", "seconds to verify"
    plot.draw_axes(names, lambda x: f"{x:,.0f}", lambda y: f"{y:g}")
    for name, rows in curves.items():
        tips = [f"{row.num_ranks} ranks, {row.num_micro_batches} micro-batches" for row in rows]
        plot.add(name, [(row.num_ops, row.verify_s) for row in rows], tips)
    return svg_text(plot.picture)


COLOURS = ("#1f6fb4", "#d1662b")


def halved(number: int, times: int) -> list[int]:
    """The number and its halves, ascending."""
    return [max(1, number >> k) for k in reversed(range(times))]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--micro-batches", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--svg", type=Path, help="draw the growth into this file")
    arguments = parser.parse_args()
    ranks, micro_batches, repeat = arguments.ranks, arguments.micro_batches, arguments.repeat
    print(f"{platform.machine()}, Python {platform.python_version()}, one core")
    by_ranks = table("by ranks", [(r, micro_batches) for r in halved(ranks, 4)], repeat)
    by_m = table("by micro-batches", [(ranks, m) for m in halved(micro_batches, 4)], repeat)
    if arguments.svg:
        write_atomically(
            arguments.svg, picture({"more ranks": by_ranks, "more micro-batches": by_m})
        )
    small = [(1, 2), (2, 8), (4, 32), (8, 128)]
    table("small schedules", small, 20 * repeat, unit_s=1e-3)


if __name__ == "__main__":
    main()
