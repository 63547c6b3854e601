"""The traces that ranks of a failed run leave, and the one message that is made of them.

Every start of the ranks has a folder of its own, `attempt-N`, in which each rank keeps its place
and, if it fails, writes a failure report.
"""

import json
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.errors import RunFailure, SynthError, TrainingDiverged
from synth.profile.mesh import Mesh
from synth.records.safe_write import write_atomically
from synth.schedule.lowering.lower import Instruction, Lowered

from ..execution.program.progress import last_place


def attempt_folder(folder: Path, attempt: int) -> Path:
    """Return the folder of one start of the ranks (0: the first), made if absent."""
    path = folder / f"attempt-{attempt}"
    path.mkdir(exist_ok=True)
    return path


def last_attempt(folder: Path) -> Path:
    """The folder of the last start."""
    attempts = sorted(folder.glob("attempt-*"), key=lambda path: int(path.name.split("-")[1]))
    return attempts[-1] if attempts else folder


def write_failure_report(folder: Path, rank: int, error: Exception, exit_code: int) -> None:
    """Write how this rank failed, for the launcher to read."""
    is_told = isinstance(error, SynthError)
    report = {
        "message": str(error) if is_told else f"{type(error).__name__}: {error}",
        "exit_code": exit_code,
        "hopeless": isinstance(error, TrainingDiverged)
        or (is_told and not isinstance(error, RunFailure)),
        "time": time.time(),
    }
    write_atomically(folder / f"failure-{rank}.json", json.dumps(report))


def failure_report_exists(folder: Path) -> bool:
    """True if a rank has already failed, so that later failures are its consequence."""
    return any(folder.glob("failure-*.json"))


def note_ended(folder: Path, rank: int, why: str) -> None:
    """Note that a rank is ended by its neighbours, and why."""
    (folder / f"ended-{rank}").write_text(why)


def hopeless(folder: Path, num_ranks: int) -> SynthError | None:
    """Return the error that a restart would meet again; None if a restart may help."""
    for report in _reports(folder, num_ranks).values():
        if report["hopeless"]:
            return _refusal(report)
    return None


def explain(folder: Path, lowered: Lowered, exit_codes: dict[int, int], mesh: Mesh) -> SynthError:
    """Make one message of the ranks' traces: the cause first, then its effects on the others.

    Args:
        lowered: the program of each pipeline.
        exit_codes: the exit codes of the processes that failed; empty before a restart.
        mesh: the processes that ran.
    """
    reports = _reports(folder, mesh.size)
    refusals = [w for w in reports.values() if w["exit_code"] not in (0, 1)]
    if refusals:
        return _refusal(refusals[0])
    timed_out = any("timed out" in report["message"].lower() for report in reports.values())
    places = places_of_all(folder, lowered, mesh)
    ended = {
        process: _ended_by(folder, process, -code, timed_out)
        for process, code in exit_codes.items()
        if code < 0 and code != -signal.SIGTERM and process not in reports
    }
    lines = [places[process].how(how) for process, how in ended.items()]
    for process, report in reports.items():
        lines.append(places[process].said(report))
    if not lines and exit_codes:
        lines = [f"ranks {sorted(exit_codes)} ended with exit codes {exit_codes}"]
    others = [process for process in range(mesh.size) if process not in {*reports, *ended}]
    # Before a restart it is unknown which rank was killed and which were ended for that.
    how = "was stopped" if exit_codes else "left no report: killed, or ended with the others,"
    lines += [places[process].how(how) for process in others]
    told = (line.replace("\n", "\n    ") for line in dict.fromkeys(lines))
    return RunFailure("the run ended early:\n  " + "\n  ".join(told))


@dataclass(frozen=True)
class LastSeen:
    """A process, and where it was last seen: `in step 12, at B2.5`."""

    name: str
    pipeline: int | None
    where: str

    def how(self, ended: str) -> str:
        """Say how the rank ended, and where."""
        return f"{self.name} {ended} {self.where}"

    def said(self, report: dict[str, Any]) -> str:
        """Return the rank's last message, with its name if the message lacks it."""
        message = report["message"]
        if report["hopeless"]:
            return str(message)
        if message.startswith("rank"):
            return str(message) if self.pipeline is None else f"pipeline {self.pipeline}: {message}"
        return f"{self.name} {self.where}: {message}"

    def __str__(self) -> str:
        """Return the name and the place."""
        return f"{self.name} {self.where}"


def places_of_all(folder: Path, lowered: Lowered, mesh: Mesh) -> list[LastSeen]:
    """The last seen places of all processes, in their order."""
    return [
        LastSeen(
            mesh.name(process),
            place.pipeline if mesh.data > 1 else None,
            _where(last_place(folder, process), lowered.programs[place.rank]),
        )
        for process, place in enumerate(map(mesh.place, range(mesh.size)))
    ]


def _where(place: tuple[int, int] | None, program: Sequence[Instruction]) -> str:
    if place is None or place[0] < 0:
        return "before its first step"
    step, instruction = place
    if instruction < 0:
        return f"between steps {step - 1} and {step}"
    return f"in step {step}, at {program[instruction]}"


def _reports(folder: Path, num_ranks: int) -> dict[int, dict[str, Any]]:
    """Read the failure reports by rank, the first failure first: it causes others."""
    paths = {rank: folder / f"failure-{rank}.json" for rank in range(num_ranks)}
    found = {rank: json.loads(path.read_text()) for rank, path in paths.items() if path.exists()}
    return dict(sorted(found.items(), key=lambda item: item[1]["time"]))


def _refusal(report: dict[str, Any]) -> SynthError:
    refusal = SynthError(report["message"])
    refusal.exit_code = report["exit_code"]
    return refusal


def _ended_by(folder: Path, rank: int, signal_number: int, others_timed_out: bool) -> str:
    """Say how a process was ended; one that hangs until the others time out gets SIGKILL."""
    note = folder / f"ended-{rank}"
    if note.exists():
        return f"{note.read_text()} and was ended"
    if signal_number == signal.SIGKILL and others_timed_out:
        return "did not answer any more and was ended"
    return f"was killed by {signal.Signals(signal_number).name}"
