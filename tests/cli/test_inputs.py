"""Models that take something else than token ids: profiled and trained from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from synth.costs.partition_costs import partition_costs
from synth.families import generate
from synth.profile import Profile
from synth.records.json_schema import schema_of
from synth.report.run_file import RunFile
from synth.runtime.execution.stage.layer_chain import LayerChain
from synth.runtime.input_function import InputFunction
from synth.runtime.models import ModelSpec, build_model
from synth.runtime.profiling.held_bytes import held_bytes
from synth.runtime.profiling.profile_model import profile_layers
from synth.runtime.profiling.sample import Sample
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import Synth
from tests.synth.schema_check import mistakes

# A dictionary enters, a tuple crosses, a dictionary of targets is for the last layer.
MODEL = """
import torch
from torch import nn
class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 4, 4)
    def forward(self, batch):
        return self.convolution(batch["pixels"]).flatten(2).transpose(1, 2), batch["mask"]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
    def forward(self, x, mask):
        return x + torch.relu(self.linear(x)) * mask[:, :, None], mask
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 10)
    def forward(self, x, mask, targets):
        return nn.functional.cross_entropy(self.linear(x.mean(1)), targets["label"])
def layers():
    return [Patches(), Block(), Block(), Head()]
def yielded():
    yield from layers()
def batch(number):
    pixels, mask = torch.randn(4, 3, 8, 8), torch.ones(4, 4)
    return {"pixels": pixels, "mask": mask}, {"label": torch.randint(10, (4,))}
def once(made=[]):
    made.append(1)
    assert len(made) == 1
    return batch(0)
def lists(number):
    return torch.zeros(2), [1]
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "images.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def profile(file: Path, synth: Synth, tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    made = ("--inputs", f"{file}:batch", "--iters", "2", "--warmup", "1", "--device", "cpu")
    ended = synth("profile", f"{file}:layers", *made, "-o", path)
    assert ended.code == 0, ended.stderr
    return path


@pytest.fixture
def plan(profile: Path, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    loaded = Profile.load(profile)
    quiet = loaded.replace(provenance=loaded.provenance.replace(conditions=None))
    Plan.of(quiet, [2, 2], generate("zb-h1", 2, 4)).save(path)
    return path


def test_a_profile_has_the_shape_and_the_source_of_its_inputs(profile: Path, file: Path) -> None:
    workload = Profile.load(profile).workload
    assert (workload.micro_batch_size, workload.sequence_length) == (4, 1)
    assert workload.inputs == f"{file}:batch"


def test_profiling_makes_one_micro_batch(file: Path, synth: Synth, tmp_path: Path) -> None:
    made = ("--inputs", f"{file}:once", "--iters", "1", "--warmup", "0", "--device", "cpu")
    ended = synth("profile", f"{file}:layers", *made, "-o", tmp_path / "profile.json")
    assert ended.code == 0, ended.stderr


def first_loss(file: Path) -> float:
    """The mean loss of four micro-batches, by plain autograd's forward."""
    layers = build_model(ModelSpec(f"{file}:layers"), seed=0).layers
    chain, source = LayerChain(list(layers.values())), InputFunction(f"{file}:batch", seed=0)
    batches = [source.of(number) for number in range(4)]
    losses: list[Tensor] = [chain(batch.inputs, targets=batch.targets) for batch in batches]
    return torch.stack(losses).mean().item()


def test_a_run_trains_on_what_the_function_makes(
    plan: Path, file: Path, synth: Synth, tmp_path: Path
) -> None:
    options = ("--model", f"{file}:layers", "--inputs", f"{file}:batch", "--steps", "3")
    ended = synth("run", plan, *options, "--device", "cpu", "-o", tmp_path / "run.json")
    assert ended.code == 0, ended.stderr
    written = json.loads((tmp_path / "run.json").read_text())
    assert mistakes(schema_of(RunFile), written) == []
    assert RunFile.load(tmp_path / "run.json").to_data() == written
    assert "samples/s" in ended.stdout
    losses = written["losses"]
    assert len(losses) == 3
    assert losses[0] == pytest.approx(first_loss(file), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "the plan names a function that makes its inputs"),
        (("--inputs", "{file}:batch", "--data", "{file}"), "are both given"),
        (("--data", "{file}"), "the plan was profiled with the inputs of"),
        (("--inputs", "{file}:batch", "--epochs", "2"), "needs the number of micro-batches"),
        (("--inputs", "{file}:nothing"), "has no function 'nothing'"),
    ],
    ids=["none", "both", "data", "epochs", "missing"],
)
def test_wrong_sources_of_a_run_are_refused(
    options: tuple[str, ...], message: str, plan: Path, file: Path, synth: Synth
) -> None:
    given = (option.format(file=file) for option in options)
    ended = synth("run", plan, "--model", f"{file}:layers", *given)
    assert (ended.code, ended.stdout) == (2, "")
    assert message in ended.stderr and ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--inputs", "{file}:batch", "--seq-len", "8"), "leave --seq-len out"),
        (("--inputs", "{file}:lists"), "layer 'Patches.0', called as layer(x) with x of shape"),
        (("--inputs", "gpt"), "write path/to/file.py:function"),
    ],
    ids=["shape", "misfit", "address"],
)
def test_wrong_inputs_of_a_profile_are_refused(
    options: tuple[str, ...], message: str, file: Path, synth: Synth, tmp_path: Path
) -> None:
    given = (option.format(file=file) for option in options)
    ended = synth("profile", f"{file}:layers", *given, "-o", tmp_path / "x.json", "--device", "cpu")
    assert (ended.code, ended.stdout) == (2, "")
    assert message in ended.stderr.splitlines()[-1]


class Whole(LayerChain):
    """All layers as if they were the last one."""

    def forward(self, *inputs: Any, targets: Any = None) -> Any:
        *given, targets = inputs
        loss: Tensor = super().forward(*given, targets=targets)
        return loss


def test_layers_of_a_program_add_up_to_what_the_stage_holds(file: Path) -> None:
    layers = list(build_model(ModelSpec(f"{file}:layers"), seed=0).layers.values())
    batch = InputFunction(f"{file}:batch").of(0)
    profile = profile_layers(layers, *batch, warmup=0, iterations=1, name="images")
    assert (profile.name, profile.workload.runnable) == ("images", False)
    kinds = [layer.profile for layer in profile.layers]
    assert kinds == ["Patches.0", "Block.1", "Block.1", "Head.3"]
    for parameter in (p for layer in layers for p in layer.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    real = held_bytes(Sample(Whole(layers), *batch, is_first=True))
    [added] = partition_costs(profile, [4]).stages
    assert added.saved_bytes == pytest.approx(real.saved_bytes, abs=256)
    assert added.saved_w_bytes == pytest.approx(real.saved_w_bytes, abs=256)
