"""Layers that a user's function divides, or a model of transformers by its own plan."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from synth.errors import SynthError
from synth.profile import Profile
from synth.profile.mesh import Mesh
from synth.profile.workload import Workload
from tests.runtime.gloo_pool import GlooPool
from tests.runtime.training.test_tensor_parallel_runs import (
    CPU,
    begin,
    saved,
    train,
    ways_to_train,
    whole,
    without_groups,
)
from tests.sweep import sweep

CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}  # fmt: skip

OWN = '''
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.register_buffer("mean", torch.zeros(()))
    def forward(self, x):
        return x + self.down(self.up(x).tanh())

class Centred(Mlp):
    def forward(self, x):
        hidden = self.up(x)
        self.mean.lerp_(hidden.detach().mean(), 0.1)
        return x + self.down((hidden - self.mean).tanh())

class Counted(Mlp):
    def forward(self, x):
        self.mean += 1
        return super().forward(x)

class Loss(nn.Module):
    def forward(self, x, targets):
        return nn.functional.cross_entropy(x.flatten(0, 1), targets.flatten() % 8)

class Unseeded(Mlp):
    """Its numbers are not of torch's generator."""
    def __init__(self):
        super().__init__()
        self.register_parameter("scale", nn.Parameter(torch.rand(3, generator=unseeded())))
        self.register_buffer("mask", torch.rand(3, 2, generator=unseeded()).t() > 0.5)
    def forward(self, x):
        return super().forward(x) * self.scale.sum()

def unseeded():
    generator = torch.Generator()
    generator.seed()
    return generator

def drawn_anew():
    return [nn.Embedding(128, 8), Unseeded(), Loss()]

class Narrow(Mlp):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 7), nn.Linear(7, 8)

def narrow():
    return [nn.Embedding(128, 8), Narrow(), Loss()]

def counted():
    return [nn.Embedding(128, 8), Counted(), Loss()]

def centred():
    return [nn.Embedding(128, 8), Centred(), Loss()]

def divide(layer, mesh):
    if isinstance(layer, Mlp):
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

def nothing(layer, mesh):
    pass

def slice_buffer(layer, mesh):
    if isinstance(layer, Mlp):
        layer.mean = torch.zeros(2)

def drop(layer, mesh):
    if isinstance(layer, Mlp):
        layer.up = nn.Linear(8, 12, bias=False)
