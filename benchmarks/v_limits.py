"""V-shaped schedules against ZB-V's released greedy, in its own memory, and printed rates.

    python -m benchmarks.v_limits --json benchmarks/results/v-limits.json
    python -m benchmarks.v_limits --printed --json benchmarks/results/v-printed.json

The caps are the released greedy's exact peaks at 1, 1.25, 1.5 and 2 times 1F1B's activations, 2D of
a stage. Stages are equal, each with half of the times and bytes that the zero-bubble paper prints
for a stage of a rank, or whole layers as `synth solve` cuts them, which makes them uneven. Periods
are exact simulations in µs; seconds are of making zb-v-limit's schedule. `--printed` takes the
table for 16 ranks of arXiv 2405.15362 instead, in 1F1B's memory, with bubble rates. The exit code
is 1 if zb-v-limit is longer than the released greedy, or than with a smaller cap, or if it or zb-v
is above a printed rate.
"""

import csv
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results_file import (
    Run,
    SavedRow,
    markdown_table,
    parse_without_seeds,
    parser_of,
    report_rows,
)
from synth.costs.costs import Costs, uniform_costs
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import generate
from synth.families._lib.v_passes import averaged, costs_by_pass
from synth.families.zb_v_greedy import released
from synth.op_kinds import OpKind
from synth.plan.partition.balance import balance
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profiles import find, names
from synth.schedule.model import Buffering, Schedule
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify

FORMAT = "synth-v-limits-benchmark-1"

SHARES = (1, 1.25, 1.5, 2)
OTHERS = ("v-half", "zb-v", "zb-v-greedy", "zb-v-limit")
_NAME = re.compile(r"zb-(.+)-p(\d+)-m(\d+)")
PRINTED = Path(__file__).with_name("zb_v_p16.csv")


@dataclass(frozen=True)
class Case:
    """Stages on placement `v`."""

    name: str
    num_micro_batches: int
    costs: Costs

    @property
    def num_ranks(self) -> int:
        """Number of ranks, of two stages each."""
        return self.costs.num_stages // 2

    def released_peak_bytes(self, share: float) -> int:
        """The most that a rank holds in the released greedy's schedule at a share of 1F1B's."""
        pass_costs = averaged(costs_by_pass(self.costs, self.num_micro_batches))
        programs = tuple(
            tuple(program) for program in released(pass_costs, int(share * 2 * self.num_ranks))
        )
        where = placement("v", self.num_ranks)
        made = Schedule(where, self.num_micro_batches, programs, "released", Buffering(8, 8))
        return max(peak_bytes(verify(made, self.costs)[0]))

    def period_us(self, name: str, cap_bytes: int) -> int | None:
        """The period of a family's schedule; None: it has none that keeps the cap."""
        caps = [cap_bytes] * self.num_ranks
        numbers = (self.num_ranks, self.num_micro_batches)
        try:
            schedule = generate(name, *numbers, costs=self.costs, caps_bytes=caps)
            return verify(schedule, self.costs, caps)[1].period_us
        except SynthError:
            return None


@dataclass(frozen=True)
class Printed:
    """A row of the paper's table: the case in 1F1B's memory, and ZB-V's bubble rate."""

    case: Case
    rate: float

    def rate_of(self, name: str) -> float:
        """1 − work / period, where work is that of one rank."""
        period_us = self.case.period_us(name, 2 * self.case.num_ranks)
        assert period_us is not None, name
        times = self.case.costs.stages[0].duration_us
        work_us = (
            2
            * self.case.num_micro_batches
            * sum(times[kind] for kind in (OpKind.F, OpKind.B, OpKind.W))
        )
        return 1 - work_us / period_us


def printed() -> Iterator[Printed]:
    """The rows for 16 ranks; an activation counts one until its W."""
    with PRINTED.open() as file:
        lines = [line for line in file if not line.startswith("#")]
    for row in csv.DictReader(lines):
        costs = uniform_costs(
            2 * int(row["p"]),
            forward_us=int(row["F_us_chunk"]),
            backward_input_us=int(row["B_us_chunk"]),
            backward_weight_us=int(row["W_us_chunk"]),
            saved_bytes=1,
            saved_w_bytes=1,
            links=Links(default=Link(latency_us=int(row["comm_us"]))),
        )
        name = f"printed, {row['p']} ranks, {row['m']} micro-batches"
        yield Printed(Case(name, int(row["m"]), costs), float(row["zb_v"]))


def cases() -> Iterator[Case]:
    """The shipped profiles of up to 16 ranks, with equal stages and with whole layers."""
    for name in names():
        match = _NAME.fullmatch(name)
        if match and int(match[2]) <= 16:
            num_ranks, m = int(match[2]), int(match[3])
            profile = Profile.load(find(name))
            yield Case(f"{match[1]} {num_ranks},{m} equal", m, _halves(profile, num_ranks))
            sizes = balance(profile, placement("v", num_ranks))
            yield Case(f"{match[1]} {num_ranks},{m} layers", m, partition_costs(profile, sizes))


