"""A whole model is profiled, planned and run by two ranks, with the gradients of the uncut one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from synth.families import generate
from synth.profile.workload import Workload
from synth.runtime.input_function import InputFunction, spec_of
from synth.runtime.models.cut import Piece
from synth.runtime.models.cut.whole import loss_call
from synth.runtime.models.hugging_face import make_whole
from synth.runtime.models.user_function import import_function
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.seeds import seeded
from synth.schedule.files.plan_file import Plan

CPU = torch.device("cpu")
MICRO_BATCHES = 4
CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
DIFFUSION = """
import torch
from tests.runtime.cut.whole_models import DiT as build
def batch(number):
    draw = torch.Generator().manual_seed(number)
    x, t = torch.randn(2, 3, 8, 8, generator=draw), torch.rand(2, generator=draw)
    return (x, t, torch.randint(10, (2,), generator=draw)), torch.randn(2, 16, 12, generator=draw)
"""


def batch_of(workload: Workload, number: int) -> tuple[Any, Any]:
    if workload.inputs is not None:
        return tuple(InputFunction(workload.inputs).of(number))
    draw = torch.Generator().manual_seed(number)
    ids = torch.randint(64, (2, 9), generator=draw)
    return ids[:, :-1], ids[:, 1:]


def gradients_of(rank: int, size: int, plan: Plan) -> dict[str, Tensor]:
    """The gradients of a rank's parameters after a step, by their names in the whole model."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline
    from synth.runtime.training.building import build_stages

    workload = plan.workload
    built = build_stages(plan, rank, CPU, 0, model=workload.model, inputs=workload.inputs)
    pipeline = Pipeline(plan, built.stages, tied=built.tied)
    batches = [batch_of(workload, number) for number in range(MICRO_BATCHES)]
    inputs = [given if isinstance(given, tuple) else (given,) for given, _ in batches]
    pipeline.step(Batch(inputs=inputs, targets=[targets for _, targets in batches]))
    found: dict[str, Tensor] = {}
    for stage in built.stages.values():
        for piece in stage.layers:
            assert isinstance(piece, Piece)
            for name, parameter in piece.named_parameters():
                if parameter.grad is not None:
                    found[piece.original_name(name)] = parameter.grad
    return found


@pytest.mark.parametrize("name", ["llama", "dit"])
def test_two_ranks_have_the_gradients_of_the_whole_model(
    name: str, pool: Any, tmp_path: Path
) -> None:
    file = tmp_path / ("config.json" if name == "llama" else "diffusion.py")
    file.write_text(json.dumps(CONFIG) if name == "llama" else DIFFUSION)
    workload = Workload(
        model=f"hf:{file}" if name == "llama" else f"{file}:build",
        inputs=None if name == "llama" else f"{file}:batch",
        micro_batch_size=2,
        sequence_length=8 if name == "llama" else 1,
    )
    profile = profile_model(workload, CPU, warmup=0, iterations=1)
    assert len(profile.layer_profiles) == 3  # equal layers are measured once
    assert "from layer to layer goes" in (profile.provenance.notes or "")
    half = len(profile.layers) // 2
    plan = Plan.of(profile, [half, len(profile.layers) - half], generate("zb-h1", 2, MICRO_BATCHES))
    ours = pool.run(gradients_of, 2, plan)

    with seeded(0):
        spec = spec_of(workload, workload.model, workload.inputs)
        whole = make_whole(spec) if name == "llama" else import_function(workload.model)()
    for number in range(MICRO_BATCHES):
        (loss_call(whole)(*batch_of(workload, number)) / MICRO_BATCHES).backward()
    expected = {key: p.grad for key, p in whole.named_parameters() if p.grad is not None}
    assert expected.keys() == ours[0].keys() | ours[1].keys() - {"lm_head.weight"}
    for rank in ours:
        for key, gradient in rank.items():
            wanted = expected["model.embed_tokens.weight" if key == "lm_head.weight" else key]
            torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)
