"""The structure of every JSON answer and of every file that commands write, without its values."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

from tests.cli.conftest import TINY
from tests.cli.forked_command import run_forked
from tests.golden.commands import Ended, empty_folder, run
from tests.golden.golden_set import GoldenSet
from tests.golden.inputs import write_inputs

_PROFILE = "zb-1.5b-p8-m24"
_SOLVE = f"solve {_PROFILE} -r 2 -m 2 --placement linear --partition even --recompute none"
_QUICK = "--deterministic --workers 1 --time-limit 0.01s"
_JSON = "--format json"
_ARGUMENTS = " ".join(f"--arg {name}={value}" for name, value in TINY.items())

# Where more keys than this have objects as values, they are names of things, such as tensors.
_MOST_KEYS = 20

# Each case is a list of commands, one after the other in a folder with the files of `inputs`.
_CASES = {
    "solve": [f"{_SOLVE} {_QUICK} --mem-limit 60GB -o found.json {_JSON}"],
    "solve, placement auto": [f"solve {_PROFILE} -r 2 -m 2 {_QUICK} {_JSON}"],
    "solve, weights": [
        f"solve gpt-bytes-cpu -r 2 -m 2 --weights gather {_QUICK} -o found.json {_JSON}"
    ],
    "solve, versions": [
        f"solve {_PROFILE} -r 2 -m 12 --versions vertical {_QUICK} -o found.json {_JSON}"
    ],
    "solve, data parallel": [
        f"{_SOLVE} --link 10us,25GB/s --data-parallel 2 {_QUICK} -o found.json {_JSON}"
    ],
    "solve, least limit": [
        f"{_SOLVE} --mem-limit min --target 200% --workers 1 --gap 50% --time-limit 10s {_JSON}"
    ],
    "solve, dry run": [f"solve {_PROFILE} -r 4 -m 8 --dry-run {_JSON}"],
    "solve, infeasible": [f"{_SOLVE} --mem-limit 3GB {_JSON}"],
    "compare": [
        f"compare {_PROFILE} -r 4 -m 8 --only 1f1b --only chimera --only pipedream"
        f" --planner pipedream --no-solve --save plans {_JSON}"
    ],
    "frontier": [
        f"frontier {_PROFILE} -r 2 -m 2 --points 2 --gap 50% --jobs 1 --workers 1 -o curve.json"
        f" {_JSON}"
    ],
    "check": [
        f"check plan.json {_JSON}",
        f"check plan.json --prove --workers 1 --time-limit 5s {_JSON}",
    ],
    "show": [
        f"show plan.json --trace simulated.json --perfetto perfetto.json {_JSON}",
    ],
    "export and import": [
        "export plan.json -o order.csv",
        f"import order.csv {_PROFILE} -o imported.json",
    ],
    "estimate": ["estimate llama3-8b --device h100 --calibration none -o made.json --format json"],
    "calibrate": ["calibrate nemotron --device h100 --rows 1 -o fitted.json --format json"],
    "profile of a table": ["profile times.csv -o measured.json --peak-flops 1e12"],
    "emulate": [f"emulate run.json --steps 3 --times 0.1 --trace times.json {_JSON}"],
    "profile, rehearse and run": [
        f"profile gpt {_ARGUMENTS} --micro-batch-size 2 --seq-len 32 --warmup 0 --iters 1"
        f" --device cpu -o measured.json",
        f"solve measured.json -r 2 -m 2 --placement linear --partition even {_QUICK} -o small.json",
        f"rehearse small.json --steps 3 --device cpu -o rehearsed.json {_JSON}",
        f"run small.json --data text.txt --steps 3 --device cpu --trace times.json"
        f" --checkpoint states --checkpoint-every 2 --checkpoint-keep 1 -o trained.json {_JSON}",
    ],
}


# They launch ranks, which are forks of a command that is one.
_LAUNCHING = ("emulate ", "run ")

# A plan of measured costs: what proves its bound differs from run to run.
_VARIES = "small.json"


def keys_of(case: str) -> dict[str, Any]:
    """Run the commands of a case; return the structure of what they print and write."""
    with empty_folder() as folder:
        write_inputs()
        given = {path.name for path in folder.iterdir()}
        found: dict[str, Any] = {}
        for command in _CASES[case]:
            ended = launched(command) if command.startswith(_LAUNCHING) else run(command)
            assert ended.code == (3 if case.endswith("infeasible") else 0), ended.stderr
            if command.endswith(_JSON):
                found[command] = structure(json.loads(ended.stdout))
        for path in sorted(folder.rglob("*.json")):
            name = path.relative_to(folder)
            if name.parts[0] not in (*given, _VARIES):
                found[str(name)] = structure(json.loads(path.read_text()))
    return found


def launched(command: str) -> Ended:
    """Run a command line that launches ranks."""
    ended = run_forked(*shlex.split(command))
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def structure(value: Any) -> dict[str, str]:
    """Return the types of all values of a JSON text by their paths, such as `points[].gap`."""
    found: dict[str, set[str]] = {}
    for path, kind in _kinds(value, ""):
        found.setdefault(path, set()).add(kind)
    return {path: " or ".join(sorted(kinds)) for path, kinds in found.items()}


def _kinds(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the type of each value that holds no others."""
    if isinstance(value, dict) and value:
        are_things = len(value) > _MOST_KEYS and all(isinstance(v, dict) for v in value.values())
        for key, part in value.items():
            name = "*" if are_things else key
            yield from _kinds(part, f"{path}.{name}".removeprefix("."))
    elif isinstance(value, list) and value:
        for part in value:
            yield from _kinds(part, f"{path}[]")
    else:
        kinds = {bool: "bool", int: "number", float: "number", str: "text", type(None): "null"}
        yield path, kinds.get(type(value), f"empty {type(value).__name__}")


KEYS = GoldenSet("keys", list(_CASES), keys_of)
