"""The profiler's bytes of a layer equal those that a stage of such layers really holds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.workload import Workload
from synth.runtime.execution.stage.layer_chain import LayerChain
from synth.runtime.models import ModelSpec, build_model, materialise
from synth.runtime.models.user_function import import_function
from synth.runtime.profiling import layer_source
from synth.runtime.profiling.held_bytes import held_bytes
from synth.runtime.profiling.layer_source import LayerSource
from synth.runtime.profiling.profile_model import profile_layers, profile_model, reserve_advice
from synth.runtime.profiling.sample import Sample

CPU = torch.device("cpu")
TINY = {"vocabulary_size": 64, "width": 32, "num_blocks": 3, "num_heads": 2, "context_length": 16}


def tiny(model: str = "gpt", **changes: int | bool) -> Workload:
    return Workload(model=model, arguments=TINY | changes, micro_batch_size=2, sequence_length=16)


def profiled(workload: Workload) -> Profile:
    return profile_model(workload, CPU, warmup=1, iterations=3)


def test_what_the_allocator_does_not_hold_is_advised_as_a_reserve() -> None:
    said = reserve_advice(3_210_000_000, 2_000_000_000)
    assert "1.21 GB in use beyond" in said and "--mem-reserve 1.3GB" in said
    assert "--mem-reserve 0.0GB" in reserve_advice(1, 2)


class Whole(LayerChain):
    """All layers as if they were the last one."""

    def forward(self, *inputs: Any, targets: Any = None) -> Any:
        x, targets = inputs
        loss: Tensor = super().forward(x, targets=targets)
        return loss


@pytest.mark.parametrize("checkpoint", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_adding_up_layers_gives_what_the_stage_really_holds(model: str, checkpoint: bool) -> None:
    arguments = {"checkpoint": checkpoint} | ({"num_kv_heads": 1} if model == "llama" else {})
    workload = tiny(model, **arguments)
    profile = profiled(workload)
    layers = list(build_model(ModelSpec(model, workload.arguments), seed=0).layers.values())
    for parameter in (p for layer in layers for p in layer.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    tokens = torch.randint(64, (2, 16))
    whole = Sample(Whole(layers), tokens, tokens, is_first=True)
    real, [added] = held_bytes(whole), partition_costs(profile, [len(layers)]).stages

    assert added.saved_bytes == pytest.approx(real.saved_bytes, rel=0.01)
    assert added.saved_w_bytes == pytest.approx(real.saved_w_bytes, rel=0.01)
    for kind in (OpKind.F, OpKind.B, OpKind.W, OpKind.BW):
        _assert_covers(added.rise_bytes[kind], real.rise_bytes[kind])


def _assert_covers(predicted: int, real: int) -> None:
    """Never less than the truth (but for a few scalars), and not much more."""
    assert real - 256 <= predicted <= 1.15 * real + 8192


def test_identical_layers_are_measured_once_and_shared() -> None:
    profile = profiled(tiny())
    assert [layer.profile for layer in profile.layers] == [
        "embedding", "block.0", "block.0", "block.0", "head",
    ]  # fmt: skip


def test_b_leaves_no_more_than_f_kept_in_a_block() -> None:
    block = profiled(tiny()).layer_profiles["block.0"]
    assert block.saved_w_bytes <= block.saved_bytes
    assert 0.98 < block.deferred_share < 1.0  # all but the norms', which autograd does


class Recurrent(nn.Module):
    """Of the GRU's gradients autograd computes all at once."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.cell = nn.Linear(8, 8), nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return (self.out(self.cell(x)[0]) - targets).square().mean()


def test_sub_modules_whose_weight_gradients_b_computes_are_named() -> None:
    told: list[str] = []
    layers, x = [nn.Linear(8, 8), Recurrent()], torch.randn(2, 3, 8)
    profile_layers(layers, x, x, warmup=0, iterations=1, tell=told.append)
    assert "; B computes" not in told[0]
    assert told[1].endswith("; B computes the weight gradients of cell")


def test_a_checkpointed_block_keeps_only_its_input_after_f_and_more_after_b() -> None:
    block = profiled(tiny(checkpoint=True)).layer_profiles["block.0"]
    assert block.saved_bytes < block.output_bytes  # the input is held, but not its own
    assert block.input_until != OpKind.F
    assert block.saved_w_bytes > block.saved_bytes


def test_a_users_own_function_is_profiled_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Head(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.out = nn.Linear(8, 64)\n"
        "    def forward(self, x, targets):\n"
        "        return nn.functional.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())\n"
        "def layers(depth=2):\n"
        "    return [nn.Embedding(64, 8), *(nn.Linear(8, 8) for _ in range(depth)), Head()]\n"
    )
    workload = Workload(
        model=f"{file}:layers", arguments={"depth": 3}, micro_batch_size=2, sequence_length=4
    )
    profile = profiled(workload)
    assert len(profile.layers) == 5
    assert profile.layer_profiles[profile.layers[1].profile].parameter_bytes == (8 * 8 + 8) * 4


def test_a_model_without_a_loss_is_refused_with_what_was_needed(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\ndef layers():\n    return [nn.Embedding(64, 8), nn.Linear(8, 8)]\n"
    )
    workload = Workload(model=f"{file}:layers", micro_batch_size=2, sequence_length=4)
    with pytest.raises(SynthError, match=r"linear|Linear.*layer\(x, targets\)"):
        profiled(workload)


def test_a_layer_that_changes_its_input_in_place_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "inplace.py"
    file.write_text(
        "from torch import nn\n"
        "class Head(nn.Module):\n"
        "    def forward(self, x, targets):\n"
        "        return nn.functional.cross_entropy(x.flatten(0, 1), targets.flatten())\n"
        "def layers():\n"
        "    return [nn.Embedding(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 64), Head()]\n"
    )
    profile = profiled(Workload(model=f"{file}:layers", micro_batch_size=2, sequence_length=4))
    assert [layer.name.split(".")[0] for layer in profile.layers][1] == "ReLU"


YIELDED = """
import weakref
from torch import nn
MADE, ALIVE, MOST = 0, weakref.WeakSet(), 0
class Counted(nn.Module):
    def __init__(self, width):
        super().__init__()
        global MADE, MOST
        self.linear = nn.Linear(width, 64)
        if not self.linear.weight.is_meta:
            ALIVE.add(self)
            MADE, MOST = MADE + 1, max(MOST, len(ALIVE))
    def forward(self, x):
        return self.linear(x)
class Head(Counted):
    def forward(self, x, targets):
        return nn.functional.cross_entropy(self.linear(x).flatten(0, 1), targets.flatten())
def layers():
    yield nn.Embedding(64, 64)
    for _ in range(6):
        yield Counted(64)
    yield Head(64)
def tied():
    first = Counted(64)
    yield nn.Embedding(64, 64)
    yield first
    for _ in range(4):
        yield Counted(64)
    last = Counted(64)
    last.linear.weight = first.linear.weight
    yield last
    yield Head(64)
def wrong():
    yield Counted(64)
    yield "Counted"
def reading():
    layer = Counted(64)
    if layer.linear.weight.detach()[0, 0].item() < 2:  # fails without data, and is true with it
        raise ValueError("a bad weight")
    yield layer
"""


@pytest.fixture
def yielded(tmp_path: Path) -> Path:
    file = tmp_path / "yielded.py"
    file.write_text(YIELDED)
    return file


def globals_of(file: Path) -> dict[str, Any]:
    return import_function(f"{file}:layers").__globals__


def test_layers_that_a_function_yields_are_made_one_at_a_time(yielded: Path) -> None:
    workload = Workload(model=f"{yielded}:layers", micro_batch_size=2, sequence_length=4)
    profile = profiled(workload)
    assert [layer.profile for layer in profile.layers] == [
        "Embedding.0", *["Counted.1"] * 6, "Head.7"
    ]  # fmt: skip
    counts = globals_of(yielded)
    assert counts["MADE"] == 7 and counts["MOST"] <= 2  # the next one while one is dropped


@pytest.mark.parametrize(
    ("function", "recomputed", "message", "made"),
    [
        ("layers", "nothing", "no layer fits 'nothing'", 0),  # told from the layers without data
        ("wrong", None, "returned a str as layer 1", 0),
        ("reading", None, "failed: ValueError: a bad weight .*line 39", 1),
    ],
)
def test_a_mistake_in_yielded_layers_is_told_at_once(
    yielded: Path, function: str, recomputed: str | None, message: str, made: int
) -> None:
    workload = Workload(
        model=f"{yielded}:{function}",
        micro_batch_size=2,
        sequence_length=4,
        recomputed_layers=None if recomputed is None else (recomputed,),
    )
    with pytest.raises(SynthError, match=message):
        LayerSource.of(workload, seed=0)
    assert globals_of(yielded)["MADE"] == made


def test_a_rank_keeps_its_own_of_yielded_layers_and_their_ties(yielded: Path) -> None:
    built = build_model(ModelSpec(f"{yielded}:tied"), seed=0, indices=[0, 1])
    assert list(built.layers) == [0, 1]
    assert list(built.tied) == ["1.linear.weight"]
    assert globals_of(yielded)["MOST"] <= 3
    other = build_model(ModelSpec(f"{yielded}:tied"), seed=0, indices=[6, 7])
    assert torch.equal(other.tied["1.linear.weight"], built.tied["1.linear.weight"])


def test_a_built_in_model_has_data_in_measured_layers_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    def noted(layer: torch.nn.Module, seed: int, index: int) -> torch.nn.Module:
        made.append(index)
        return materialise(layer, seed, index)

    monkeypatch.setattr(layer_source, "materialise", noted)
    profiled(tiny())
    assert made == [0, 1, 4]
