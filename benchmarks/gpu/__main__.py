"""Everything that one CUDA device can show, in one call of at most eight minutes.

    make gpu                                                   # python -m benchmarks.gpu
    python -m benchmarks.gpu --device cpu --small              # tries the check itself
    python -m benchmarks.gpu --only rehearsal --only kernels   # some steps

Each step is a process of its own; a failure is recorded and the next step follows.
The answer is a page of text, and with --json a file, written anew after each step.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.kernels import split_cost, zoo
from benchmarks.gpu.machine import gpu_tests, machine
from benchmarks.gpu.native import executor
from benchmarks.gpu.ranks import nccl_of_one, processes_on_one_device, threads_on_one_device
from benchmarks.gpu.rehearsals import profiles, rehearsals
from benchmarks.gpu.step import Step, Where, run_apart
from benchmarks.gpu.training import offload_overlap, optimizers, training
from benchmarks.provenance import commit

STEPS = (
    Step("machine", 60, machine),
    Step("tests", 90, gpu_tests),
    Step("nccl", 60, nccl_of_one),
    Step("threads", 60, threads_on_one_device),
    Step("rehearsal", 120, rehearsals),
    Step("executor", 120, executor),
    Step("training", 90, training),
    Step("zoo", 90, zoo),
    Step("profile", 90, profiles),
    Step("offload", 45, offload_overlap),
    Step("optimizers", 60, optimizers),
    Step("processes", 90, processes_on_one_device),
    Step("split-cost", 90, split_cost),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; 1 if one failed."""
    asked = _parse(arguments)
    where = Where(asked.device, asked.small)
    if asked.step is not None:
        step = next(step for step in STEPS if step.name == asked.step)
        print(json.dumps(step.run(where)))
        return 0
    began = time.monotonic()
    document: dict[str, Any] = {"commit": commit(), "device": where.device, "steps": {}}
    for step in STEPS:
        if asked.only and step.name not in asked.only:
            continue
        left_s = asked.minutes * 60 - (time.monotonic() - began)
        found = run_apart(step, where, left_s) if left_s > 0 else {"failed": "no time was left"}
        document["steps"][step.name] = found
        print(_text(step.name, found), flush=True)
        if asked.json is not None:
            asked.json.write_text(json.dumps(document, indent=1) + "\n")
    failed = [name for name, found in document["steps"].items() if "failed" in found]
    print(f"{time.monotonic() - began:.0f} s; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _text(name: str, found: Mapping[str, Any]) -> str:
    head = f"{name} ({found.get('seconds', 0)} s)"
    if "failed" in found:
        return f"{head}: FAILED\n{found['failed']}\n"
    lines = [f"  {key}: {_short(value)}" for key, value in found["found"].items()]
    return "\n".join([head, *lines, ""])


def _short(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "".join(f"\n    {_short(row)}" for row in value)
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(each)}" for key, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = [step.name for step in STEPS]
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="sizes that take seconds")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--only", action="append", choices=names)
    parser.add_argument("--step", choices=names, help="run one step in this process")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
