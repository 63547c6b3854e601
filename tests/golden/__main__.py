"""Compare all plans with the recorded ones, or record them anew.

python -m tests.golden            # what differs; exit code 1 if anything does
python -m tests.golden --record   # after a change that is meant to find other plans
python -m tests.golden V recompute  # only the cases whose names contain one of these
"""

import hashlib
import json
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from synth.cli.commands import app
from tests.golden.cases import CASES

RECORDED = Path(__file__).with_name("recorded.json")
_CLAIMED = ("makespan_us", "period_us", "lower_bound_us", "peak_bytes", "found_by", "stopped_by")
_PLAIN = "--placement linear --partition even --recompute none"
_ALL = "--deterministic --seed 0 --workers 2 --format json"


def plan_of(command: str) -> dict[str, Any]:
    """Solve; return the claim of the plan and a hash of its programs."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        done = CliRunner().invoke(app, shlex.split(f"solve {_PLAIN} {command} {_ALL} -o {file}"))
        if done.exit_code:
            return {"exit_code": done.exit_code}
        plan = json.loads(file.read_text())
    programs = {name: plan[name] for name in ("placement", "partition", "programs")}
    return {
        **{name: plan["claim"][name] for name in _CLAIMED},
        "programs": hashlib.sha256(json.dumps(programs, sort_keys=True).encode()).hexdigest()[:16],
    }


def main(arguments: list[str]) -> int:
    """Run the cases; see the docstring of this module."""
    unknown = {word for word in arguments if word.startswith("-")} - {"--record"}
    if unknown:
        print(f"{', '.join(sorted(unknown))}: no such option\n\n{__doc__}", file=sys.stderr)
        return 2
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    wanted = [word for word in arguments if not word.startswith("--")]
    found, differing = dict(recorded), 0
    for name, command in CASES.items():
        if wanted and not any(word in name for word in wanted):
            continue
        began = time.monotonic()
        found[name] = plan_of(command)
        same = found[name] == recorded.get(name)
        differing += not same
        print(
            f"{'same' if same else 'DIFFERS':8}{time.monotonic() - began:6.1f} s  {name}",
            flush=True,
        )
        if not same:
            print(f"    recorded {recorded.get(name)}\n    found    {found[name]}", flush=True)
    if "--record" in arguments:
        RECORDED.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
