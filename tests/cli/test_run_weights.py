"""`synth run` begins from a folder of weights, and writes one."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file

from synth.profile.workload import Workload
from tests.cli.conftest import Synth, make_run_plan

OWN = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.ones(16))
    def forward(self, x):
        return x + torch.tanh(self.inner(x)) * self.scale
class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.register_buffer("shift", torch.arange(16) / 16, persistent=False)
        self.head = nn.Linear(16, 256)
    def forward(self, tokens):
        x = self.embed(tokens) + self.shift
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""


def test_exported_weights_are_begun_from(
    synth_on_pool: Synth, run_plan: Path, text: Path, tmp_path: Path
) -> None:
    run = ("run", run_plan, "--data", text, "--device", "cpu")
    first = synth_on_pool(*run, "--steps", "2", "--export-weights", tmp_path / "first")
    assert first.code == 0 and "weights written to" in first.stderr
    again = ("--weights-from", tmp_path / "first", "--lr", "1e-30", "--steps", "1", "--seed", "9")
    for name, kind in (("hf", "hf"), ("dcp", "dcp")):
        wanted = ("--export-weights", tmp_path / name, "--export-format", kind)
        ended = synth_on_pool(*run, *again, *wanted)
        assert ended.code == 0 and "began from the weights in" in ended.stderr
        again = ("--weights-from", tmp_path / name, *again[2:])
    weights = [load(tmp_path / name) for name in ("first", "hf")]
    assert "block.3.mlp_out.weight" in weights[0]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        assert torch.equal(weights[1][name], tensor), name
    assert (tmp_path / "dcp" / ".metadata").exists()


def test_an_own_whole_model_begins_from_its_state_dict(
    synth_on_pool: Synth, text: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    address = f"{tmp_path / 'own.py'}:Whole"
    workload = Workload(model=address, micro_batch_size=2, sequence_length=8)
    plan = make_run_plan(workload, (3, 3), tmp_path)
    run = ("run", plan, "--data", text, "--device", "cpu", "--model", address, "--steps", "1")
    ended = synth_on_pool(*run, "--export-weights", tmp_path / "before")
    assert ended.code == 0, ended.stderr
    before = load(tmp_path / "before")
    assert {"embed.weight", "blocks.0.scale", "blocks.3.inner.bias", "head.bias"} <= before.keys()
    begins = ("--weights-from", tmp_path / "before", "--lr", "1e-30", "--seed", "9")
    ended = synth_on_pool(*run, *begins, "--export-weights", tmp_path / "after")
    assert ended.code == 0, ended.stderr
    after = load(tmp_path / "after")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor), name
    refused = synth_on_pool(*run, "--export-weights", tmp_path / "after")
    assert refused.code == 2 and "has contents already" in refused.stderr


def test_weights_of_another_model_are_refused(
    synth_on_pool: Synth, run_plan: Path, text: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    save_file({"other": torch.zeros(2)}, tmp_path / "model.safetensors")
    ended = synth_on_pool("run", run_plan, "--data", text, "--weights-from", tmp_path)
    assert ended.code == 5
    assert "missing: embedding." in ended.stderr and "unexpected: other;" in ended.stderr


def load(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of all files of a folder."""
    return {
        name: tensor
        for path in folder.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }
