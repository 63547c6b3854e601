"""Small files that commands read: right ones, and each wrong in one way."""

import json
from pathlib import Path
from typing import Any

import synth
from synth.families import generate
from synth.layer_times import LayerTimes
from synth.profile import Profile
from synth.profile.workload import Workload
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import TINY
from tests.golden.commands import run

TIMES = """
name,      count, forward_ms, backward_ms, saved_MB, output_MB
embedding, 1,     0.4,        0.5,         12,       12
block,     4,     3.1,        6.0,         180,      12
head,      1,     2.9,        5.7,         410,      0
"""


def write_inputs() -> None:
    """Write all of them into the current folder."""
    _write_plans()
    _write_of_a_model()
    Path("schedule.csv").write_text("0F0,0I0,0W0\n1F0,1I0,1W0\n")
    Path("odd.csv").write_text("0F0,hello\n")
    Path("late.csv").write_text("0B0,0F0\n")
    Path("times.csv").write_text(TIMES)
    Path("columns.csv").write_text(TIMES.replace("saved_MB", "activations"))
    Path("twice.csv").write_text(TIMES.replace("head,", "block,"))
    Path("negative.csv").write_text(TIMES.replace("2.9", "-2.9"))
    Path("notes.txt").write_text("my notes")
    Path("notes.json").write_text('{"mine": 1}')
    Path("text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    Path("short.txt").write_text("too short")
    Path("model.py").write_text("def layers():\n    raise ValueError('no such width')\n")


def _write_plans() -> None:
    """Write ZB-H1 on 4 ranks with a limit, and the same file damaged."""
    plan = synth.simulate(
        "zb-h1", "zb-1.5b-p8-m24", ranks=4, micro_batches=8, mem_limit="40GB", partition="even"
    )
    plan.save("plan.json")
    synth.simulate("1f1b:recompute", "zb-1.5b-p8-m24", ranks=2, micro_batches=2).save("again.json")
    assert run("show plan.json --trace trace.json").code == 0
    text = Path("plan.json").read_text()
    Path("cut.json").write_text(text[: len(text) // 2])
    data = json.loads(text)
    programs = data["programs"]
    missing = [programs[0], programs[1].replace("B1.3 ", "", 1), *programs[2:]]
    claim = data["claim"]
    damages: dict[str, dict[str, Any]] = {
        "missing.json": {"programs": missing},
        "changed.json": {"partition": [5, 7, 6, 6]},
        "faster.json": {"claim": {**claim, "makespan_us": claim["makespan_us"] - 1}},
        "tight.json": {"caps_bytes": [10**10] * 4},
        "newer.json": {"schema_version": 99},
        "field.json": {"colour": "red"},
        "kind.json": {"num_micro_batches": "eight"},
    }
    for name, changes in damages.items():
        Path(name).write_text(json.dumps({**data, **changes}))
    trace = json.loads(Path("trace.json").read_text())
    Path("other_trace.json").write_text(json.dumps({**trace, "schedule": "0" * 16}))


def _write_of_a_model() -> None:
    """Write plans for 2 ranks of a small GPT that can be run; its times are made up."""
    layer = LayerTimes(
        name="block", count=6, forward_us=1000, backward_us=2000, saved_bytes=10**6,
        output_bytes=10**5,
    )  # fmt: skip
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=32)
    profile = Profile.from_times("small", [layer])
    profile.save("profile.json")
    text = json.loads(Path("profile.json").read_text())
    Path("negative.json").write_text(json.dumps(text).replace("2000", "-2000"))
    runs = profile.replace(workload=workload)
    plan = Plan.of(runs, [3, 3], generate("zb-h1", 2, 4))
    plan.save("run.json")
    Plan.of(runs, [6], generate("1f1b", 1, 2)).save("one.json")
    own = plan.workload.replace(model="canary.py:layers")
    plan.replace(workload=own).save("own.json")
