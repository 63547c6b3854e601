"""A step of the GPU check: what it measures, how long it may take, and its process."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Enough of an error's end to find its cause.
_MOST_CHARACTERS = 2000


@dataclass(frozen=True)
class Where:
    """The device that is checked.

    Attributes:
        device: cuda, or cpu to try the check itself.
        small: sizes with which all steps take seconds.
    """

    device: str
    small: bool

    def pick(self, small: Any, large: Any) -> Any:
        """The one of two sizes that fits."""
        return small if self.small else large


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        name: of the step.
        seconds: after so many it is ended.
        run: measures, and returns what JSON can hold.
    """

    name: str
    seconds: int
    run: Callable[[Where], dict[str, Any]]


def run_apart(step: Step, where: Where, left_s: float) -> dict[str, Any]:
    """Run a step in a process of its own, so that no fault ends the others.

    Returns:
        `seconds` and `found`; or `failed` with the end of what the process said.
    """
    command = [
        sys.executable, "-m", "benchmarks.gpu", "--step", step.name, "--device", where.device,
        *(["--small"] if where.small else []),
    ]  # fmt: skip
    began = time.monotonic()
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=min(step.seconds, max(left_s, 1))
        )
    except subprocess.TimeoutExpired as error:
        said = error.stderr or b""
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        return _failed(began, f"ended after {error.timeout:.0f} s: {text}")
    if ended.returncode:
        return _failed(began, f"exit {ended.returncode}: {ended.stdout}{ended.stderr}")
    return {"seconds": _since(began), "found": json.loads(ended.stdout.splitlines()[-1])}


def _failed(began: float, why: str) -> dict[str, Any]:
    return {"seconds": _since(began), "failed": why[-_MOST_CHARACTERS:]}


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)
