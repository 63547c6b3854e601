"""The table of notes/compare.md: copies of stages on one node, or on two."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.page_tables.commands import Row, compared, rows_of
from benchmarks.page_tables.page_table import PageTable
from benchmarks.results_file import markdown_table
from synth.profile import Profile
from synth.profile.links import Link, Links, PairLink
from synth.profiles import find

_SCHEDULES = (
    "--no-solve --only bitpipe:1 --only bitpipe:1,late-sync --only chimera "
    "--only chimera:late-sync --only 1f1b"
)
_NEIGHBOURS = (
    "synth compare zb-1.5b-p8-m24 --ranks 8 --micro-batches 24 --mem-limit none --link 5us,200GB/s "
    f"--link 4:20us,12.5GB/s {_SCHEDULES}"
)
_COPIES = (
    f"synth compare copies-together.json --ranks 8 --micro-batches 24 --mem-limit none {_SCHEDULES}"
)
_HEADS = {
    "copies": "copies on one node: 0 1 6 7 and 2 3 4 5",
    "neighbours": "neighbours: 0 1 2 3 and 4 5 6 7",
}
_NODES = ((0, 1, 6, 7), (2, 3, 4, 5))
_WITHIN = Link(latency_us=5, bandwidth_bytes_per_s=200e9)
_BETWEEN = Link(latency_us=20, bandwidth_bytes_per_s=12.5e9)


def copies_together() -> Profile:
    """Return the shipped profile with the links of two nodes that hold both copies of a stage."""
    pairs = tuple(
        PairLink(source=source, target=target, **dict(_WITHIN))
        for node in _NODES
        for source in node
        for target in node
        if source != target
    )
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    return profile.replace(links=Links(default=_BETWEEN, pairs=pairs))


def _two_nodes() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copies_together().save(folder / "copies-together.json")
        yield from compared(_COPIES, "copies", folder)
    yield from compared(_NEIGHBOURS, "neighbours")


def _table(document: Mapping[str, Any]) -> str:
    rows = {(row.case, row.schedule): row for row in rows_of(document)}
    names = dict.fromkeys(name for case, name in rows if case == "copies")
    return markdown_table(
        ("", *_HEADS.values()),
        (
            [f"`{name}`", *(f"{rows[case, name].makespan_us / 1e3:.1f}" for case in _HEADS)]
            for name in names
        ),
    )


TABLES = (
    PageTable(
        "two-nodes",
        "notes/compare.md",
        "makespans in ms on two nodes of four ranks.",
        (_COPIES, _NEIGHBOURS),
        _two_nodes,
        _table,
        is_exact=True,
    ),
)
