"""Runs `synth` commands, and reads their answers as rows."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from synth.errors import SynthError

_ROOT = Path(__file__).parents[2]


class Row(NamedTuple):
    """A schedule as `synth compare` or `synth solve` describes it; None: not part of the answer.

    Attributes:
        case: the command that it is from, if a table has several.
        schedule: the name of the schedule, of `solve` its status.
        partition: layers of each stage.
        micro_batch_us: time of a micro-batch while the pipeline is full.
        peak_bytes: the highest peak of a rank.
        delay: updates by which gradients are late, at most.
        versions: the most versions of its weights that a stage holds.
        predicted_us: time of a micro-batch by the cost model of a published planner.
        lower_bound_us: of the objective; without a flush, of `micro_batch_us`.
        gap: (value − bound) / value, between 0 and 1.
        search_s: the duration of the search.
        recomputation: the rule by which layers are recomputed.
    """

    case: str
    schedule: str
    partition: list[int]
    makespan_us: int
    period_us: int
    micro_batch_us: float | None
    peak_bytes: int
    delay: int | None = None
    versions: int | None = None
    predicted_us: float | None = None
    fits: bool | None = None
    lower_bound_us: float | None = None
    gap: float | None = None
    search_s: float | None = None
    recomputation: str | None = None


def run(command: str, folder: Path | None = None) -> str:
    """Run a command line that begins with `synth` in a folder, by the shell; return its output.

    Raises:
        SynthError: it failed.
    """
    assert command.startswith("synth ")
    ended = subprocess.run(
        f"{shlex.quote(sys.executable)} -m {command}",
        shell=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise SynthError(f"{command}\nended with {ended.returncode}:\n{ended.stderr}")
    return ended.stdout


def answer(command: str, folder: Path | None = None) -> dict[str, Any]:
    """Run a command line and return its answer as JSON.

    Raises:
        SynthError: it failed.
    """
    found: dict[str, Any] = json.loads(run(f"{command} --format json", folder))
    return found


def compared(command: str, case: str = "", folder: Path | None = None) -> Iterator[Row]:
    """Yield the rows of a `synth compare`, in its order."""
    for each in answer(command, folder)["schedules"]:
        prediction = each["prediction"]
        yield Row(
            case,
            each["name"],
            each["partition"],
            each["makespan_us"],
            each["period_us"],
            each["steady_us"],
            max(each["peak_bytes"]),
            delay=each["delay"],
            versions=each["versions"],
            predicted_us=None if prediction is None else prediction["time_us"],
            fits=each["fits"],
            lower_bound_us=each["lower_bound_us"],
            gap=each["gap"],
            recomputation=each["recomputation"],
        )


def solved(command: str, case: str = "", folder: Path | None = None) -> Row:
    """Return the row of a `synth solve`.

    Raises:
        SynthError: it found no schedule.
    """
    return _plan(answer(command, folder), case)


def solved_beside_rivals(command: str, case: str = "", folder: Path | None = None) -> Iterator[Row]:
    """Yield the row of a `synth solve`, and those of the published schedules that it judged.

    Raises:
        SynthError: it found no schedule.
    """
    found = answer(command, folder)
    yield _plan(found, case)
    for rival in found["rivals"]:
        yield Row(
            case,
            rival["name"],
            rival["partition"],
            rival["makespan_us"],
            rival["period_us"],
            None,
            max(rival["peak_bytes"]),
            fits=rival["fits"],
        )


def _plan(found: Mapping[str, Any], case: str) -> Row:
    """Return the row of the answer of a `synth solve`."""
    steady: Mapping[str, Any] | None = found.get("steady")
    judged = steady or found
    return Row(
        case,
        found["stopped_by"],
        found["partition"],
        found["makespan_us"],
        found["period_us"],
        None if steady is None else steady["micro_batch_us"],
        max(found["peak_bytes"]),
        lower_bound_us=judged["lower_bound_us"],
        gap=judged["gap"],
        search_s=found["seconds"],
    )


def rows_of(document: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a saved run."""
    return [Row(**row) for row in document["rows"]]


def by_schedule(document: Mapping[str, Any], case: str = "") -> dict[str, Row]:
    """Return the rows of one case by the name of the schedule."""
    return {row.schedule: row for row in rows_of(document) if row.case == case}
