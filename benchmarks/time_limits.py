"""Durations of commands against their time limit, for models with many layers and many ops.

    python benchmarks/time_limits.py [--limit 2] [--only TEXT]

Each command runs in a process of its own, from its start to its end, so importing counts. The
profile is the shipped one with its middle layer repeated. `beyond` is what a command takes beyond
its limit; `compare` has one limit for the published schedules and one for its search. `peak` is the
memory of the process.
"""

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from synth.layer_profile import Layer
from synth.processors import num_processors
from synth.profile import Profile
from synth.profiles import find
from synth.report.text.tables import table

_SHIPPED = "zb-1.5b-p8-m24"
_LARGE = ("-r", "64", "-m", "512")
_PLAIN = ("--placement", "linear", "--partition", "even", "--recompute", "none")
_ANY_MEMORY = ("--mem-limit", "min", "--target", "110%")


class Case(NamedTuple):
    """A command on a model of `num_layers` layers; `num_limits` is how often the limit counts."""

    num_layers: int
    command: str
    arguments: tuple[str, ...]
    num_limits: int = 1


def cases() -> Iterator[Case]:
    """From 24 layers to 10,000, and to 64 ranks with 512 micro-batches."""
    for num_layers in (24, 300, 1_000, 10_000):
        small = ("-r", "8", "-m", "16")
        yield Case(num_layers, "solve", (*small, *_PLAIN))
        yield Case(num_layers, "solve", (*small, *_PLAIN, "--partition", "auto"))
        yield Case(num_layers, "solve", (*small, *_PLAIN, "--placement", "auto"))
        yield Case(num_layers, "solve", (*small, "--mem-limit", "40GB"))
        yield Case(num_layers, "solve", (*small, *_ANY_MEMORY))
    for placement in ("linear", "v", "looped:2", "bidirectional", "auto"):
        yield Case(300, "solve", (*_LARGE, *_PLAIN, "--placement", placement))
    yield Case(300, "solve", (*_LARGE, "--mem-limit", "40GB"))
    yield Case(10_000, "solve", (*_LARGE, *_PLAIN))
    yield Case(300, "compare", _LARGE, 2)
    yield Case(24, "compare", ("-r", "8", "-m", "10000"), 2)


def enlarged(profile: Profile, num_layers: int) -> Profile:
    """The profile with its middle layer as often as it takes."""
    names = [layer.profile for layer in profile.layers]
    middle = [names[len(names) // 2]] * (num_layers - 2)
    all_names = [names[0], *middle, names[-1]]
    layers = tuple(Layer(name=f"layer {i}", profile=name) for i, name in enumerate(all_names))
    return profile.replace(name=f"{num_layers} layers", layers=layers)


class Measured(NamedTuple):
    """A command's exit code, duration and memory."""

    code: int
    wall_s: float
    peak_bytes: int


def measure(command: Sequence[str]) -> Measured:
    """Run a command in a process that tells how much memory it took."""
    code = (
        "import resource, subprocess, sys\n"
        "code = subprocess.run(sys.argv[1:], stdout=-3, stderr=-3).returncode\n"
        "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)\n"
    )
    began = time.monotonic()
    told = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    wall_s = time.monotonic() - began
    exit_code, peak_bytes = map(int, told.stdout.split())
    return Measured(exit_code, wall_s, peak_bytes)


def main() -> None:
    """Measure all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=2.0, help="the time limit, in seconds")
    parser.add_argument("--only", default="", help="commands that hold this text")
    asked = parser.parse_args()
    rows, profile = [], Profile.load(find(_SHIPPED))
    with tempfile.TemporaryDirectory() as name:
        for case in cases():
            words = " ".join((case.command, *case.arguments))
            if asked.only not in words:
                continue
            path = Path(name) / f"{case.num_layers}.json"
            if not path.exists():
                enlarged(profile, case.num_layers).save(path)
            limit = ("--time-limit", f"{asked.limit}s", "--gap", "0%")
            command = (sys.executable, "-m", "synth", case.command, str(path), *case.arguments)
            found = measure((*command, *limit))
            limit_s = case.num_limits * asked.limit
            figures = (f"{found.wall_s:.1f}", f"{found.wall_s - limit_s:+.1f}")
            peak = f"{found.peak_bytes / 1e6:,.0f}"
            rows.append([f"{case.num_layers:,}", words, *figures, peak, str(found.code)])
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    header = ["layers", "command", "wall\ns", "beyond\ns", "peak\nMB", "exit\ncode"]
    print(f"{platform.machine()}, {num_processors()} processors, limit {asked.limit:g} s\n")
    print(table(header, rows))


if __name__ == "__main__":
    main()
