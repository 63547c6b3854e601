"""The plans of docs/papers.md: what synth finds for BitPipe's models, and published schedules."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.page_tables.commands import Row, compared, rows_of, run
from benchmarks.page_tables.page_table import PageTable
from benchmarks.results_file import markdown_table

_MODELS = Path(__file__).parents[2] / "papers" / "models"
_ESTIMATES = tuple(
    f"synth estimate {model}.json --device a800 --seq-len {tokens} --micro-batch-size {sequences} "
    f"--software megatron-2021 --sharding none -o {model}-a800.json"
    for model, tokens, sequences in (("bert-64", 512, 4), ("gpt-96", 1024, 1))
)
_COMPARES = tuple(
    f"synth compare {model}-a800.json --ranks 8 --micro-batches 8 --mem-limit 80GB "
    "--recompute none --partition even --only 1f1b --only interleaved:2 --only chimera "
    "--only mixpipe --only bitpipe:1 --only zb-v --only zb-v-limit --placement v --time-limit 20s"
    for model in ("bert-64", "gpt-96")
)
_NAMES = {
    "1f1b": "DAPPLE (`1f1b`)", "interleaved:2": "1F1B-Int (`interleaved:2`)",
    "chimera": "Chimera (`chimera`)", "mixpipe": "MixPipe (`mixpipe`)",
    "bitpipe:1": "BitPipe (`bitpipe:1`)",
}  # fmt: skip


def _measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in _MODELS.glob("*.json"):
            shutil.copy(path, folder)
        for estimate, compare in zip(_ESTIMATES, _COMPARES, strict=True):
            run(estimate, folder)
            yield from compared(compare, compare.split()[2], folder)


def _table(document: Mapping[str, Any]) -> str:
    heads = (
        "model",
        "schedule",
        "makespan, ms",
        "time of BitPipe's",
        "peak, GB",
        "bound for its layers, ms",
    )
    rows = rows_of(document)
    base = {row.case: row.makespan_us for row in rows if row.schedule == "bitpipe:1"}
    return markdown_table(heads, (_cells(row, base[row.case]) for row in rows))


def _cells(row: Row, base_us: int) -> Iterator[str]:
    yield row.case.removesuffix("-a800.json")
    yield _NAMES.get(row.schedule, f"`{row.schedule}`")
    yield f"{row.makespan_us / 1e3:.1f}"
    yield f"{row.makespan_us / base_us:.2f}"
    yield f"{row.peak_bytes / 1e9:.1f}"
    yield "" if row.lower_bound_us is None else f"{row.lower_bound_us / 1e3:.1f}"


TABLES = (
    PageTable(
        "bitpipe-plan",
        "docs/papers.md",
        "8 A800 with NVLink, 8 micro-batches, 80 GB, sorted by the makespan.",
        (*_ESTIMATES, *_COMPARES),
        _measure,
        _table,
        has_search=True,
    ),
)
