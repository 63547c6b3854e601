"""A `Pipeline` loads weights from folders and saves them; wrong folders are refused."""

import copy
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict

import synth
from synth.errors import Mismatch, SynthError
from synth.families import generate
from synth.run_options.weight_files import WeightFormat
from synth.runtime.checkpoint.tensor_names import own_tensors
from synth.runtime.execution.transport.in_process.ranks import run_ranks
from synth.runtime.models.empty import has_empty_parameters
from synth.runtime.pretrained import loading, saving
from synth.runtime.profiling.profile_model import profile_layers
from synth.schedule.files.plan_file import Plan
from tests.runtime.pretrained.tiny_models import batch, load, make, saved

pytest.importorskip("transformers")

IDS, TARGETS = batch(0)


def made_empty(kind: str) -> Any:
    """Cut a model whose parameters have no values."""
    own = make(kind)
    with synth.empty_parameters():
        model = type(own)(own.config).train()
    assert all(parameter.is_meta for parameter in model.parameters())
    return synth.cut_model(model, IDS, TARGETS, check=False)


def plan_of(kind: str) -> Plan:
    layers = synth.cut_model(make(kind), IDS, TARGETS, check=False)
    profile = profile_layers(layers, IDS, TARGETS, warmup=0, iterations=1)
    return Plan.of(profile, [2, len(profile.layers) - 2], generate("1f1b", 2, 2))


@pytest.mark.parametrize("kind", ["gpt2", "mixtral"])
def test_each_rank_holds_its_own_layers_and_all_go_back(kind: str, tmp_path: Path) -> None:
    model = saved(kind, tmp_path / "before", shard="20KB")
    plan, layers = plan_of(kind), made_empty(kind)
    inputs, targets = torch.cat([IDS, IDS]), torch.cat([TARGETS, TARGETS])

    def train(group: Any) -> tuple[Any, int]:
        own = copy.deepcopy(layers)
        pipeline = synth.Pipeline(plan, own, group=group, timeout_s=60)
        synth.load_weights(tmp_path / "before", pipeline)
        loss = pipeline.step(pipeline.split(inputs, targets=targets))
        synth.save_weights(tmp_path / "after", pipeline)
        return loss, sum(not has_empty_parameters(layer) for layer in own)

    (_, first), (loss, last) = run_ranks(2, train)
    assert first + last == len(layers)  # of the others a rank has no values
    logits = model(IDS, use_cache=False).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), TARGETS.flatten())
    assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-5)
    found = load(kind, tmp_path / "after").state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(found[name], tensor), name


def refused(folder: Path, kind: str = "llama") -> str:
    """Return why two ranks refuse a folder; both say the same."""
    plan, layers = plan_of(kind), made_empty(kind)

    def attempt(group: Any) -> str:
        pipeline = synth.Pipeline(plan, copy.deepcopy(layers), group=group, timeout_s=60)
        with pytest.raises(SynthError) as refusal:
            synth.load_weights(folder, pipeline)
        return str(refusal.value)

    first, second = run_ranks(2, attempt)
    assert first == second
    return first


def test_a_folder_of_another_model_is_refused_by_the_names_of_all_ranks(tmp_path: Path) -> None:
    saved("llama", tmp_path / "wide", intermediate_size=40)
    said = refused(tmp_path / "wide")
    assert "model.layers.0.mlp.gate_proj.weight is [40, 32], needed [48, 32]" in said
    assert "and 5 more" in said  # three matrices in each of three layers, on two ranks
    saved("llama", tmp_path / "deep", num_hidden_layers=4)
    assert "unexpected: model.layers.3." in refused(tmp_path / "deep")
    saved("llama", tmp_path / "flat", num_hidden_layers=2)
    assert "missing: model.layers.2." in refused(tmp_path / "flat")
    saved("gpt2", tmp_path / "gpt2")
    assert re.search("missing: .*; unexpected: transformer.h.0", refused(tmp_path / "gpt2"))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    assert "there is no folder" in refused(tmp_path / "nowhere")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "pytorch_model.bin is a pickle, which is not read" in refused(tmp_path)
    saved("llama", tmp_path / "part", shard="20KB")
    index = tmp_path / "part" / "model.safetensors.index.json"
    lost = tmp_path / "part" / json.loads(index.read_text())["weight_map"]["lm_head.weight"]
    lost.write_bytes(lost.read_bytes()[:-100])
    assert f"{lost} is damaged" in refused(tmp_path / "part")
    lost.unlink()
    assert f"names {lost.name!r}, and there is no such file" in refused(tmp_path / "part")
    index.write_text("{}")
    assert "is no index of safetensors files" in refused(tmp_path / "part")


def test_a_folder_with_contents_is_not_written_to(tmp_path: Path) -> None:
    saved("llama", tmp_path / "before")
    plan, layers = plan_of("llama"), made_empty("llama")

    def attempt(group: Any) -> None:
        pipeline = synth.Pipeline(plan, copy.deepcopy(layers), group=group, timeout_s=60)
        with pytest.raises(SynthError, match="has contents already"):
            synth.save_weights(tmp_path / "before", pipeline)
        with pytest.raises(SynthError, match="needs ranks that are processes"):
            synth.save_weights(tmp_path / "new", pipeline, format="dcp")

    run_ranks(2, attempt)
    assert [path.name for path in tmp_path.iterdir()] == ["before"]  # nothing half-written


def test_a_model_without_values_is_not_compared_with_its_pieces() -> None:
    with synth.empty_parameters():
        model = type(make("llama"))(make("llama").config)
    with pytest.raises(SynthError, match="give check=False"):
        synth.cut_model(model, IDS, TARGETS)