def _halves(profile: Profile, num_ranks: int) -> Costs:
    """Two equal stages for each of a rank's: half of its times and bytes."""
    whole = partition_costs(profile, balance(profile, placement("linear", num_ranks))).stages[1]
    times = whole.duration_us
    costs = uniform_costs(
        2 * num_ranks,
        forward_us=times[OpKind.F] // 2,
        backward_input_us=times[OpKind.B] // 2,
        backward_weight_us=times[OpKind.W] // 2,
        saved_bytes=whole.saved_bytes // 2,
        saved_w_bytes=whole.saved_w_bytes // 2,
        output_bytes=whole.output_bytes,
        links=profile.links,
    )
    static = whole.static_bytes // 2
    return costs.replace(stages=tuple(s.replace(static_bytes=static) for s in costs.stages))


class PeriodRow(NamedTuple):
    """The periods of a case within the memory limit, by family; None: it has no schedule."""

    case: str
    share: float
    cap_bytes: int
    period_us: dict[str, int | None]
    limit_s: float


class RateRow(NamedTuple):
    """The printed bubble rate of a case, and those of the families."""

    case: str
    printed: float
    rate: dict[str, float]


def main(given: Sequence[str] | None = None) -> int:
    """Print and save a row for each case, then the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--printed", action="store_true", help="the paper's table")
    parser.add_argument("--only", default="", help="rows that have this in their name")
    asked = parse_without_seeds(parser, given)
    about = "Bubble rates in 1F1B's memory." if asked.printed else "Periods in µs."
    measured = _rates(asked.only) if asked.printed else _periods(asked.only)
    request = Run("v-limits", about, 1, 0, None)
    rows = report_rows(measured, asked.json, FORMAT, request, table)
    rates = [row for row in rows if isinstance(row, RateRow)]
    shown = ("zb-v", "zb-v-limit")
    above = any(round(row.rate[name], 4) > row.printed for row in rates for name in shown)
    return int(above or _are_worse([row for row in rows if isinstance(row, PeriodRow)]))


def _periods(only: str) -> Iterator[PeriodRow]:
    for case, share in product(cases(), SHARES):
        if only in case.name:
            cap = case.released_peak_bytes(share)
            found: dict[str, int | None] = {}
            took_s = 0.0
            for name in OTHERS:
                began_s = time.process_time()
                found[name] = case.period_us(name, cap)
                took_s = time.process_time() - began_s
            yield PeriodRow(case.name, share, cap, found, took_s)


def _rates(only: str) -> Iterator[RateRow]:
    for row in printed():
        if only in row.case.name:
            rates = {name: row.rate_of(name) for name in OTHERS[1:]}
            yield RateRow(row.case.name, row.rate, rates)


def _are_worse(rows: Sequence[PeriodRow]) -> bool:
    """True if zb-v-limit is longer than the released greedy, or than with a smaller cap."""

    def is_longer(us: int | None, than_us: int | None) -> bool:
        return us is None or (than_us is not None and us > than_us)

    limit, greedy = "zb-v-limit", "zb-v-greedy"
    alone = any(is_longer(row.period_us[limit], row.period_us[greedy]) for row in rows)
    return alone or any(
        is_longer(more.period_us[limit], less.period_us[limit])
        for less, more in pairwise(rows)
        if less.case == more.case
    )


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown."""
    rows: list[SavedRow] = document["rows"]
    if all("rate" in row for row in rows):
        return markdown_table(
            ("problem", "printed", *OTHERS[1:]), (_rate_line(RateRow(**row)) for row in rows)
        )
    heads = ("problem", "limit, GB", *OTHERS, "shorter %", "s")
    return markdown_table(heads, (_period_line(PeriodRow(**row)) for row in rows))


def _rate_line(row: RateRow) -> Iterator[str]:
    yield from (row.case, f"{row.printed:.4f}")
    yield from (f"{row.rate[name]:.4f}" for name in OTHERS[1:])


def _period_line(row: PeriodRow) -> Iterator[str]:
    yield from (f"{row.case} {row.share:g}x", f"{row.cap_bytes / 1e9:.2f}")
    yield from (str(row.period_us[name] or "none") for name in OTHERS)
    greedy_us, limit_us = row.period_us["zb-v-greedy"], row.period_us["zb-v-limit"]
    yield f"{100 * (1 - limit_us / greedy_us):.2f}" if limit_us and greedy_us else "–"
    yield f"{row.limit_s:.1f}"


if __name__ == "__main__":
    sys.exit(main())
