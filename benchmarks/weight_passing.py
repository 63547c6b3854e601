r"""Activations passed, weights passed or weights gathered: tokens per second by micro-batch size.

    python -m benchmarks.weight_passing --svg notes/weight_passing.svg \
        --json benchmarks/results/weight-passing.json
    python -m benchmarks.weight_passing --paper --json benchmarks/results/weight-passing-papers.json

The model is that of `weight_passing_model`, with full recomputation as in the WeiPipe paper (PPoPP
2025).

Without `--paper` the tokens of a micro-batch T grow, and the table has the fastest system that
fits: of all published schedules that flush, keep their weights on the devices and have equal
stages, and of searched schedules where none of these is at the bound of compute. Two closed forms
tell what limits weight passing: it moves fewer bytes than activation passing if T > 18 ℓ H, and its
transfers hide behind compute from the tokens of `hidden_from_tokens` on.

`--paper` shows the paper's tables beside the simulation, as ratios to 1F1B in the same table, and
its memory. After them comes the table of the TawPipe paper (arXiv 2511.09741; three nodes), with
the bytes that leave a node.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import weight_passing_papers as papers
from benchmarks.results_file import (
    Run,
    all_tables,
    markdown_table,
    parse_without_seeds,
    parser_of,
    report_rows,
)
from benchmarks.weight_passing_model import (
    BYTES,
    FLOPS_PER_S,
    MEMORY_BYTES,
    NETWORKS,
    Model,
    Outcome,
    costs_of,
    network,
    outcome,
    simulate,
)
from synth.errors import SynthError
from synth.families import families, family_placement, variants_for
from synth.op_kinds import OpKind
from synth.profile.links import Links
from synth.records.safe_write import write_atomically
from synth.report.picture.picture import Picture
from synth.report.picture.scale import Scale
from synth.report.picture.svg import svg_text
from synth.schedule.placements import everywhere, placement
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.search import WeightPassingSearch

FORMAT = "synth-weight-passing-benchmark-1"

# The systems drawn: two pass activations, two pass weights, one gathers weights.
_SYSTEMS = ("1f1b", "zb-h1", "weipipe", "weipipe:wzb2", "zero3:1")

# Share of the bound of compute from which on nothing is searched.
_NEAR = 0.995

# Tokens of a sequence; shorter micro-batches are one sequence.
_SEQUENCE = 4096


class Row(NamedTuple):
    """A system on a network; tokens of a micro-batch, and speed per device."""

    network: str
    tokens: int
    system: str
    tokens_per_s: float
    peak_bytes: int
    sent_bytes: int


def sweep(
    hidden: int, num_layers: int, num_ranks: int, rounds: int, seconds: float
) -> Iterator[Row]:
    """Simulate each system on each network with micro-batches of 1k to 256k tokens.

    Args:
        hidden: H.
        num_layers: a multiple of the number of ranks.
        num_ranks: the number of devices.
        rounds: micro-batches per device.
        seconds: the time limit of each search; 0: nothing is searched.
    """
    systems = (*_SYSTEMS, *sorted(contenders(num_ranks, num_layers) - {*_SYSTEMS}))
    for name, power in product(NETWORKS, range(10, 19)):
        model, links = Model(hidden, num_layers, min(2**power, _SEQUENCE), 2**power), network(name)
        fastest = 0.0
        for system in systems:
            try:
                found = simulate(system, model, num_ranks, rounds, links, MEMORY_BYTES)
            except SynthError:
                continue  # not defined for these numbers
            if found.peak_bytes <= MEMORY_BYTES:
                fastest = max(fastest, found.tokens_per_s)
            yield _row(name, model, system, found)
        if fastest and seconds:
            most = compute_bound(model, num_ranks)
            if fastest < _NEAR * most:
                yield from _searched(name, model, num_ranks, rounds, seconds)


def contenders(num_ranks: int, num_layers: int) -> set[str]:
    """Return the published schedules that flush, of stages with equally many layers."""
    return {
        each
        for name in variants_for(num_ranks, num_layers)
        if num_layers % family_placement(name, num_ranks).num_stages == 0
        for each in _variants(name)
    }


def _variants(name: str) -> Iterator[str]:
    """Yield the name of a schedule that flushes, with each distance at which weights come."""
    base, colon, _ = name.partition(":")
    family = families()[base]
    if family.versions is None:
        yield name
        if any(option.name == "ahead" for option in family.options):
            yield from (f"{name}{',' if colon else ':'}ahead={ahead}" for ahead in (0, 2, 3))


def compute_bound(model: Model, num_ranks: int) -> float:
    """Return the tokens per second and device if nothing but compute takes time."""
    stages = costs_of(model, num_ranks, Links()).stages
    us = sum(stage.duration_us[OpKind.F] + stage.duration_us[OpKind.BW] for stage in stages)
    return model.tokens / us * 1e6


def _searched(
    name: str, model: Model, num_ranks: int, rounds: int, seconds: float
) -> Iterator[Row]:
    """Search the placements of pipelines, and the places of gathers, within the memory."""
    links, count = network(name), rounds * num_ranks
    caps = (MEMORY_BYTES,) * num_ranks
    options = SolveOptions(time_limit_s=seconds, workers=1)
    pipelines = ("linear", "looped:2", "v")
    for where in (*pipelines, "gather"):
        is_gather = where == "gather"
        placed = everywhere(num_ranks, num_ranks) if is_gather else placement(where, num_ranks)
        if model.num_layers % placed.num_stages:
            continue
        costs = costs_of(model, placed.num_stages, links)
        problem = Problem(costs, placed, count, caps)
        found = (
            WeightPassingSearch(WeightPassingProblem(problem, WeightMovement.GATHER), options).run()
            if is_gather
            else solve(problem, options)
        )
        if found.schedule is not None:
            made = outcome(found.schedule, costs, model, links)
            yield _row(name, model, f"searched {where}", made)


def _row(name: str, model: Model, system: str, found: Outcome) -> Row:
    return Row(name, model.tokens, system, found.tokens_per_s, found.peak_bytes, found.sent_bytes)


def table(document: Mapping[str, Any]) -> str:
    """A saved sweep in Markdown: the fastest system that fits, by tokens and network."""
    rows = [Row(**row) for row in document["rows"]]
    networks = list(dict.fromkeys(row.network for row in rows))
    lines = []
    for tokens in dict.fromkeys(row.tokens for row in rows):
        own = [row for row in rows if row.tokens == tokens and row.peak_bytes <= MEMORY_BYTES]
        fastest = (_fastest([row for row in own if row.network == name]) for name in networks)
        lines.append([f"{tokens // 1024}k", *fastest])
    return markdown_table(["tokens per micro-batch", *networks], lines)


def _fastest(rows: Sequence[Row]) -> str:
    best = max(rows, key=lambda row: row.tokens_per_s, default=None)
    return f"`{best.system}`, {best.tokens_per_s:,.0f}" if best else "none fits"


def _line(row: Row) -> Iterator[str]:
    """The columns of a printed row."""
    yield from (row.network, f"{row.tokens // 1024}k", row.system)
    yield f"{row.tokens_per_s:,.0f} tokens/s"
    yield f"peak {row.peak_bytes / 1e9:.0f} GB"
    yield f"sent {row.sent_bytes / 1e9:,.0f} GB"


def hidden_from_tokens(
    bandwidth_bytes_per_s: float, num_ranks: int, attention: float = 0.0
) -> dict[str, float]:
    """The tokens of a micro-batch from which on transfers take no longer than compute, by system.

    A stage of ℓ layers has 12 H² ℓ parameters, and a gradient of as many bytes each. Its F takes 24
    H² ℓ flop per token and those of attention, and BW with full recomputation three times as long.

        weipipe   in a turn a rank runs F of one stage and BW of another, and a link carries the
                  weights of both and one gradient: 4 F ≥ 3 stages' weights
        zero3:1   stages are gathered one ahead, so that the forwards need F ≥ an all-gather, for
                  which a link carries (P − 1) / P of a stage's weights; the backwards need less,
                  BW ≥ an all-gather and a reduce-scatter

    Args:
        bandwidth_bytes_per_s: of each link.
        num_ranks: P.
        attention: attention's flop as a share of the others, S / (12 H).
    """
    # The time of F for so many tokens is that of a stage's weights on a link.
    tokens = FLOPS_PER_S * BYTES / bandwidth_bytes_per_s / 2 / (1 + attention)
    return {"weipipe": 3 / 4 * tokens, "zero3:1": (num_ranks - 1) / num_ranks * tokens}


def picture(rows: Sequence[Row], limits: Mapping[str, Mapping[str, float]]) -> str:
    """Tokens per second against the tokens of a micro-batch, a panel for each network, as SVG.

    Args:
        rows: as of `sweep`.
        limits: by network the tokens from which on the transfers of some systems are hidden.
    """
    svg = Picture(980, 330, _STYLES, "tokens per second against tokens of a micro-batch")
    highest = max(row.tokens_per_s for row in rows)
    for panel, name in enumerate(NETWORKS):
        own = [row for row in rows if row.network == name]
        least, most = own[0].tokens, own[-1].tokens
        left = 60 + 310 * panel
        across = Scale.fitting(least, most, left, left + 270)
        up = Scale(0, 1.05 * highest, 250, 40)
        for x in (least, 4096, 16384, 65536, most):
            svg.line([(across.at(x), up.start), (across.at(x), up.end)], "grid")
            svg.text((across.at(x), up.start + 18), f"{x // 1024}k", "tick", "middle")
        for y in up.ticks(5):
            svg.line([(across.start, up.at(y)), (across.end, up.at(y))], "grid")
            if not panel:
                svg.text((across.start - 8, up.at(y) + 4), f"{y:,.0f}", "tick", "end")
        for system, tokens in limits[name].items():
            if least <= tokens <= most:
                at = across.at(tokens)
                svg.line([(at, up.start), (at, up.end)], f"limit{_SYSTEMS.index(system)}")
        svg.text((left + 135, 28), name, "name", "middle")
        for place, system in enumerate(_SYSTEMS):
            curve = [
                (across.at(row.tokens), up.at(row.tokens_per_s))
                for row in own
                if row.system == system
            ]
            svg.line(curve, f"curve{place}")
    svg.text(
        (500, 292),
        "tokens of a micro-batch (1k = 1024); dashed: from here on that system's transfers hide",
        "name",
        "middle",
    )
    svg.text((16, 150), "tokens per second and device", "name", "middle", -90)
    for place, system in enumerate(_SYSTEMS):
        svg.line([(130 + 160 * place, 314), (155 + 160 * place, 314)], f"curve{place}")
        svg.text((162 + 160 * place, 318), system, "tick")
    return svg_text(svg)


_COLOURS = ("#1f6fb4", "#7fb3dd", "#d1662b", "#8a3d10", "#3b8f5a")
_STYLES = {
    "grid": "fill:none;stroke:#e2e2e2",
    "tick": "font-size:12px;fill:#444444",
    "name": "font-size:13px;fill:#222222",
} | {
    f"{kind}{place}": f"fill:none;stroke:{colour};{line}"
    for place, colour in enumerate(_COLOURS)
    for kind, line in (("curve", "stroke-width:2"), ("limit", "stroke-dasharray:5 4"))
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save a row for each system, then the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=4, help="micro-batches per rank")
    parser.add_argument("--paper", action="store_true", help="the papers' tables, simulated")
    parser.add_argument("--seconds", type=float, default=20, help="of a search; 0: none")
    parser.add_argument("--svg", type=Path, help="write the picture here")
    asked = parse_without_seeds(parser, arguments)
    if asked.paper:
        _report_papers(asked)
    else:
        _report_sweep(asked)
    return 0


def _report_papers(asked: Namespace) -> None:
    about = f"printed / simulated, {asked.rounds} micro-batches per device; OOM: more than 80 GB."
    request = Run("weight-passing --paper", about, 1, 0, None)
    measured = papers.rows(asked.rounds)
    report_rows(measured, asked.json, papers.FORMAT, request, all_tables(papers.TABLES))


def _report_sweep(asked: Namespace) -> None:
    per_stage = asked.layers // asked.ranks
    attention = _SEQUENCE / (12 * asked.hidden)
    limits = {
        name: hidden_from_tokens(bandwidth, asked.ranks, attention)
        for name, bandwidth in NETWORKS.items()
    }
    crossing = 18 * per_stage * asked.hidden / 1024
    print(f"{per_stage} layers per stage; fewer bytes than 1F1B from {crossing:.0f}k tokens on")
    for name, of in limits.items():
        hidden = ", ".join(f"{system} from {one / 1024:,.1f}k" for system, one in of.items())
        print(f"{name}; transfers hide: {hidden} tokens on")
    about = (
        f"H = {asked.hidden}, {asked.layers} layers, {asked.ranks} devices of 80 GB, "
        f"{asked.rounds} micro-batches per device, {asked.seconds:g} s for a search; tokens per "
        f"second per device."
    )
    request = Run("weight-passing", about, 1, 0, None)
    measured = sweep(asked.hidden, asked.layers, asked.ranks, asked.rounds, asked.seconds)
    rows = report_rows(measured, asked.json, FORMAT, request, table, _line)
    if asked.svg:
        write_atomically(asked.svg, picture(rows, limits))


if __name__ == "__main__":
    sys.exit(main())
