"""BLOOM's layout, 8 × 12 × 4 on 384 A100s (arXiv 2211.05100, section 3.4), as notes/layouts.md."""

import json
from pathlib import Path
from typing import Any

import pytest

import synth as synth_module
from synth.profile import Profile
from synth.profile.mesh import DeviceGroup, Mesh
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import Synth

CONFIG = {
    "model_type": "bloom", "n_layer": 70, "hidden_size": 14336, "n_head": 112,
    "vocab_size": 250880,
}  # fmt: skip
ESTIMATE = (
    "--device a100 --tp 4 --dp 8 --micro-batch-size 2 --seq-len 2048 --recompute full "
    "--software megatron-2021"
)


@pytest.mark.slow
def test_the_layout_is_planned_checked_and_exported_and_names_its_384_devices(
    synth: Synth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bloom-176b.json").write_text(json.dumps(CONFIG))
    ended = synth("estimate", "bloom-176b.json", *ESTIMATE.split(), "-o", "bloom.json")
    assert ended.code == 0, ended.stderr
    assert "tp 4 with sequence parallelism, dp 8" in ended.stdout
    solving = "-r 12 -m 128 --placement linear --for megatron --time-limit 20s -o plan.json"
    ended = synth("solve", "bloom.json", *solving.split())
    assert ended.code == 0, ended.stderr

    plan = Plan.load(Path("plan.json"))
    assert plan.workload.group == DeviceGroup(tensor=4, sequence=True, data=8)
    assert plan.mesh() == Mesh(8, 12, 4) and plan.mesh().size == 384
    assert sum(plan.partition) == 72 and len(plan.partition) == 12
    assert plan.num_micro_batches * 2 * 8 == 2048

    ended = synth("check", "plan.json")
    assert ended.code == 0 and "384 = 8 pipelines × 12 ranks × 4 devices" in ended.stdout
    ended = synth("show", "plan.json")
    assert ended.code == 0 and "devices: 384 = 8 pipelines × 12 ranks × 4" in ended.stdout
    ended = synth("export", "plan.json", "--to", "megatron")
    assert ended.code == 0 and ended.stdout.startswith("Et*") and ended.stdout.strip().endswith("L")
    ended = synth("run", "plan.json", "--data", "bloom-176b.json")
    assert ended.code != 0 and "without a model to run" in ended.stderr


@pytest.mark.parametrize(
    ("sizes", "group"),
    [
        ({}, None),
        ({"tp": 2}, DeviceGroup(tensor=2, sequence=True)),
        ({"tp": 2, "cp": 2, "dp": 4}, DeviceGroup(tensor=2, sequence=True, context=2, data=4)),
        ({"dp": 2}, DeviceGroup(data=2)),
    ],
    ids=["one", "tp", "tp, cp and dp", "dp"],
)
def test_an_estimated_profile_says_what_its_ranks_are(
    sizes: dict[str, Any], group: DeviceGroup | None
) -> None:
    profile = synth_module.estimate("llama3-8b", device="h100", seq_len=4096, **sizes)
    assert profile.workload.group == group
    assert Profile.from_json(json.dumps(profile.to_data())).workload.group == group
