"""The table of models that people train: the plan beside the published schedules that fit."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.page_tables.commands import Row, compared, rows_of, solved_beside_rivals
from benchmarks.page_tables.page_table import PageTable
from benchmarks.results_file import markdown_table


class Job(NamedTuple):
    """A model on a device under a tensor-parallel size, and its pipeline."""

    profile: str
    num_ranks: int
    num_micro_batches: int

    @property
    def pipeline(self) -> str:
        """Ranks × micro-batches."""
        return f"{self.num_ranks} × {self.num_micro_batches}"


_JOBS = (
    Job("llama3-8b-h100", 4, 16),
    Job("qwen3-32b-h100-tp4", 8, 32),
    Job("gemma3-27b-h100-tp4", 8, 32),
    Job("mixtral-8x22b-h100-tp2-ep8", 8, 32),
    Job("llama3-70b-a100-tp8", 8, 24),
    Job("llama3-70b-h100-tp8", 16, 32),
    Job("llama3-70b-b200-tp4", 4, 16),
    Job("llama3-405b-h100-tp8", 16, 64),
)
_RIVALS = (
    "--only 1f1b --only zb-h1 --only interleaved:2 --only interleaved:3 --only interleaved:4 "
    "--only gis:2,half --only gis:3,half --only gis:4,half --only gis:4,uniform --only v-half "
    "--only zb-v --only zb-v-limit --only dualpipe-v"
)
_SEVERAL_STAGES = "interleaved:"


def _compare(job: Job) -> str:
    return (
        f"synth compare {job.profile} --ranks {job.num_ranks} "
        f"--micro-batches {job.num_micro_batches} --no-solve --time-limit 60s {_RIVALS}"
    )


def _solve(job: Job) -> str:
    return (
        f"synth solve {job.profile} --ranks {job.num_ranks} "
        f"--micro-batches {job.num_micro_batches} --time-limit 60s"
    )


def _models() -> Iterator[Row]:
    for job in _JOBS:
        yield from compared(_compare(job), job.profile)
        yield from solved_beside_rivals(_solve(job), job.profile)


def _table(document: Mapping[str, Any]) -> str:
    heads = (
        "profile", "ranks × micro-batches", "1F1B", "interleaved 1F1B", "best published", "",
        "plan", "takes less by", "gap to the bound",
    )  # fmt: skip
    rows = rows_of(document)
    return markdown_table(
        heads, [_line(job, [r for r in rows if r.case == job.profile]) for job in _JOBS]
    )


def _line(job: Job, rows: list[Row]) -> list[str]:
    fitting = [row for row in rows if row.fits]
    plan = next(row for row in rows if row.gap is not None)
    best = min(fitting, key=lambda row: row.makespan_us)
    gap = 100 * (plan.gap or 0)
    return [
        f"`{job.profile}`",
        job.pipeline,
        _least([row for row in fitting if row.schedule.split(":")[0].split("+")[0] == "1f1b"]),
        _least([row for row in fitting if row.schedule.startswith(_SEVERAL_STAGES)]),
        _seconds(best),
        f"`{best.schedule}`",
        f"**{_seconds(plan)}**",
        f"{100 * (1 - plan.makespan_us / best.makespan_us):.1f} %",
        f"{gap:.1f} %",
    ]


def _least(rows: list[Row]) -> str:
    """Return the least time, with a mark if layers are recomputed."""
    if not rows:
        return "does not fit"
    best = min(rows, key=lambda row: row.makespan_us)
    is_rebuilt = best.recomputation is not None or "recompute" in best.schedule
    return f"{_seconds(best)}{' R' if is_rebuilt else ''}"


def _seconds(row: Row) -> str:
    return f"{row.makespan_us / 1e6:.3f} s"


TABLES = (
    PageTable(
        "models",
        "notes/compare.md",
        "estimated models under the capacity of their device less 10 %.",
        (_compare(_JOBS[0]), _solve(_JOBS[0])),
        _models,
        _table,
        has_search=True,
    ),
)
