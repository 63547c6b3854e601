"""Published measurements of weight passing, beside the simulation of the same configurations.

Where the two differ, the difference is not in the schedule: nothing but the time of compute and of
transfers is simulated.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from benchmarks.results_file import Table, markdown_table
from benchmarks.weight_passing_model import (
    LATENCY_US,
    MEMORY_BYTES,
    NETWORKS,
    Model,
    Outcome,
    simulate,
)
from synth.profile.links import Link, Links, NodeLink

FORMAT = "synth-weight-passing-papers-benchmark-1"

# The systems of the WeiPipe paper (PPoPP 2025), in the order of its tables.
_SYSTEMS = {
    "1F1B": "1f1b",
    "ZB1": "zb-h1",
    "ZB2": "zb-h2",
    "FSDP": "zero3:1",
    "WeiPipe": "weipipe",
}
_ZERO_BUBBLE = ("ZB1", "ZB2")


class Row(NamedTuple):
    """A system in a line of a paper's table: printed, and simulated.

    Printed figures are None where the system ran out of memory; not all tables have peaks.
    """

    table: str
    hidden: int
    sequence: int
    system: str
    printed_tokens_per_s: float | None
    printed_peak_gb: float | None
    tokens_per_s: float
    peak_bytes: int
    between_nodes_bytes: int


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


# Tokens per second and device, and peaks in GB where printed, on 24 devices in three nodes, 48
# layers: H, S, and each system. The sizes of micro-batches are not printed.
_TAWPIPE_SYSTEMS = {
    "1F1B": "1f1b",
    "FSDP": "zero3:1",
    "WeiPipe": "weipipe",
    "TawPipe": "tawpipe:nodes=3",
}
_TAWPIPE = (
    (1024, 4096, (7212, 10559, 12055, 13629), (None,) * 4),
    (1024, 8192, (6636, 8826, 10663, 11738), (None,) * 4),
    (1024, 16384, (5594, 6751, 8412, 8914), (None,) * 4),
    (4096, 16384, (1114.2, 956.1, 1232.4, 1377.6), (62.3, 52.0, 57.8, 56.7)),
)
_TAWPIPE_TOKENS = 65_536

_FAST = Links(default=Link(latency_us=LATENCY_US, bandwidth_bytes_per_s=NETWORKS["NVLink"]))
_SLOW = NodeLink(ranks_per_node=8, latency_us=LATENCY_US, bandwidth_bytes_per_s=NETWORKS["10 GbE"])
# NVLink within nodes of 8 devices, and 10 GbE between them.
_NODES = _FAST.replace(nodes=(_SLOW,))


def rows(rounds: int) -> Iterator[Row]:
    """Simulate tables 2 to 4 of the WeiPipe paper and the table of the TawPipe paper."""
    for name, lines, num_ranks, links in (
        ("table-2", _TABLE_2, 16, _FAST),
        ("table-3", _TABLE_3, 16, _NODES),
        ("table-4", _TABLE_4, 8, _FAST),
    ):
        for printed in lines:
            yield from rows_of(name, printed, num_ranks, rounds, links)
    for hidden, sequence, tokens_per_s, peaks_gb in _TAWPIPE:
        model = Model(hidden, 48, sequence, _TAWPIPE_TOKENS)
        for system, speed, peak_gb in zip(_TAWPIPE_SYSTEMS, tokens_per_s, peaks_gb, strict=True):
            found = simulate(_TAWPIPE_SYSTEMS[system], model, 24, rounds, _NODES)
            yield _row("tawpipe", hidden, sequence, system, (speed, peak_gb), found)


def rows_of(
    name: str, printed: Printed, num_ranks: int, rounds: int, links: Links
) -> Iterator[Row]:
    """Simulate a line of a table; all systems train on as many tokens in an iteration."""
    whole = Model(
        printed.hidden, 2 * num_ranks, printed.sequence, printed.sequence * printed.sequences
    )
    part = whole._replace(tokens=printed.zero_bubble_tokens, recomputes=False)
    more = rounds * whole.tokens // part.tokens
    peaks_gb = printed.peak_gb or (None,) * len(_SYSTEMS)
    for system, speed, peak_gb in zip(_SYSTEMS, printed.tokens_per_s, peaks_gb, strict=True):
        model, count = (part, more) if system in _ZERO_BUBBLE else (whole, rounds)
        found = simulate(_SYSTEMS[system], model, num_ranks, count, links)
        yield _row(name, printed.hidden, printed.sequence, system, (speed, peak_gb), found)


def _row(
    name: str,
    hidden: int,
    sequence: int,
    system: str,
    printed: tuple[float | None, float | None],
    found: Outcome,
) -> Row:
    return Row(
        name, hidden, sequence, system, *printed, found.tokens_per_s, found.peak_bytes,
        found.between_nodes_bytes,
    )  # fmt: skip


def _speeds(document: Mapping[str, Any], name: str) -> str:
    """Tokens per second as multiples of 1F1B's, printed / simulated."""
    lines = _lines(document, name)
    systems = [row.system for row in lines[0][1:]]
    return markdown_table(["H", "S", *systems], map(_speed_cells, lines))


def _speed_cells(line: Sequence[Row]) -> list[str]:
    base, *others = line
    assert base.printed_tokens_per_s is not None
    cells = [str(base.hidden), str(base.sequence)]
    for row in others:
        speed, fits = row.printed_tokens_per_s, row.peak_bytes <= MEMORY_BYTES
        printed = None if speed is None else speed / base.printed_tokens_per_s
        cells.append(_pair(printed, row.tokens_per_s / base.tokens_per_s if fits else None, 2))
    return cells


def _peaks(document: Mapping[str, Any], name: str) -> str:
    """The highest peak of a device in GB, printed / simulated."""
    lines = _lines(document, name)
    cells = [
        [
            str(line[0].hidden),
            str(line[0].sequence),
            *(_pair(row.printed_peak_gb, row.peak_bytes / 1e9, 1) for row in line),
        ]
        for line in lines
    ]
    return markdown_table(["H", "S", *(row.system for row in lines[0])], cells)


def _nodes(document: Mapping[str, Any]) -> str:
    """Speeds, and of all systems the bytes that leave a node, and peaks."""
    lines = _lines(document, "tawpipe")
    names = [row.system for row in lines[0]]
    listed = ", ".join(names)
    heads = ["H", "S", *names[1:], f"GB between nodes: {listed}", f"peak GB: {listed}"]
    cells = [
        [
            *_speed_cells(line),
            " / ".join(f"{row.between_nodes_bytes / 1e9:,.0f}" for row in line),
            " / ".join(f"{row.peak_bytes / 1e9:.0f}" for row in line),
        ]
        for line in lines
    ]
    return markdown_table(heads, cells)


def _lines(document: Mapping[str, Any], name: str) -> list[list[Row]]:
    """The rows of a table, line by line."""
    found = [Row(**row) for row in document["rows"] if row["table"] == name]
    groups = groupby(found, lambda row: (row.hidden, row.sequence))
    return [list(group) for _, group in groups]


def _pair(printed: float | None, simulated: float | None, digits: int) -> str:
    """A printed and a simulated figure; None: out of memory."""
    figures = (printed, simulated)
    return " / ".join("OOM" if one is None else f"{one:.{digits}f}" for one in figures)


TABLES: dict[str, Table] = {
    "table-2": partial(_speeds, name="table-2"),
    "table-2-peaks": partial(_peaks, name="table-2"),
    "table-3": partial(_speeds, name="table-3"),
    "table-4": partial(_speeds, name="table-4"),
    "tawpipe": _nodes,
}
