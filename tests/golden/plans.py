"""Command lines of `synth solve` whose plans are recorded: some of each kind of request.

All are deterministic with seed 0 and two workers. A limit is counted effort, not time, and so small
that a case takes a few seconds.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.golden.commands import empty_folder, run
from tests.golden.golden_set import GoldenSet

_8, _8_LARGE, _16, _OWN = "zb-1.5b-p8-m24", "zb-6.2b-p8-m24", "zb-14.6b-p16-m48", "gpt-bytes-cpu"
_CLAIMED = ("makespan_us", "period_us", "lower_bound_us", "peak_bytes", "found_by", "stopped_by")
_ALL = "--deterministic --seed 0 --workers 2 --quiet -o plan.json"
_FAST = "--link 10us,25GB/s"
_FREE = "--mem-limit none"

# On one placement, and in one partition without recomputation unless the case says otherwise.
_PLAIN = "--placement linear --partition even --recompute none"
_ON_ONE_PLACEMENT = {
    # one stage per rank: without a limit, with that of 1F1B, and with less than 1F1B needs
    "8x24, no limit": f"{_8} -r 8 -m 24 --time-limit 0.02s",
    "8x24, 1F1B's memory": f"{_8_LARGE} -r 8 -m 24 --mem-limit 44.4GB --time-limit 0.02s",
    "4x8, 0.75 of it": f"{_8} -r 4 -m 8 --mem-limit 30GB --time-limit 0.02s",
    "4x8, half of it": f"{_8} -r 4 -m 8 --mem-limit 23GB --time-limit 0.02s",
    "8x24, period": f"{_8} -r 8 -m 24 --mem-limit 34GB --objective period --time-limit 0.02s",
    "8x24, 8 iterations": f"{_8} -r 8 -m 24 --objective iterations:8 --time-limit 0.02s",
    "4x8, a limit for each rank": (
        f"{_8} -r 4 -m 8 --mem-limit 40GB,36GB,32GB,28GB --time-limit 0.02s"
    ),
    "4x8, less a reserve": f"{_8} -r 4 -m 8 --mem-limit 36GB --mem-reserve 4GB --time-limit 0.02s",
    "4x8, period": f"{_8} -r 4 -m 8 --mem-limit 30GB --objective period --time-limit 0.02s",
    "4x8, proven": f"{_OWN} -r 4 -m 8 --mem-limit 101MB --gap 0% --time-limit 1s",
    "4x8, from a hint": f"{_8} -r 4 -m 8 --mem-limit 38GB --hint zb-h1 --time-limit 0.02s",
    "3x3, MILP": (
        f"{_8} -r 3 -m 3 --partition 10,8,6 --mem-limit 40GB --solver milp --gap 0% "
        "--time-limit 300s"
    ),
    # many ranks, many micro-batches
    "16x16": f"{_16} -r 16 -m 16 --mem-limit 30GB --time-limit 0.01s",
    # several stages per rank
    "4x8, V": f"{_8} -r 4 -m 8 --placement v --time-limit 0.02s",
    "4x8, V, tight": f"{_8} -r 4 -m 8 --placement v --mem-limit 24GB --time-limit 0.02s",
    "4x8, V, period": (
        f"{_8} -r 4 -m 8 --placement v --objective period {_FREE} --time-limit 0.02s"
    ),
    "4x4, looped": f"{_8} -r 4 -m 4 --placement looped:2 --mem-limit 36GB --time-limit 0.01s",
    "4x4, wave": f"{_8} -r 4 -m 4 --placement wave:2 {_FREE} --time-limit 0.01s",
    # two copies of the stages
    "4x8, both ways": f"{_8} -r 4 -m 8 --placement bidirectional {_FREE} --time-limit 0.02s",
    "4x8, both ways, V": f"{_8} -r 4 -m 8 --placement bidirectional-v --time-limit 0.02s",
    # recomputation and partitions
    "4x8, recompute some": f"{_8} -r 4 -m 8 --recompute 0,1 --mem-limit 40GB --time-limit 0.02s",
    "4x8, recompute layers": (
        f"{_8} -r 4 -m 8 --recompute layers:0-5 --mem-limit 34GB --time-limit 0.02s"
    ),
    "4x8, recompute auto": f"{_8} -r 4 -m 8 --recompute auto --mem-limit 35GB --time-limit 0.02s",
    "4x8, layers by hand": f"{_8} -r 4 -m 8 --partition 7,6,6,5 --time-limit 0.02s",
    "4x8, layers searched": f"{_8} -r 4 -m 8 --partition search --time-limit 0.02s",
    "4x8, layers and recompute": (
        f"{_8} -r 4 -m 8 --partition search --recompute auto --mem-limit 38GB --time-limit 0.02s"
    ),
    # links, moves to the host, data parallelism
    "4x8, slow links": f"{_8} -r 4 -m 8 --link 8ms,1GB/s --mem-limit 34GB --time-limit 0.02s",
    "4x8, nodes": f"{_8} -r 4 -m 8 {_FAST} --link 2:5ms,10GB/s --mem-limit 34GB --time-limit 0.02s",
    "4x8, offloading": f"{_8} -r 4 -m 8 --offload --mem-limit 24GB --time-limit 0.02s",
    "4x4, two pipelines": f"{_8} -r 4 -m 4 {_FAST} --data-parallel 2 --time-limit 0.02s",
    "2x1, two sharded pipelines": (
        f"{_8} -r 2 -m 1 {_FAST} --placement looped:4 --mem-limit 23.8GB --data-parallel 2"
        f" --weights gather --time-limit 0.01s"
    ),
}

_OPEN = {
    "2x4, all open": f"{_OWN} -r 2 -m 4 --time-limit 0.02s",
    "4x8, placement auto": (
        f"{_8} -r 4 -m 8 --partition even --recompute none --mem-limit 30GB --time-limit 0.02s"
    ),
    # what a runtime can execute
    "4x8, for torch": (
        f"{_8} -r 4 -m 8 --partition even --for torch --mem-limit 24GB --time-limit 0.02s"
    ),
    "4x8, for TorchTitan": (
        f"{_8} -r 4 -m 8 --partition even --for torchtitan --mem-limit 24GB --time-limit 0.02s"
    ),
    "4x8, for Megatron": (
        f"{_8} -r 4 -m 8 --partition even --for megatron --mem-limit 24GB --time-limit 0.02s"
    ),
    # weights that are passed
    "4x8, ring": f"{_OWN} -r 4 -m 8 --weights ring --time-limit 0.02s",
    "4x8, gathered": f"{_OWN} -r 4 -m 8 --weights gather --gap 0% --time-limit 0.02s",
    "2x4, weights auto": f"{_OWN} -r 2 -m 4 --weights auto --time-limit 0.02s",
    "2x2, two pipelines, weights auto": (
        f"{_8} -r 2 -m 2 {_FAST} --partition even --recompute none --mem-limit 30GB"
        f" --data-parallel 2 --weights auto --time-limit 0.01s"
    ),
    # no flush
    "4x16, two versions": (
        f"{_8} -r 4 -m 16 --link 10ms,10GB/s --versions 2bw:every=8 --time-limit 0.02s"
    ),
    "4x8, stashed versions": f"{_8} -r 4 -m 8 --versions stash --mem-limit 30GB --time-limit 0.02s",
    "2x12, vertical versions": f"{_8} -r 2 -m 12 --versions vertical --time-limit 0.02s",
    "2x12, no version stashed": f"{_8} -r 2 -m 12 --versions none --time-limit 0.02s",
}

_COMMANDS = {name: f"{_PLAIN} {rest}" for name, rest in _ON_ONE_PLACEMENT.items()} | _OPEN


def plan_of(case: str) -> dict[str, Any]:
    """Solve; return the claim of the plan and a hash of its programs."""
    with empty_folder():
        ended = run(f"solve {_COMMANDS[case]} {_ALL}")
        assert ended.code == 0, ended.stderr
        plan = json.loads(Path("plan.json").read_text())
    claim = {name: plan["claim"][name] for name in _CLAIMED}
    if plan["claim"].get("steady") is not None:
        claim["micro_batch_us"] = plan["claim"]["steady"]["micro_batch_us"]
    parts = ("placement", "partition", "programs", "weights", "versions", "recomputed_layers")
    programs = {name: plan[name] for name in parts if plan.get(name) is not None}
    text = json.dumps(programs, sort_keys=True)
    return {**claim, "programs": hashlib.sha256(text.encode()).hexdigest()[:16]}


PLANS = GoldenSet("plans", list(_COMMANDS), plan_of)
