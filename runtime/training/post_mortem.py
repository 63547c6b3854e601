"""What the ranks of a failed run left behind, and the one message that is made of it.

Every start of the ranks has a folder of its own, `attempt-N`, in which each rank keeps its place
and, if it fails, leaves word.
"""

import json
import signal
import time
from pathlib import Path
from typing import Any

from synth.errors import RunFailure, SynthError, TrainingDiverged
from synth.record import write_atomically
from synth.schedule.lower import Lowered

from ..execution.progress import last_place


def attempt_folder(folder: Path, attempt: int) -> Path:
    """Where the ranks of this start (0: the first) leave word."""
    path = folder / f"attempt-{attempt}"
    path.mkdir(exist_ok=True)
    return path


def last_attempt(folder: Path) -> Path:
    """The folder of the last start."""
    attempts = sorted(folder.glob("attempt-*"), key=lambda path: int(path.name.split("-")[1]))
    return attempts[-1] if attempts else folder


def leave_word(folder: Path, rank: int, error: Exception, exit_code: int) -> None:
    """Say how this rank failed, for the launcher to read."""
    is_told = isinstance(error, SynthError)
    word = {
        "message": str(error) if is_told else f"{type(error).__name__}: {error}",
        "exit_code": exit_code,
        "hopeless": isinstance(error, TrainingDiverged)
        or (is_told and not isinstance(error, RunFailure)),
        "time": time.time(),
    }
    write_atomically(folder / f"failure-{rank}.json", json.dumps(word))


def has_word(folder: Path) -> bool:
    """Whether a rank has failed already, of which what others meet is the consequence."""
    return any(folder.glob("failure-*.json"))


def note_ended(folder: Path, rank: int, why: str) -> None:
    """Say that a rank is ended by its neighbours, and why."""
    (folder / f"ended-{rank}").write_text(why)


def hopeless(folder: Path, num_ranks: int) -> SynthError | None:
    """Why the ranks of this attempt would fail again if they were started again, if they would."""
    for word in _words(folder, num_ranks).values():
        if word["hopeless"]:
            return _refusal(word)
    return None


def explain(folder: Path, lowered: Lowered, exit_codes: dict[int, int]) -> SynthError:
    """Make one message of what the ranks left behind: the cause first, then who met it where."""
    words = _words(folder, lowered.num_ranks)
    refusals = [w for w in words.values() if w["exit_code"] not in (0, 1)]
    if refusals:
        return _refusal(refusals[0])
    timed_out = any("timed out" in word["message"].lower() for word in words.values())
    ended = {
        rank: _ended_by(folder, rank, -code, timed_out)
        for rank, code in exit_codes.items()
        if code < 0 and code != -signal.SIGTERM and rank not in words
    }
    lines = [f"rank {rank} {how} {where(folder, lowered, rank)}" for rank, how in ended.items()]
    for rank, word in sorted(words.items(), key=lambda item: item[1]["time"]):
        message = word["message"]
        named = message.startswith("rank") or word["hopeless"]
        lines.append(message if named else f"rank {rank} {where(folder, lowered, rank)}: {message}")
    if not lines and exit_codes:
        lines = [f"ranks {sorted(exit_codes)} ended with exit codes {exit_codes}"]
    others = [rank for rank in range(lowered.num_ranks) if rank not in {*words, *ended}]
    # Before a restart nobody tells who was killed and who was only ended for that.
    how = "was stopped" if exit_codes else "left no word: killed, or ended with the others,"
    lines += [f"rank {rank} {how} {where(folder, lowered, rank)}" for rank in others]
    return RunFailure("the run ended early:\n  " + "\n  ".join(dict.fromkeys(lines)))


def where(folder: Path, lowered: Lowered, rank: int) -> str:
    """Where a rank was last seen: `in step 12, at B2.5`."""
    place = last_place(folder, rank)
    if place is None or place[0] < 0:
        return "before its first step"
    step, instruction = place
    if instruction < 0:
        return f"between steps {step - 1} and {step}"
    return f"in step {step}, at {lowered.programs[rank][instruction]}"


def _words(folder: Path, num_ranks: int) -> dict[int, dict[str, Any]]:
    """What ranks said when they failed."""
    paths = {rank: folder / f"failure-{rank}.json" for rank in range(num_ranks)}
    return {rank: json.loads(path.read_text()) for rank, path in paths.items() if path.exists()}


def _refusal(word: dict[str, Any]) -> SynthError:
    refusal = SynthError(word["message"])
    refusal.exit_code = word["exit_code"]
    return refusal


def _ended_by(folder: Path, rank: int, signal_number: int, others_timed_out: bool) -> str:
    """Who hangs until the others time out is in the end killed by the launcher itself."""
    note = folder / f"ended-{rank}"
    if note.exists():
        return f"{note.read_text()} and was ended"
    if signal_number == signal.SIGKILL and others_timed_out:
        return "did not answer any more and was ended"
    return f"was killed by {signal.Signals(signal_number).name}"