def test_other_modules_need_names(tmp_path: Path) -> None:
    from torch import nn

    stages = [nn.Linear(4, 4), nn.Linear(4, 4)]

    def attempt(group: Any) -> None:
        pipeline = synth.Pipeline(
            generate("1f1b", 2, 2), stages[group.rank], group=group, loss=nn.functional.mse_loss
        )
        with pytest.raises(SynthError, match="give layers="):
            synth.save_weights(tmp_path / "new", pipeline)
        synth.save_weights(
            tmp_path / "new", pipeline, layers={f"layers.{group.rank}": stages[group.rank]}
        )
        for parameter in stages[group.rank].parameters():
            parameter.data.zero_()
        with pytest.raises(Mismatch, match="missing: other"):
            synth.load_weights(
                tmp_path / "new", pipeline, layers={f"other.{group.rank}": stages[group.rank]}
            )
        synth.load_weights(
            tmp_path / "new", pipeline, layers={f"layers.{group.rank}": stages[group.rank]}
        )

    before = copy.deepcopy(stages)
    run_ranks(2, attempt)
    for ours, whole in zip(stages, before, strict=True):
        assert torch.equal(ours.weight, whole.weight)


@pytest.mark.parametrize("is_nested", [True, False])
def test_the_checkpoint_of_a_whole_training_gives_the_model_alone(
    is_nested: bool, tmp_path: Path
) -> None:
    model = make("gpt2")
    weights = model.state_dict()
    own = {"model": weights} if is_nested else weights  # torchtitan flattens the model's names
    moments = {f"state.{name}.exp_avg": torch.ones(2) for name in weights}
    whole = {**own, "optimizer": moments, "train_state": {"step": 3, "note": "text"}}
    _save_state_dict(whole, FileSystemWriter(tmp_path / "dcp"), no_dist=True)
    plan, layers = plan_of("gpt2"), made_empty("gpt2")

    def read(group: Any) -> None:
        pipeline = synth.Pipeline(plan, copy.deepcopy(layers), group=group, timeout_s=60)
        synth.load_weights(tmp_path / "dcp", pipeline)
        synth.save_weights(tmp_path / "hf", pipeline)

    run_ranks(2, read)
    found = load("gpt2", tmp_path / "hf").state_dict()
    for name, tensor in weights.items():
        assert torch.equal(found[name], tensor), name


def test_a_distributed_checkpoint_that_names_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(print))
    assert "it names builtins.print" in refused(tmp_path)


class Adapted(torch.nn.Module):
    """A linear module with an adapter beside it."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base_layer = base
        self.down = torch.nn.Linear(base.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.base_layer(x) + self.up(self.down(x))
        return y


def test_a_changed_model_of_transformers_is_not_exported_as_a_plain_one(tmp_path: Path) -> None:
    model = make("llama")
    attention = model.model.layers[1].self_attn
    attention.q_proj = Adapted(attention.q_proj)
    layers = {piece.name: piece for piece in synth.cut_model(model, IDS, TARGETS, check=False)}
    with pytest.raises(SynthError, match=r"LlamaForCausalLM has no .*base_layer.* and 2 more"):
        saving.save_weights(tmp_path / "out", layers)
    assert not list(tmp_path.iterdir())
    saving.save_weights(tmp_path / "out", layers, kind=WeightFormat.DCP)


def test_a_tie_that_the_config_does_not_have_is_written_under_all_names(tmp_path: Path) -> None:
    model = make("llama")
    model.lm_head.weight = model.model.embed_tokens.weight
    layers = {piece.name: piece for piece in synth.cut_model(model, IDS, TARGETS, check=False)}
    saving.save_weights(tmp_path / "out", layers)
    found = load("llama", tmp_path / "out")
    assert torch.equal(found.lm_head.weight, model.lm_head.weight)
    loading.load_weights(tmp_path / "out", layers)


def test_a_subclass_that_needs_more_than_its_config_is_refused_in_a_line(tmp_path: Path) -> None:
    made = make("llama")

    class Own(type(made)):  # type: ignore[misc]
        def __init__(self, config: Any, width: int) -> None:
            super().__init__(config)

    model = Own(made.config, 3).train()
    layers = {piece.name: piece for piece in synth.cut_model(model, IDS, TARGETS, check=False)}
    with pytest.raises(SynthError, match="Own cannot be made of its config alone"):
        saving.save_weights(tmp_path / "out", layers)


class Fused(torch.nn.Module):
    """A matrix that files have as two, as torchtitan's attention has its three."""

    def __init__(self) -> None:
        super().__init__()
        self.both = torch.nn.Parameter(torch.randn(4, 4))
        self._register_state_dict_hook(self._divide)
        self._register_load_state_dict_pre_hook(self._join)

    @staticmethod
    def _divide(module: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
        both = state.pop(f"{prefix}both")
        state[f"{prefix}up"], state[f"{prefix}down"] = (x.clone() for x in both.chunk(2))

    @staticmethod
    def _join(state: dict[str, Any], prefix: str, *_: Any) -> None:
        parts = [state.pop(f"{prefix}{name}") for name in ("up", "down")]
        state[f"{prefix}both"] = torch.cat(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.both


def test_parts_that_a_hook_makes_of_a_parameter_go_into_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    before, after = Fused(), Fused()
    assert not torch.equal(before.both, after.both)
    saving.save_weights(tmp_path / "dcp", {"layer": before}, kind=WeightFormat.DCP)
    loading.load_weights(tmp_path / "dcp", {"layer": after})
    assert torch.equal(before.both, after.both)
    assert [*own_tensors(after)] == ["both"]  # as checkpoints have it
