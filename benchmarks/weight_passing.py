"""Activations passed, weights passed or weights gathered: tokens per second by micro-batch size.

    python -m benchmarks.weight_passing [--hidden 4096] [--layers 32] [--ranks 16] [--svg FILE]
    python -m benchmarks.weight_passing --paper

A Llama-like model with full recomputation, as in the WeiPipe paper (PPoPP 2025): per layer 12 H²
parameters, 24 H² + 2 S H flop per token forward, and that again three times backward (once for the
forward that is repeated). All systems are simulated on the same costs and links, without any
overhead of kernels or frameworks. Where the printed measurements differ from this, the difference
is not in the schedule.

The first table grows the tokens of a micro-batch T. Two closed forms tell what limits weight
passing: it moves fewer bytes than activation passing if T > 18 ℓ H for ℓ layers per stage, and its
transfers hide behind compute if T ≥ R b / (2 · bandwidth), for R flop/s and b bytes per element.

`--paper` shows the paper's table 2 (one fast network) and table 3 (10 GbE between nodes) beside the
simulation, as ratios to 1F1B in the same table. After them comes the table of the TawPipe paper
(arXiv 2511.09741; three nodes), with the bytes that leave a node.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from synth.costs import Costs, StageCosts
from synth.families import generate
from synth.links import Link, Links, NodeLink
from synth.op_kinds import OpKind
from synth.record import write_atomically
from synth.report.picture.picture import Picture
from synth.report.picture.scale import Scale
from synth.report.picture.svg import svg_text
from synth.report.text.tables import table
from synth.schedule import peak_bytes, verify
from synth.schedule.lowering.lower import Lowered

# Achieved flop/s of a device (A100: 312e12 at most), its memory, and bytes per element sent.
_FLOPS_PER_S = 1e14
_MEMORY_BYTES = 80e9
_BYTES = 2

# Bytes of a parameter at its home besides the one that is computed with: a gradient in the same
# precision, float32 weights and two moments.
_GRADIENT_BYTES, _OPTIMIZER_BYTES = 2, 12

# Bytes per token and hidden unit that a layer's recomputed forward holds until its backward ends
# (Korthikanti et al. 2022, arXiv 2205.05198, without attention scores).
_WORKING_BYTES = 34

_LATENCY_US = 20
_NETWORKS = {"10 GbE": 1.25e9, "200 Gb/s": 25e9, "NVLink": 200e9}

# The systems compared: two pass activations, two pass weights, one gathers weights.
_SYSTEMS = ("1f1b", "zb-h1", "weipipe", "weipipe:wzb2", "zero:1")


class Model(NamedTuple):
    """The sizes of a model and of its micro-batches."""

    hidden: int
    num_layers: int
    sequence: int
    tokens: int


class Outcome(NamedTuple):
    """Tokens per second and device, peak memory, and bytes sent: over all links, between nodes."""

    tokens_per_s: float
    peak_bytes: int
    sent_bytes: int
    between_nodes_bytes: int


def costs_of(model: Model, num_stages: int, links: Links) -> Costs:
    """Equal stages of whole layers, which keep the input of each layer and run it again."""
    layers = model.num_layers // num_stages
    flop = (24 * model.hidden**2 + 2 * model.sequence * model.hidden) * model.tokens * layers
    forward_us = round(flop / _FLOPS_PER_S * 1e6)
    boundary = model.tokens * model.hidden * _BYTES
    working = model.tokens * model.hidden * _WORKING_BYTES
    parameters = 12 * model.hidden**2 * layers
    durations = {
        OpKind.F: forward_us,
        OpKind.B: 2 * forward_us,
        OpKind.W: forward_us,
        OpKind.BW: 3 * forward_us,
        OpKind.STEP: 0,
    }
    rises = dict.fromkeys(durations, working) | {OpKind.STEP: 0}
    # B leaves for W what the layers' weight gradients need: their inputs and output gradients.
    left = working * layers
    stages = tuple(
        StageCosts(
            duration_us=durations,
            static_bytes=parameters * (_BYTES + _GRADIENT_BYTES + _OPTIMIZER_BYTES),
            parameter_bytes=parameters * _BYTES,
            gradient_bytes=parameters * _GRADIENT_BYTES,
            output_bytes=boundary if stage < num_stages - 1 else 0,
            saved_bytes=boundary * layers,
            saved_w_bytes=left,
            rise_bytes=rises,
            input_until=OpKind.F,
        )
        for stage in range(num_stages)
    )
    return Costs(stages=stages, links=links)


def simulate(system: str, model: Model, num_ranks: int, rounds: int, links: Links) -> Outcome:
    """One iteration of `rounds` micro-batches per device."""
    count = rounds * num_ranks
    costs = costs_of(model, num_ranks, links)
    lowered, timeline = verify(generate(system, num_ranks, count, costs=costs), costs)
    tokens = model.tokens * count
    sent = int(lowered.transfer_table.num_bytes.sum())
    sent += sum(one.sent_bytes for one in lowered.collectives)
    seconds = timeline.makespan_us / 1e6
    slow = between_nodes(lowered, links.nodes[0].ranks_per_node) if links.nodes else 0
    return Outcome(tokens / seconds / num_ranks, max(peak_bytes(lowered)), sent, slow)


def between_nodes(lowered: Lowered, ranks_per_node: int) -> int:
    """The bytes that leave a node; in a ring collective each link carries as much."""
    table = lowered.transfer_table
    leaves = table.source // ranks_per_node != table.target // ranks_per_node
    sent = int(table.num_bytes[leaves].sum())
    for one in lowered.collectives:
        ring = zip(one.ranks, (*one.ranks[1:], one.ranks[0]), strict=True)
        slow = sum(a // ranks_per_node != b // ranks_per_node for a, b in ring)
        sent += slow * one.sent_bytes // len(one.ranks)
    return sent


def network(name: str) -> Links:
    """All ranks joined by one kind of link."""
    return Links(default=Link(latency_us=_LATENCY_US, bandwidth_bytes_per_s=_NETWORKS[name]))


def sweep(
    hidden: int, num_layers: int, num_ranks: int, rounds: int
) -> Iterator[tuple[str, int, dict[str, Outcome]]]:
    """Yield network, tokens of a micro-batch, and the outcome of each system."""
    for name in _NETWORKS:
        for power in range(10, 19):
            tokens = 2**power
            model = Model(hidden, num_layers, min(tokens, 4096), tokens)
            links = network(name)
            yield (
                name,
                tokens,
                {system: simulate(system, model, num_ranks, rounds, links) for system in _SYSTEMS},
            )


# Tokens per second and device: H, S, micro-batch size, 1F1B, FSDP, WeiPipe.
_TABLE_2 = (
    (1024, 4096, 16, 8581.7, 11525.9, 15138.8),
    (1024, 8192, 8, 7403.8, 9424.4, 12122.3),
    (1024, 16384, 4, 5641.2, 6973.6, 8188.3),
    (2048, 4096, 16, 4163.2, 4104.8, 6499.7),
    (2048, 8192, 8, 3791.3, 3706.8, 6033.2),
    (2048, 16384, 4, 3146.3, 3087.2, 4607.8),
    (4096, 4096, 16, 1662.7, 1110.5, 2023.1),
    (4096, 8192, 8, 1556.2, 1063.2, 2059.4),
    (4096, 16384, 4, 1331.6, 944.2, 1684.9),
)
_TABLE_3 = (
    (1024, 4096, 16, 8193, 11545, 13847),
    (1024, 16384, 4, 5394, 6764, 7551),
    (2048, 4096, 16, 4030, 4205, 5587),
    (2048, 16384, 4, 2907, 3150, 4151),
    (4096, 4096, 16, 1530, 1186, 1402),
    (4096, 16384, 4, 1232, 966, 1505),
)


# Tokens per second and device on 24 devices in three nodes, 48 layers: H, S, 1F1B, FSDP, WeiPipe,
# TawPipe. The sizes of micro-batches are not printed.
_TAWPIPE = (
    (1024, 4096, 7212, 10559, 12055, 13629),
    (1024, 8192, 6636, 8826, 10663, 11738),
    (1024, 16384, 5594, 6751, 8412, 8914),
    (4096, 16384, 1114.2, 956.1, 1232.4, 1377.6),
)
_TAWPIPE_TOKENS = 65_536


def three_nodes(rounds: int) -> None:
    """Print the TawPipe paper's table beside the simulation."""
    between = NodeLink(
        ranks_per_node=8, latency_us=_LATENCY_US, bandwidth_bytes_per_s=_NETWORKS["10 GbE"]
    )
    links = Links(
        default=Link(latency_us=_LATENCY_US, bandwidth_bytes_per_s=200e9), nodes=(between,)
    )
    systems = ("zero:1", "weipipe", "tawpipe:nodes=3")
    cells = []
    for hidden, sequence, one_f_one_b, *printed in _TAWPIPE:
        model = Model(hidden, 48, sequence, _TAWPIPE_TOKENS)
        base = simulate("1f1b", model, 24, rounds, links)
        made = [simulate(system, model, 24, rounds, links) for system in systems]
        ratios = [
            f"{figure:.2f}"
            for tokens_per_s, one in zip(printed, made, strict=True)
            for figure in (tokens_per_s / one_f_one_b, one.tokens_per_s / base.tokens_per_s)
        ]
        slow = "/".join(f"{one.between_nodes_bytes / 1e9:,.0f}" for one in (base, *made))
        peaks = "/".join(f"{one.peak_bytes / 1e9:.0f}" for one in (base, *made))
        cells.append([str(hidden), str(sequence), *ratios, slow, peaks])
    names = [
        f"{name}\n{kind}"
        for name in ("FSDP", "WeiPipe", "TawPipe")
        for kind in ("printed", "simulated")
    ]
    print("\nTawPipe's table: three nodes of 8; tokens per second as a multiple of 1F1B's\n")
    print(table(["H", "S", *names, "GB between\nnodes", "peak GB"], cells))