'''


def measure(rank: int, size: int, model: str, address: str | None) -> tuple[str, list[str]]:
    """A profile and what was told, or an error."""
    from synth.runtime.profiling.profile_model import profile_model
    from synth.runtime.profiling.rank_processes import RankProcesses

    begin()
    told: list[str] = []
    workload = Workload.model_validate(
        {
            "model": model, "micro_batch_size": 2, "sequence_length": 8,
            "group": {"tensor": size},
        }
    )  # fmt: skip
    processes = RankProcesses.of_world(CPU, address)
    try:
        profile = profile_model(
            workload, CPU, warmup=0, iterations=1, processes=processes, tell=told.append
        )
    except SynthError as error:
        return str(error), told
    return json.dumps(profile.to_data()), told


@pytest.mark.parametrize(
    ("model", "function", "message"),
    [
        ("counted", "nothing", "no parameter of any layer is divided, so each process"),
        ("counted", "slice_buffer", "made mean of a Counted a plain tensor of shape [2] in place"),
        ("counted", "drop", "drop removed up.bias of a Counted; divide the tensors that"),
        ("narrow", "divide", "divides up.weight of a Narrow, of shape [7, 8], over 2 processes in"),
        ("centred", "divide", "'Centred.1', as it is divided, has another value of buffer mean on"),
    ],
)
def test_a_function_that_divides_otherwise_than_runs_can_is_refused(
    pool: GlooPool, tmp_path: Path, model: str, function: str, message: str
) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    for error, _ in pool.run(measure, 2, f"{file}:{model}", f"{file}:{function}"):
        assert message in error


def test_layers_that_stay_whole_are_told(pool: GlooPool, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    for text, told in pool.run(measure, 2, f"{file}:counted", f"{file}:divide"):
        Profile.from_json(text)
        assert [each.endswith("; whole on each process") for each in told[:2]] == [True, False]


def divided(rank: int, size: int, model: str, address: str) -> list[Tensor]:
    """The values of layers on this process, shards in full."""
    from torch.distributed.device_mesh import init_device_mesh

    from synth.runtime.models import ModelSpec, build_model
    from synth.runtime.models.tensor_parallel import divide_layers

    begin()
    layers = build_model(ModelSpec(model), seed=0).layers.values()
    divide_layers(layers, init_device_mesh("cpu", (size,), mesh_dim_names=("tp",)), address)
    return [whole(t).detach() for x in layers for t in (*x.parameters(), *x.buffers())]


def test_processes_begin_with_equal_values_whatever_makes_them(
    pool: GlooPool, tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    one, other = pool.run(divided, 2, f"{file}:drawn_anew", f"{file}:divide")
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def hugging_face(folder: Path, **more: Any) -> str:
    pytest.importorskip("transformers")
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG | more))
    return f"hf:{path}"


def test_a_model_of_transformers_is_divided_by_its_own_plan(
    pool: GlooPool, tmp_path: Path, text: Path
) -> None:
    found, _ = pool.run(measure, 2, hugging_face(tmp_path), None)[0]
    profile = Profile.from_json(found)
    matrices = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24
    sizes = {name: layer.parameter_bytes for name, layer in profile.layer_profiles.items()}
    assert sizes == {
        "model.embed_tokens": 4 * 128 * 16,
        "model.layers.0": 4 * (matrices // 2 + 2 * 16),
        "lm_head": 4 * (128 * 16 // 2 + 16),
    }
    path, single = tmp_path / "plan.json", tmp_path / "single.json"
    without_groups(saved(profile, "zb-h1", path)).save(single)
    options = ways_to_train(text, model=profile.workload.model)
    wanted = pool.run(train, 2, single, options)[0][0]
    for losses, _ in pool.run(train, 4, path, options):
        assert losses == pytest.approx(wanted, rel=1e-5)


# Norms of the queries and keys of a process's heads stay whole.
QWEN3 = ("qwen3", "Qwen3ForCausalLM", 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24, 2 * 16 + 2 * 4)
# The outputs of packed matrices are gathered, so that each process has all heads.
PHI3 = ("phi3", "Phi3ForCausalLM", 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24, 2 * 16)


@pytest.mark.parametrize(
    ("kind", "architecture", "divided", "whole", "schedule"),
    sweep([(*QWEN3, "1f1b"), (*PHI3, "zb-h1"), (*QWEN3, "zb-h1"), (*PHI3, "1f1b")], daily=2),
)
def test_head_norms_and_packed_columns_are_divided_as_the_plan_says(
    pool: GlooPool,
    tmp_path: Path,
    text: Path,
    kind: str,
    architecture: str,
    divided: int,
    whole: int,
    schedule: str,
) -> None:
    more = {"model_type": kind, "architectures": [architecture], "pad_token_id": 0}
    more |= {"head_dim": 4} if kind == "qwen3" else {}
    found, _ = pool.run(measure, 2, hugging_face(tmp_path, **more), None)[0]
    profile = Profile.from_json(found)
    layer = profile.layer_profiles["model.layers.0"]
    assert layer.parameter_bytes == 4 * (divided // 2 + whole)
    path, single = tmp_path / "plan.json", tmp_path / "single.json"
    without_groups(saved(profile, schedule, path)).save(single)
    options = ways_to_train(text, model=profile.workload.model)
    wanted = pool.run(train, 2, single, options)[0][0]
    for losses, _ in pool.run(train, 4, path, options):
        assert losses == pytest.approx(wanted, rel=1e-5)


def test_packed_columns_need_no_heads_that_processes_share_equally(
    pool: GlooPool, tmp_path: Path
) -> None:
    more = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "pad_token_id": 0}
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "num_key_value_heads": 3}
    found, _ = pool.run(measure, 2, hugging_face(tmp_path, **more, **sizes), None)[0]
    assert Profile.from_json(found).layer_profiles


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"num_key_value_heads": 1}, "has 1 heads of keys and values, which 2 processes"),
        ({"intermediate_size": 23}, "has 23 out_features of model.layers.*.mlp.gate_proj, which"),
        ({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]},
         "own plan divides model.layers.*.mlp.experts in the style moe_tp_experts, which synth"),
    ],
    ids=["heads", "columns", "style"],
)  # fmt: skip
def test_what_the_plan_of_a_model_of_transformers_cannot_divide_is_refused(
    pool: GlooPool, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    for error, _ in pool.run(measure, 2, hugging_face(tmp_path, **more), None):
        assert message in error


def test_the_first_failure_is_told_and_not_what_it_causes_on_others(tmp_path: Path) -> None:
    from synth.runtime.training.post_mortem import explain, hopeless, write_failure_report

    write_failure_report(tmp_path, 1, SynthError("divide failed: ValueError: 7 heads"), 2)
    write_failure_report(tmp_path, 0, SynthError("divide failed: connection closed by peer"), 2)
    lowered: Any = None  # for places in a step, which neither names
    for error in (explain(tmp_path, lowered, {0: 2, 1: 2}, Mesh(1, 2, 2)), hopeless(tmp_path, 4)):
        assert str(error) == "divide failed: ValueError: 7 heads"
