"""Gaps of searches with weight passing, by memory limit and network.

    python -m benchmarks.weight_search --seconds 10 --only ring
    python -m benchmarks.weight_search --json benchmarks/results/weight-search.json

The model and the devices are those of `weight_passing_model`, on 8 ranks with 32 micro-batches. The
memory limit is what a rank keeps, the activations of one micro-batch and of one more stage, the
working memory of an op, and one to four buffers: on a ring of the weights of both directions and of
the gradient, with all-gathers of weights and gradients. Beside the search stands the fastest
published schedule that fits, with any look-ahead from 0 to 3.
"""

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from benchmarks.results_file import Run, markdown_table, parse_request, parser_of, report_rows
from benchmarks.weight_passing_model import Model, costs_of, network
from synth.op_kinds import OpKind
from synth.schedule.placements import everywhere
from synth.schedule.rank_memory import kept_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.weight_passing.first_orders import published
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.search import WeightPassingSearch

FORMAT = "synth-weight-search-benchmark-1"

_RANKS, _ROUNDS, _LAYERS, _HIDDEN, _SEQUENCE = 8, 4, 32, 4096, 4096

# Networks with the tokens of a micro-batch at which about half of the transfers are hidden, and
# at which all are.
_SETTINGS = (("10 GbE", 32_768), ("10 GbE", 131_072), ("200 Gb/s", 8_192))


class Row(NamedTuple):
    """The result of a case with a seed; times in µs, `published_us` of the fastest that fits."""

    movement: str
    network: str
    tokens: int
    buffers: int
    seed: int
    cap_bytes: int
    published: str | None
    published_us: int | None
    value_us: int | None
    bound_us: int
    found_by: str
    stopped_by: str
    wall_s: float

    @property
    def case(self) -> tuple[str, str, int, int]:
        """The case without its seed."""
        return self.movement, self.network, self.tokens, self.buffers

    @property
    def gap(self) -> float:
        """(value − bound) / value; 1 without a schedule."""
        return 1.0 if self.value_us is None else 1 - self.bound_us / self.value_us


def weight_passing_problem(
    movement: WeightMovement,
    network_name: str,
    tokens: int,
    buffers: int,
    *,
    num_stages: int = _RANKS,
    rounds: int = _ROUNDS,
) -> WeightPassingProblem:
    """The problem of a case, on 8 ranks; fewer stages of the same size are a smaller model."""
    model = Model(_HIDDEN, _LAYERS // _RANKS * num_stages, _SEQUENCE, tokens)
    costs = costs_of(model, num_stages, network(network_name))
    where = everywhere(_RANKS, num_stages)
    count = _RANKS * rounds
    flow = WeightPassingProblem(Problem(costs, where, count), movement).flow()
    stage = costs.stages[0]
    weights = 2 if movement == WeightMovement.RING else 1
    each = weights * stage.parameter_bytes + stage.gradient_bytes
    kept = max(kept_bytes(costs, where, flow, rank) for rank in range(_RANKS))
    working = stage.rise_bytes[OpKind.BW] + 2 * stage.output_bytes
    cap = kept + (num_stages + 1) * stage.saved_bytes + working + buffers * each
    return WeightPassingProblem(Problem(costs, where, count, (cap,) * _RANKS), movement)


def run(case: tuple[WeightMovement, tuple[str, int], int], seconds: float, seed: int = 0) -> Row:
    """Search a case, and judge the published schedules."""
    movement, (name, tokens), buffers = case
    passing = weight_passing_problem(movement, name, tokens, buffers)
    found = WeightPassingSearch(
        passing, SolveOptions(time_limit_s=seconds, workers=1, seed=seed)
    ).run()
    best = min(_fitting(passing), default=None)
    caps = passing.problem.caps_bytes or (0,)
    return Row(
        str(movement), name, tokens, buffers, seed, caps[0],
        best and best[1], best and best[0], found.value_us, found.lower_bound_us,
        found.found_by or "", str(found.stopped_by), round(found.wall_s, 1),
    )  # fmt: skip


def _fitting(passing: WeightPassingProblem) -> Iterator[tuple[int, str]]:
    """The times and names of the published schedules that keep the limits."""
    problem = passing.problem
    for name, schedule in published(passing):
        try:
            yield verify(schedule, problem.costs, problem.caps_bytes)[1].makespan_us, name
        except ScheduleError:
            continue


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown, by the medians of the seeds."""
    rows = [Row(**row) for row in document["rows"]]
    heads = (
        "weights", "network, tokens", "buffers", "limit GB", "published", "s", "found s",
        "bound s", "gap %", "less time %",
    )  # fmt: skip
    cases = dict.fromkeys(row.case for row in rows)
    return markdown_table(heads, (_line([r for r in rows if r.case == case]) for case in cases))


def _line(rows: Sequence[Row]) -> list[str]:
    row = rows[0]
    values = [one.value_us for one in rows if one.value_us is not None]
    value_us = statistics.median(values) if values else None
    gap = 100 * statistics.median(one.gap for one in rows)
    less = (
        "" if value_us is None or row.published_us is None
        else f"{100 * (1 - value_us / row.published_us):.1f}"
    )  # fmt: skip
    return [
        row.movement,
        f"{row.network}, {row.tokens // 1024}k",
        str(row.buffers),
        f"{row.cap_bytes / 1e9:.1f}",
        row.published or "none fits",
        _seconds(row.published_us),
        _seconds(value_us),
        _seconds(row.bound_us),
        f"{gap:.1f}" if values else "",
        less,
    ]


def _seconds(us: float | None) -> str:
    return "" if us is None else f"{us / 1e6:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save a row for each case and seed, then the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", choices=[*map(str, WeightMovement)])
    given = parse_request(parser, arguments)
    movements = [one for one in WeightMovement if given.only in (None, str(one))]
    about = (
        f"8 ranks, 32 micro-batches, H = {_HIDDEN}, {_LAYERS} layers, memory limits of one to four "
        f"buffers, {given.seconds:g} s each."
    )
    asked = Run("weight-search", about, given.seeds, 1, given.seconds)
    cases = product(product(movements, _SETTINGS, range(1, 5)), range(given.seeds))
    rows = (run(case, given.seconds, seed) for case, seed in cases)
    report_rows(rows, given.json, FORMAT, asked, table, lambda row: [*row, f"{100 * row.gap:.2f}"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
