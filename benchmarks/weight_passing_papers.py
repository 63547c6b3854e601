"""Published measurements of weight passing, beside the simulation of the same configurations.

Where the two differ, the difference is not in the schedule: nothing but the time of compute and of
transfers is simulated.
"""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.weight_passing_model import (
    LATENCY_US,
    MEMORY_BYTES,
    NETWORKS,
    Model,
    Outcome,
    simulate,
)
from synth.links import Link, Links, NodeLink
from synth.report.text.tables import table

# The systems of the WeiPipe paper (PPoPP 2025), in the order of its tables.
_SYSTEMS = {
    "1F1B": "1f1b",
    "ZB1": "zb-h1",
    "ZB2": "zb-h2",
    "FSDP": "zero:1",
    "WeiPipe": "weipipe",
}
_ZERO_BUBBLE = ("ZB1", "ZB2")


class Printed(NamedTuple):
    """A row of the paper: tokens per second and device, and GB, of each system; None: no memory.

    `sequences` are those of a micro-batch. ZB1 and ZB2 ran without recomputation, and with at most
    4 sequences; `zero_bubble_tokens` fit the printed memory.
    """

    hidden: int
    sequence: int
    sequences: int
    zero_bubble_tokens: int
    tokens_per_s: tuple[float | None, ...]
    peak_gb: tuple[float | None, ...] = ()


_TABLE_2 = (
    Printed(
        1024,
        4096,
        16,
        16384,
        (8581.7, 7547.0, 7638.5, 11525.9, 15138.8),
        (13.0, 20.4, 39.3, 8.6, 9.4),
    ),
    Printed(
        1024, 8192, 8, 8192, (7403.8, 6739.6, 6768.1, 9424.4, 12122.3), (9.9, 10.7, 20.5, 8.6, 9.4)
    ),
    Printed(
        1024, 16384, 4, 16384, (5641.2, 5651.6, 5651.9, 6973.6, 8188.3), (9.1, 21.6, 42.2, 8.6, 9.4)
    ),
    Printed(
        2048,
        4096,
        16,
        16384,
        (4163.2, 3823.3, None, 4104.8, 6499.7),
        (18.7, 44.3, None, 17.9, 19.9),
    ),
    Printed(
        2048, 8192, 8, 8192, (3791.3, 3517.8, None, 3706.8, 6033.2), (19.6, 22.3, None, 17.9, 19.9)
    ),
    Printed(
        2048,
        16384,
        4,
        16384,
        (3146.3, 3050.1, None, 3087.2, 4607.8),
        (22.9, 42.9, None, 17.9, 19.9),
    ),
    Printed(
        4096, 4096, 16, 16384, (1662.7, None, None, 1110.5, 2023.1), (40.5, None, None, 39.0, 44.5)
    ),
    Printed(
        4096, 8192, 8, 8192, (1556.2, None, None, 1063.2, 2059.4), (41.6, None, None, 39.0, 44.5)
    ),
    Printed(
        4096, 16384, 4, 16384, (1331.6, None, None, 944.2, 1684.9), (45.1, None, None, 39.0, 44.5)
    ),
)
_TABLE_3 = (
    Printed(1024, 4096, 16, 16384, (8193, 7708, 7952, 11545, 13847)),
    Printed(1024, 16384, 4, 16384, (5394, 4583, 4630, 6764, 7551)),
    Printed(2048, 4096, 16, 16384, (4030, 3701, None, 4205, 5587)),
    Printed(2048, 16384, 4, 16384, (2907, 2638, None, 3150, 4151)),
    Printed(4096, 4096, 16, 16384, (1530, None, None, 1186, 1402)),
    Printed(4096, 16384, 4, 16384, (1232, None, None, 966, 1505)),
)
_TABLE_4 = (
    Printed(1024, 4096, 16, 16384, (32.0e3, 45.8e3, 46.5e3, 37.9e3, 31.3e3)),
    Printed(1024, 16384, 4, 16384, (15.9e3, 22.0e3, 22.1e3, 17.8e3, 16.9e3)),
    Printed(2048, 4096, 16, 16384, (15.0e3, 22.4e3, None, 17.0e3, 14.2e3)),
    Printed(2048, 16384, 4, 16384, (9.4e3, 12.8e3, None, 10.1e3, 9.7e3)),
    Printed(4096, 4096, 16, 16384, (5.2e3, None, None, 6.0e3, 4.9e3)),
    Printed(4096, 16384, 4, 16384, (3.7e3, None, None, 3.8e3, 3.6e3)),
)


