"""The origin of a measurement: commit, machine, versions."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

_ROOT = Path(__file__).parent.parent


def provenance() -> dict[str, str | int | None]:
    """The origin as stored in a file of results."""
    return {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "ortools": version("ortools"),
        "torch": version("torch"),
    }


def commit() -> str:
    """The short hash of the checkout; changes that are not committed add `+` and their hash."""
    package = ("synth", "runtime", "profiles")
    try:
        found = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--", *package)
        difference = _git("diff", "HEAD", "--", *package)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    if not changed:
        return found
    return f"{found}+{sha256((changed + difference).encode()).hexdigest()[:6]}"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=_ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def processor() -> str:
    """The processor's name, or at least its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (entry.partition(":")[2].strip() for entry in lines if entry.startswith("model name"))
    return next(names, platform.machine())