def paper(rounds: int) -> None:
    """Print both tables of the paper beside the simulation."""
    within = Link(latency_us=_LATENCY_US, bandwidth_bytes_per_s=200e9)
    between = NodeLink(
        ranks_per_node=8, latency_us=_LATENCY_US, bandwidth_bytes_per_s=_NETWORKS["10 GbE"]
    )
    for title, rows, links in (
        ("table 2: NVLink", _TABLE_2, Links(default=within)),
        ("table 3: 10 GbE between two nodes", _TABLE_3, Links(default=within, nodes=(between,))),
    ):
        cells = []
        for hidden, sequence, size, one_f_one_b, fsdp, weipipe in rows:
            model = Model(hidden, 32, sequence, sequence * size)
            made = {
                system: simulate(system, model, 16, rounds, links).tokens_per_s
                for system in ("1f1b", "zero:1", "weipipe")
            }
            cells.append(
                [
                    str(hidden),
                    str(sequence),
                    f"{fsdp / one_f_one_b:.2f}",
                    f"{made['zero:1'] / made['1f1b']:.2f}",
                    f"{weipipe / one_f_one_b:.2f}",
                    f"{made['weipipe'] / made['1f1b']:.2f}",
                ]
            )
        head = ["H", "S", "FSDP\nprinted", "FSDP\nsimulated", "WeiPipe\nprinted"]
        print(f"\n{title}; tokens per second as a multiple of 1F1B's\n")
        print(table([*head, "WeiPipe\nsimulated"], cells))


def picture(
    rows: Sequence[tuple[str, int, Mapping[str, Outcome]]], limits: Mapping[str, float]
) -> str:
    """Tokens per second against the tokens of a micro-batch, a panel for each network, as SVG."""
    svg = Picture(980, 330, _STYLES, "tokens per second against tokens of a micro-batch")
    highest = max(one.tokens_per_s for *_, found in rows for one in found.values())
    for panel, name in enumerate(_NETWORKS):
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
        paper(asked.rounds)
        three_nodes(asked.rounds)
        return
    per_stage = asked.layers // asked.ranks
    limits = {name: _FLOPS_PER_S * _BYTES / (2 * each) for name, each in _NETWORKS.items()}
    print(
        f"H = {asked.hidden}, {per_stage} layers per stage, {asked.ranks} devices, "
        f"{asked.rounds} micro-batches each; fewer bytes than 1F1B from "
        f"{18 * per_stage * asked.hidden / 1024:.0f}k tokens on"
    )
    rows = list(sweep(asked.hidden, asked.layers, asked.ranks, asked.rounds))
    for name in _NETWORKS:
        cells = []
        for of, tokens, found in rows:
            if of == name:
                fitting = [one for one in found if found[one].peak_bytes <= _MEMORY_BYTES]
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