def weipipe_tables(rounds: int) -> None:
    """Print tables 2 to 4 of the WeiPipe paper beside the simulation."""
    within = Link(latency_us=LATENCY_US, bandwidth_bytes_per_s=NETWORKS["NVLink"])
    between = NodeLink(
        ranks_per_node=8, latency_us=LATENCY_US, bandwidth_bytes_per_s=NETWORKS["10 GbE"]
    )
    fast, slow = Links(default=within), Links(default=within, nodes=(between,))
    for title, rows, num_ranks, links in (
        ("table 2: 16 devices, NVLink", _TABLE_2, 16, fast),
        ("table 3: 16 devices, 10 GbE between two nodes", _TABLE_3, 16, slow),
        ("table 4: 8 devices, NVLink", _TABLE_4, 8, fast),
    ):
        made = [simulated(row, num_ranks, rounds, links) for row in rows]
        print(f"\n{title}; tokens per second as a multiple of 1F1B's, printed / simulated\n")
        print(speeds(rows, made))
        if rows[0].peak_gb:
            print(f"\n{title}; peak GB, printed / simulated\n")
            print(_peaks(rows, made))


def simulated(row: Printed, num_ranks: int, rounds: int, links: Links) -> list[Outcome]:
    """The outcome of each system; all train on as many tokens in an iteration."""
    whole = Model(row.hidden, 2 * num_ranks, row.sequence, row.sequence * row.sequences)
    part = whole._replace(tokens=row.zero_bubble_tokens, recomputes=False)
    more = rounds * whole.tokens // part.tokens
    return [
        simulate(system, part, num_ranks, more, links)
        if name in _ZERO_BUBBLE
        else simulate(system, whole, num_ranks, rounds, links)
        for name, system in _SYSTEMS.items()
    ]


def speeds(rows: Sequence[Printed], made: Sequence[Sequence[Outcome]]) -> str:
    """A table of tokens per second as multiples of 1F1B's, printed and simulated."""
    cells = []
    for row, (first, *others) in zip(rows, made, strict=True):
        base, *printed = row.tokens_per_s
        assert base is not None
        pairs = [
            (speed and speed / base, _fitting(one, one.tokens_per_s / first.tokens_per_s))
            for speed, one in zip(printed, others, strict=True)
        ]
        cells.append([str(row.hidden), str(row.sequence), *(_pair(*pair, 2) for pair in pairs)])
    return table(["H", "S", *list(_SYSTEMS)[1:]], cells)


def _peaks(rows: Sequence[Printed], made: Sequence[Sequence[Outcome]]) -> str:
    cells = []
    for row, outcomes in zip(rows, made, strict=True):
        pairs = zip(row.peak_gb, (one.peak_bytes / 1e9 for one in outcomes), strict=True)
        cells.append([str(row.hidden), str(row.sequence), *(_pair(*pair, 1) for pair in pairs)])
    return table(["H", "S", *_SYSTEMS], cells)


def _fitting(outcome: Outcome, figure: float) -> float | None:
    return figure if outcome.peak_bytes <= MEMORY_BYTES else None


def _pair(printed: float | None, simulated: float | None, digits: int) -> str:
    """A printed and a simulated figure; None: out of memory."""
    figures = (printed, simulated)
    return " / ".join("OOM" if one is None else f"{one:.{digits}f}" for one in figures)


# Tokens per second and device on 24 devices in three nodes, 48 layers: H, S, 1F1B, FSDP, WeiPipe,
# TawPipe. The sizes of micro-batches are not printed.
_TAWPIPE = (
    (1024, 4096, 7212, 10559, 12055, 13629),
    (1024, 8192, 6636, 8826, 10663, 11738),
    (1024, 16384, 5594, 6751, 8412, 8914),
    (4096, 16384, 1114.2, 956.1, 1232.4, 1377.6),
)
_TAWPIPE_TOKENS = 65_536


def tawpipe_table(rounds: int) -> None:
    """Print the TawPipe paper's table beside the simulation."""
    between = NodeLink(
        ranks_per_node=8, latency_us=LATENCY_US, bandwidth_bytes_per_s=NETWORKS["10 GbE"]
    )
    links = Links(
        default=Link(latency_us=LATENCY_US, bandwidth_bytes_per_s=NETWORKS["NVLink"]),
        nodes=(between,),
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
