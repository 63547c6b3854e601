"""The tables of notes/families.md: peaks with offloading, simulated and of real runs."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.page_tables.commands import Row, answer, compared, rows_of, run
from benchmarks.page_tables.page_table import PageTable
from benchmarks.results_file import markdown_table
from synth.errors import SynthError
from synth.profile import Profile
from synth.profile.links import Link
from synth.profiles import find

_HOST = (
    "synth compare host.json --ranks 16 --micro-batches 48 --mem-limit none --no-solve --only 1f1b "
    "--only interleaved:3 --only gis:3,half --only gis:3,uniform --only pipeoffload:1,full "
    "--only pipeoffload:3 --only pipeoffload:3,full --only pipeoffload:3,uniform "
    "--only pipeoffload:3,full,uniform"
)
_PAPER_NAMES = {"pipeoffload:3,uniform": "PO-H", "pipeoffload:3,full,uniform": "PO-F"}


def with_host_link() -> Profile:
    """Return a shipped profile with a link to the hosts' memory."""
    profile = Profile.load(find("zb-14.6b-p16-m48"))
    host = Link(latency_us=10, bandwidth_bytes_per_s=64e9)
    return profile.replace(links=profile.links.replace(host=host))


def _offloading() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        with_host_link().save(Path(name) / "host.json")
        yield from compared(_HOST, folder=Path(name))


def _offloading_table(document: Mapping[str, Any]) -> str:
    heads = ("schedule", "makespan, ms", "peak, GB")
    return markdown_table(heads, map(_offloading_line, rows_of(document)))


def _offloading_line(row: Row) -> list[str]:
    paper = _PAPER_NAMES.get(row.schedule)
    return [
        f"`{row.schedule}`" + (f" ({paper})" if paper else ""),
        f"{row.makespan_us / 1e3:.1f}",
        f"{row.peak_bytes / 1e9:.2f}",
    ]


class PeakRow(NamedTuple):
    """A run: by rank the planned and the measured peak, and the losses of its steps."""

    schedule: str
    planned_bytes: list[int]
    measured_bytes: list[int]
    losses: list[float]


_NAMES = ("1f1b", "bpipe", "interleaved:2", "pipeoffload:2", "pipeoffload:2,full")
_PROFILE = (
    "synth profile gpt-bytes --micro-batch-size 4 --seq-len 128 --ranks 4 --iters 8 --device cpu "
    "-o profile.json"
)
_SAVE = (
    "synth compare profile.json --ranks 4 --micro-batches 8 --no-solve --only 1f1b --only bpipe "
    "--only interleaved:2 --only pipeoffload:2 --only pipeoffload:2,full --save plans"
)
_DATA = "\"$(python3 -c 'import os; print(os.path.dirname(os.__file__))')\""
_RUN = f"synth run plans/1f1b.json --data {_DATA} --lr 5e-4 --steps 4 --device cpu"


def _peaks() -> Iterator[PeakRow]:
    losses = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(_PROFILE, folder)
        run(_SAVE, folder)
        for schedule in _NAMES:
            file = schedule.replace(":", "-").replace(",", "-")
            found = answer(_RUN.replace("1f1b.json", f"{file}.json"), folder)
            losses = losses or found["losses"]
            if found["losses"] != losses:
                raise SynthError(f"{schedule} has the losses {found['losses']}, not {losses}")
            compared = found["comparison"]
            planned, measured = compared["predicted_peak_bytes"], compared["measured_peak_bytes"]
            yield PeakRow(schedule, planned, measured, losses)


def _peaks_table(document: Mapping[str, Any]) -> str:
    heads = (
        "schedule", "rank with the largest peak", "planned", "measured", "rank 0: planned",
        "measured",
    )  # fmt: skip
    return markdown_table(heads, (_peaks_line(PeakRow(**row)) for row in document["rows"]))


def _peaks_line(row: PeakRow) -> list[str]:
    largest = max(range(len(row.planned_bytes)), key=row.planned_bytes.__getitem__)
    peaks = [
        peaks[rank] for rank in (largest, 0) for peaks in (row.planned_bytes, row.measured_bytes)
    ]
    return [f"`{row.schedule}`", str(largest), *(f"{peak / 1e6:.3f}" for peak in peaks)]


TABLES = (
    PageTable(
        "offloading",
        "notes/families.md",
        "simulated with a link of 64 GB/s to the hosts' memory.",
        (_HOST,),
        _offloading,
        _offloading_table,
        is_exact=True,
    ),
    PageTable(
        "measured-peaks",
        "notes/families.md",
        "peaks in MB, planned and measured; four processes, gloo.",
        (_PROFILE, _SAVE, _RUN),
        _peaks,
        _peaks_table,
    ),
)
