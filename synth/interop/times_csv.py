"""A CSV of layers that were measured elsewhere, for example with Megatron's timers.

A row per layer, or per `count` equal layers. The header names each column and its unit:

    name,       count, forward_ms, backward_ms, parameter_MB, saved_MB, output_MB
    embedding,  1,     0.4,        0.5,         206,          12,       12
    block,      24,    3.1,        6.0,         50,           180,      12
    head,       1,     2.9,        5.7,         206,          410,      0
"""

import csv
import math
import re
from typing import Any

from pydantic import ValidationError

from synth.errors import SynthError
from synth.profile.layer_times import LayerTimes
from synth.records.record import describe
from synth.units import shown

_TIMES = ("forward", "backward", "backward_input", "backward_weight", "step", "pair")
_SIZES = ("parameter", "gradient", "optimizer", "output", "saved", "saved_w")
_US = {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_BYTES = {
    "bytes": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMG", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMG", 1)},
}
_FLOPS = {"GFLOP": 10**9, "TFLOP": 10**12}
_COLUMN = re.compile(r"(\w+?)_([a-zA-Zµ]+)")
_KNOWN = (
    f"name; count; {', '.join(_TIMES)} with _us, _ms or _s; {', '.join(_SIZES)} with _bytes, _kB, "
    f"_MB, _GB, _KiB, _MiB or _GiB; forward_GFLOP or forward_TFLOP"
)


def from_times_csv(text: str, path: str = "the text") -> list[LayerTimes]:
    """Read the layers in their order.

    Raises:
        SynthError: a column is unknown or twice there, or name or forward is missing; a cell is no
            number; or a layer has no time of its backward.
    """
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)  # Excel begins with that mark
    try:
        rows = [row for row in csv.reader(lines, skipinitialspace=True) if any(map(str.strip, row))]
    except csv.Error as error:
        raise SynthError(f"{path} is no CSV: {error}; is a quote left open?") from None
    if len(rows) < 2:
        raise SynthError(f"{path} has no layers; needed: a row of column names, and one per layer")
    columns = [_column(cell.strip(), path) for cell in rows[0]]
    names = [name for name, _ in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SynthError(f"{path} has two columns for {twice}; give one")
    for needed in ("name", "forward_us"):
        if needed not in names:
            raise SynthError(f"{path} has no column {needed}; known columns: {_KNOWN}")
    return [_layer(row, columns, f"{path}, layer {n}") for n, row in enumerate(rows[1:], 1)]


def _column(title: str, path: str) -> tuple[str, float]:
    """Return the field of a column, and the factor to its unit."""
    if title in ("name", "count"):
        return title, 1
    match = _COLUMN.fullmatch(title)
    if match is not None:
        quantity, unit = match.groups()
        if quantity in _TIMES and unit in _US:
            return f"{quantity}_us", _US[unit]
        if quantity in _SIZES and unit in _BYTES:
            return f"{quantity}_bytes", _BYTES[unit]
        if quantity == "forward" and unit in _FLOPS:
            return "forward_flops", _FLOPS[unit]
    raise SynthError(f"{path} has a column {shown(title)}; known columns: {_KNOWN}")


def _layer(row: list[str], columns: list[tuple[str, float]], place: str) -> LayerTimes:
    if len(row) != len(columns):
        raise SynthError(f"{place} has {len(row)} cells, and there are {len(columns)} columns")
    fields: dict[str, Any] = {}
    for cell, (name, factor) in zip(row, columns, strict=True):
        if cell.strip():
            fields[name] = cell.strip() if name == "name" else _value(cell, name, factor, place)
    try:
        return LayerTimes(**fields)
    except ValidationError as error:
        said = describe(error).strip().removeprefix("(file): ")
        raise SynthError(f"{place}: {said}") from None


def _value(cell: str, name: str, factor: float, place: str) -> float | int:
    try:
        value = float(cell) * factor
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SynthError(f"{place}: {name} is {shown(cell.strip())}; needed: a number")
    if name.endswith(("_bytes", "_flops")):
        if value < 0:  # which rounding could hide
            raise SynthError(f"{place}: {name} is {shown(cell.strip())}; needed: 0 or more")
        return round(value)
    return int(value) if name == "count" and value.is_integer() else round(value, 6)
