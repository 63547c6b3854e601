"""Tables of plain text: aligned on the decimal point, units in the header."""

import re
from collections.abc import Iterable, Mapping, Sequence

from synth.costs.recomputation import FULL, NOT_RECOMPUTED, Recomputation, runs
from synth.schedule.lowering.lower import Lowered
from synth.schedule.rank_memory import static_bytes
from synth.schedule.simulate import Timeline

Row = Sequence[str]


def table(header: Row, rows: Sequence[Row]) -> str:
    """Lay out columns: numbers on their decimal points, text from the left, a rule under the head.

    A header may have more lines, such as the unit.
    """
    columns = [_aligned([row[i] for row in rows]) for i in range(len(header))]
    heads = [head.split("\n") for head in header]
    height = max(map(len, heads))
    widths = [
        max([len(line) for line in head] + [len(cell) for cell in cells])
        for head, cells in zip(heads, columns, strict=True)
    ]
    right = [all(map(_is_number, (row[i] for row in rows))) for i in range(len(header))]
    lines = [[(head + [""] * height)[level] for head in heads] for level in range(height)]
    lines.append(["─" * width for width in widths])
    lines += [list(cells) for cells in zip(*columns, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def fitted_table(header: Row, rows: Sequence[Row], width: int | None, spare: Sequence[str]) -> str:
    """Lay out as many columns as a window of a width has room for, and name those left out.

    Args:
        width: in characters; None: there is room for all.
        spare: the names of columns that can be left out, those first that are missed least; names
            that the header does not have are passed over.
    """
    left_out: list[int] = []
    text = table(header, rows)
    whole = _width(text)
    names = [_without_unit(head) for head in header]
    for name in spare:
        if width is None or _width(text) <= width:
            break
        if name not in names:
            continue
        left_out.append(names.index(name))
        kept = [place for place in range(len(header)) if place not in left_out]
        text = table([header[i] for i in kept], [[row[i] for i in kept] for row in rows])
    if not left_out:
        return text
    missing = ", ".join(names[place] for place in sorted(left_out))
    return f"{text}\n(in {whole} columns also: {missing})"


def _without_unit(head: str) -> str:
    """Return the name of a column; its unit, if any, is in a further line."""
    lines = head.strip().split("\n")
    return " ".join(lines[:-1] or lines)


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[-−+]?\d[\d,]*(\.\d+)?", cell) is not None


def _aligned(cells: Sequence[str]) -> list[str]:
    """Pad numbers on the right, so that right-aligned they meet at the decimal point."""
    decimals = [len(cell) - cell.find(".") if "." in cell else 0 for cell in cells]
    numbers = [_is_number(cell) for cell in cells]
    most = max((d for d, number in zip(decimals, numbers, strict=True) if number), default=0)
    return [
        cell + " " * (most - d) if number else cell
        for cell, d, number in zip(cells, decimals, numbers, strict=True)
    ]


def milliseconds(time_us: float) -> str:
    """Format a time in ms with all its microseconds: `1,457.018`."""
    return f"{time_us / 1000:,.3f}"


def facts(pairs: Mapping[str, str]) -> str:
    """Lay out names and texts, indented, one per line."""
    longest = max(map(len, pairs))
    return "\n".join(f"  {name:<{longest}}  {text}" for name, text in pairs.items())


def size_unit(largest_bytes: float) -> tuple[float, str]:
    """Return a suitable decimal unit for a column of sizes: its bytes and its name."""
    for factor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest_bytes >= factor:
            return factor, name
    return 1.0, "B"


def time_unit(longest_us: float) -> tuple[float, str]:
    """Return a suitable unit for times: its microseconds and its name."""
    for factor, name in ((1e6, "s"), (1e3, "ms")):
        if longest_us >= factor:
            return factor, name
    return 1.0, "µs"


def rank_table(
    lowered: Lowered,
    timeline: Timeline,
    layer_ranges: Sequence[range],
    caps_bytes: Sequence[int] | None,
    peaks_bytes: Sequence[int],
    recomputed_layers: Recomputation = NOT_RECOMPUTED,
) -> str:
    """Return a table with a row per rank: stages, layers, work, idle time and memory.

    Args:
        caps_bytes: memory limits; None: no columns of limit and headroom.
        peaks_bytes: as simulated, rank by rank.
        recomputed_layers: layers recomputed within B; if empty, there is no column for them.
    """
    factor, unit = size_unit(max(peaks_bytes))
    header = ["rank", "stage", "layers", "work\nms", "idle\nms", f"static\n{unit}"]
    header.append(f"peak\n{unit}")
    if caps_bytes is not None:
        header += [f"limit\n{unit}", f"headroom\n{unit}"]
    if recomputed_layers:
        header.append("recomputed\nlayers")
    rows = []
    for rank, peak in enumerate(peaks_bytes):
        held = lowered.schedule.placement.held[rank]
        work_us = timeline.work_us[rank]
        sizes = [static_bytes(lowered, rank), peak]
        if caps_bytes is not None:
            sizes += [caps_bytes[rank], caps_bytes[rank] - peak]
        rows.append(
            [
                str(rank),
                ", ".join(f"{stage}@{copy}" if copy else str(stage) for stage, copy in held),
                ", ".join(_places(layer_ranges[stage]) for stage, _ in held),
                milliseconds(work_us),
                milliseconds(timeline.makespan_us - work_us),
                *(f"{size / factor:,.3f}" if factor > 1 else f"{size:,.0f}" for size in sizes),
            ]
        )
        if recomputed_layers:
            own = {index for stage, _ in held for index in layer_ranges[stage]}
            rows[-1].append(recomputed_places(recomputed_layers.within(own)))
    return table(header, rows)


def places(layers: Iterable[int]) -> str:
    """Format layers as ranges: `4–7, 9`; empty for none."""
    return ", ".join(map(_places, runs(layers)))


def recomputed_places(layers: Recomputation) -> str:
    """Format recomputed layers: `4–7, 9`; those under a policy are followed by it: `4–7 (ops)`."""
    return ", ".join(
        places(at) if policy == FULL else f"{places(at)} ({policy})"
        for policy, at in layers.by_policy.items()
    )


def _places(layers: range) -> str:
    """Format a range: `4` or `4–7`."""
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"
