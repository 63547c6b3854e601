"""Activations passed, weights passed or weights gathered: tokens per second by micro-batch size.

    python -m benchmarks.weight_passing [--hidden 4096] [--layers 32] [--ranks 16] [--svg FILE]
    python -m benchmarks.weight_passing --paper

The model is that of `weight_passing_model`, with full recomputation as in the WeiPipe paper (PPoPP
2025).

The first table grows the tokens of a micro-batch T. Two closed forms tell what limits weight
passing: it moves fewer bytes than activation passing if T > 18 ℓ H for ℓ layers per stage, and its
transfers hide behind compute if T ≥ R b / (2 · bandwidth), for R flop/s and b bytes per element.

`--paper` shows the paper's tables beside the simulation, as ratios to 1F1B in the same table, and
its memory. After them comes the table of the TawPipe paper (arXiv 2511.09741; three nodes), with
the bytes that leave a node.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.weight_passing_model import (
    BYTES,
    FLOPS_PER_S,
    MEMORY_BYTES,
    NETWORKS,
    Model,
    Outcome,
    network,
    simulate,
)
from benchmarks.weight_passing_papers import tawpipe_table, weipipe_tables
from synth.record import write_atomically
from synth.report.picture.picture import Picture
from synth.report.picture.scale import Scale
from synth.report.picture.svg import svg_text
from synth.report.text.tables import table

# The systems compared: two pass activations, two pass weights, one gathers weights.
_SYSTEMS = ("1f1b", "zb-h1", "weipipe", "weipipe:wzb2", "zero:1")


def sweep(
    hidden: int, num_layers: int, num_ranks: int, rounds: int
) -> Iterator[tuple[str, int, dict[str, Outcome]]]:
    """Yield network, tokens of a micro-batch, and the outcome of each system."""
    for name in NETWORKS:
        for power in range(10, 19):
            tokens = 2**power
            model = Model(hidden, num_layers, min(tokens, 4096), tokens)
            links = network(name)
            yield (
                name,
                tokens,
                {system: simulate(system, model, num_ranks, rounds, links) for system in _SYSTEMS},
            )


def picture(
    rows: Sequence[tuple[str, int, Mapping[str, Outcome]]], limits: Mapping[str, float]
) -> str:
    """Tokens per second against the tokens of a micro-batch, a panel for each network, as SVG."""
    svg = Picture(980, 330, _STYLES, "tokens per second against tokens of a micro-batch")
    highest = max(one.tokens_per_s for *_, found in rows for one in found.values())
    for panel, name in enumerate(NETWORKS):
        own = [(tokens, found) for of, tokens, found in rows if of == name]
        left = 60 + 310 * panel
        across = Scale.fitting(own[0][0], own[-1][0], left, left + 270)
        up = Scale(0, 1.05 * highest, 250, 40)
        for x in (own[0][0], 4096, 16384, 65536, own[-1][0]):
            svg.line([(across.at(x), up.start), (across.at(x), up.end)], "grid")
            svg.text((across.at(x), up.start + 18), f"{x // 1024}k", "tick", "middle")
        for y in up.ticks(5):
            svg.line([(across.start, up.at(y)), (across.end, up.at(y))], "grid")
            if not panel:
                svg.text((across.start - 8, up.at(y) + 4), f"{y:,.0f}", "tick", "end")
        if own[0][0] <= limits[name] <= own[-1][0]:
            at = across.at(limits[name])
            svg.line([(at, up.start), (at, up.end)], "limit")
        svg.text((left + 135, 28), name, "name", "middle")
        for place, system in enumerate(_SYSTEMS):
            line = [(across.at(t), up.at(found[system].tokens_per_s)) for t, found in own]
            svg.line(line, f"curve{place}")
    svg.text(
        (500, 292), "tokens of a micro-batch; dashed: from here on weights hide", "name", "middle"
    )
    svg.text((16, 150), "tokens per second and device", "name", "middle", -90)
    for place, system in enumerate(_SYSTEMS):
        svg.line([(130 + 160 * place, 314), (155 + 160 * place, 314)], f"curve{place}")
        svg.text((162 + 160 * place, 318), system, "tick")
    return svg_text(svg)


_COLOURS = ("#1f6fb4", "#7fb3dd", "#d1662b", "#8a3d10", "#3b8f5a")
_STYLES = {
    "grid": "fill:none;stroke:#e2e2e2",
    "limit": "fill:none;stroke:#888888;stroke-dasharray:5 4",
    "tick": "font-size:12px;fill:#444444",
    "name": "font-size:13px;fill:#222222",
} | {
    f"curve{place}": f"fill:none;stroke:{colour};stroke-width:2"
    for place, colour in enumerate(_COLOURS)
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=4, help="micro-batches per rank")
    parser.add_argument("--paper", action="store_true", help="the paper's tables, simulated")
    parser.add_argument("--svg", type=Path, help="write the picture here")
    asked = parser.parse_args()
    if asked.paper:
        weipipe_tables(asked.rounds)
        tawpipe_table(asked.rounds)
        return
    per_stage = asked.layers // asked.ranks
    limits = {name: FLOPS_PER_S * BYTES / (2 * each) for name, each in NETWORKS.items()}
    print(
        f"H = {asked.hidden}, {per_stage} layers per stage, {asked.ranks} devices, "
        f"{asked.rounds} micro-batches each; fewer bytes than 1F1B from "
        f"{18 * per_stage * asked.hidden / 1024:.0f}k tokens on"
    )
    rows = list(sweep(asked.hidden, asked.layers, asked.ranks, asked.rounds))
    for name in NETWORKS:
        cells = []
        for of, tokens, found in rows:
            if of == name:
                fitting = [one for one in found if found[one].peak_bytes <= MEMORY_BYTES]
                best = max(fitting, key=lambda system: found[system].tokens_per_s, default="none")
                speeds = [f"{one.tokens_per_s:,.0f}" for one in found.values()]
                peaks = [f"{one.peak_bytes / 1e9:.0f}" for one in found.values()]
                sent = [f"{one.sent_bytes / 1e9:,.0f}" for one in found.values()]
                cells.append([f"{tokens // 1024}k", *speeds, best, "/".join(peaks), "/".join(sent)])
        print(f"\n{name}: weights hide from {limits[name] / 1024:,.1f}k tokens on\n")
        print(
            table(
                ["T", *(f"{one}\ntok/s" for one in _SYSTEMS), "fastest", "peak GB", "sent GB"],
                cells,
            )
        )
    if asked.svg:
        write_atomically(asked.svg, picture(rows, limits))


if __name__ == "__main__":
    main()
