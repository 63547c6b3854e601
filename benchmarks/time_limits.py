"""Durations of commands against their time limit, for models with many layers and many ops.

    python -m benchmarks.time_limits --json benchmarks/results/time-limits.json
    python -m benchmarks.time_limits --limit 5 --only compare

Each command runs in a process of its own, from its start to its end, so importing counts. The
profile is the shipped one with its middle layer repeated. `beyond` is what a command takes beyond
its limit; `compare` has one limit for the published schedules and one for its search. `peak` is the
memory of the process. The options that fix placement, partition and recomputation are not shown.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results_file import Run, markdown_table, parse_without_seeds, parser_of, report_rows
from synth.profile import Profile
from synth.profile.layer_profile import Layer
from synth.profiles import find

FORMAT = "synth-time-limits-benchmark-1"

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

    @property
    def words(self) -> str:
        """The command without the profile, and without the options that are not shown."""
        whole = " ".join((self.command, *self.arguments))
        return whole.replace(f" {' '.join(_PLAIN)}", "")


class Row(NamedTuple):
    """The measurements of a command; `limit_s` is all the time that its limits allow."""

    layers: int
    command: str
    limit_s: float
    wall_s: float
    peak_bytes: int
    exit_code: int


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


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown."""
    heads = ("layers", "command", "wall s", "beyond the limit s", "peak MB", "exit code")
    return markdown_table(heads, (_line(Row(**row)) for row in document["rows"]))


def _line(row: Row) -> list[str]:
    return [
        f"{row.layers:,}",
        f"`{row.command}`",
        f"{row.wall_s:.1f}",
        f"{row.wall_s - row.limit_s:+.1f}",
        f"{row.peak_bytes / 1e6:,.0f}",
        str(row.exit_code),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save a row for each command, then the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--limit", type=float, default=2.0, help="the time limit, in seconds")
    parser.add_argument("--only", default="", help="commands that hold this text")
    asked = parse_without_seeds(parser, arguments)
    request = Run("time-limits", f"whole commands, {asked.limit:g} s.", 1, None, asked.limit)
    profile, wanted = Profile.load(find(_SHIPPED)), (c for c in cases() if asked.only in c.words)
    with tempfile.TemporaryDirectory() as folder:
        rows = (_run(case, profile, Path(folder), asked.limit) for case in wanted)
        report_rows(rows, asked.json, FORMAT, request, table)
    return 0


def _run(case: Case, profile: Profile, folder: Path, limit_s: float) -> Row:
    path = folder / f"{case.num_layers}.json"
    if not path.exists():
        enlarged(profile, case.num_layers).save(path)
    limit = ("--time-limit", f"{limit_s}s", "--gap", "0%")
    command = (sys.executable, "-m", "synth", case.command, str(path), *case.arguments, *limit)
    found = measure(command)
    whole_s = case.num_limits * limit_s
    return Row(case.num_layers, case.words, whole_s, found.wall_s, found.peak_bytes, found.code)


if __name__ == "__main__":
    sys.exit(main())
