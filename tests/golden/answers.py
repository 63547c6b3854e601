"""Tables, curves and proofs: the values that do not depend on the time that a search took.

`synth compare`, `frontier`, `check --prove` and `--mem-limit min` end by the clock. So their cases
are without a search, or so small that the search proves its answer.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.golden.commands import empty_folder, run
from tests.golden.golden_set import GoldenSet

_8, _OWN = "zb-1.5b-p8-m24", "gpt-bytes-cpu"
_PLAIN = "--placement linear --partition even --recompute none"
_ROW = ("name", "makespan_us", "period_us", "steady_us", "delay", "peak_bytes", "fits", "on_front")


class _Answer(NamedTuple):
    """Commands, of which the last answers in JSON, and what of the answer is recorded."""

    commands: list[str]
    values: tuple[str, ...] = ()
    rows: str = ""
    columns: tuple[str, ...] = ()


_PROOF = (
    *("valid", "plan", "on_trust", "bound.verdict", "bound.claimed_us", "bound.reached_us"),
    *("bound.holds_for", "bound.proven_from", "bound.certificate_is_refuted"),
)
_TABLE: dict[str, Any] = {"rows": "schedules", "columns": _ROW}
_CASES = {
    "compare, all published schedules": _Answer(
        [f"compare {_8} -r 4 -m 8 --partition even --no-solve --mem-limit 36GB --time-limit 300s"],
        **_TABLE,
    ),
    "compare, period, with recomputation and offloading": _Answer(
        [
            f"compare {_8} -r 4 -m 8 --objective period --offload --only 1f1b --only bpipe"
            f" --only 1f1b:recompute --only gpipe --no-solve --mem-limit none"
        ],
        **_TABLE,
    ),
    "compare, published planners": _Answer(
        [
            f"compare {_8} -r 4 -m 24 --no-solve --only pipedream --planner pipedream"
            f" --planner 2bw --mem-limit 60GB"
        ],
        rows="schedules",
        columns=("name", "partition", "steady_us", "peak_bytes", "prediction"),
    ),
    "compare, what does not apply": _Answer(
        [f"compare {_8} -r 3 -m 6 --only 1f1b --only chimera --only zb-v --no-solve"],
        rows="refused",
        columns=("name", "reason"),
    ),
    "compare, solved": _Answer(
        [f"compare {_OWN} -r 2 -m 3 {_PLAIN} --only 1f1b --gap 0% --time-limit 60s"],
        rows="schedules",
        columns=("name", "makespan_us", "lower_bound_us", "gap"),
    ),
    "frontier": _Answer(
        [
            f"frontier {_OWN} -r 2 -m 3 --points 4 --gap 0% --jobs 1 --workers 1 --time-limit 60s"
            f" -o curve.json"
        ],
        ("never_below_bytes",),
        rows="points",
        columns=("cap_bytes", "value_us", "lower_bound_us"),
    ),
    "least limit for a time": _Answer(
        [
            f"solve {_OWN} -r 2 -m 2 {_PLAIN} --mem-limit min --target 200% --gap 0% --workers 1"
            f" --time-limit 60s"
        ],
        ("target_us", "cap_bytes", "not_below_bytes"),
    ),
    "check, proof of a bound": _Answer(
        [
            f"solve {_8} -r 4 -m 8 {_PLAIN} --mem-limit 30GB --deterministic --workers 2"
            f" --time-limit 0.1s -o plan.json -q",
            "check plan.json --prove --workers 1 --time-limit 60s",
        ],
        _PROOF,
    ),
    "check, proof without a flush": _Answer(
        [
            f"solve {_8} -r 2 -m 12 --versions vertical --deterministic --workers 2"
            f" --time-limit 0.05s -o plan.json -q",
            "check plan.json --prove --workers 1 --time-limit 60s",
        ],
        _PROOF,
    ),
    "dry run": _Answer(
        [f"solve {_8} -r 4 -m 8 --mem-limit 24GB --dry-run"],
        rows="candidates",
        columns=("name", "partition", "needed_bytes", "feasible"),
    ),
}


def answer_of(case: str) -> dict[str, Any]:
    """Run the commands of a case; return the chosen values of the last one's answer, and rows."""
    chosen = _CASES[case]
    with empty_folder():
        *before, last = chosen.commands
        for command in before:
            ended = run(command)
            assert ended.code == 0, ended.stderr
        ended = run(f"{last} --format json")
    assert ended.code == 0, ended.stderr
    answer = json.loads(ended.stdout)
    found = {path: _at(answer, path) for path in chosen.values}
    if chosen.rows:
        found[chosen.rows] = [" ".join(_cells(row, chosen)) for row in answer[chosen.rows]]
    return found


def _at(answer: Any, path: str) -> Any:
    for name in path.split("."):
        answer = answer[name]
    return answer


def _cells(row: dict[str, Any], chosen: _Answer) -> Iterator[str]:
    for name in chosen.columns:
        value = row[name]
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        yield f"{name}={text}"


ANSWERS = GoldenSet("answers", list(_CASES), answer_of)
