"""A whole model in a loop of one's own: pipelines beside each other, plain or under FSDP2."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import synth
from synth.families import generate
from synth.integrations import RankModel, loss_on_all_ranks, rank_layers
from synth.runtime.profiling.profile_model import profile_layers
from synth.schedule.files.plan_file import Plan
from tests.runtime.pretrained.tiny_models import batch, load, make, saved

pytest.importorskip("transformers")

RATE, STEPS = 0.3, 3
IDS, TARGETS = batch(0)


def train(rank: int, world_size: int, text: str, kind: str, way: str, folder: str) -> list[float]:
    plan, own = Plan.from_json(text), make(kind)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    with synth.empty_parameters():
        model = type(own)(own.config).train()
    layers = synth.cut_model(model, IDS[:1], TARGETS[:1], check=False)
    if way == "fsdp":
        for layer in rank_layers(plan, layers, mesh["pp"].get_local_rank()):
            fully_shard(layer, mesh=mesh["dp"])
    peers = mesh["dp"] if way == "plain" else None
    pipeline = synth.Pipeline(plan, layers, group=mesh["pp"], data_parallel=peers)
    synth.load_weights(f"{folder}/before", pipeline)
    optimizer = torch.optim.SGD(RankModel(pipeline).parameters(), RATE)
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(2 * step + mesh["dp"].get_local_rank())
        loss = pipeline.step(pipeline.split(inputs, targets=targets))
        pipeline.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(float(loss_on_all_ranks(pipeline, loss)))
    synth.save_weights(f"{folder}/after", pipeline)
    return losses


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("way", ["plain", "fsdp"])
def test_weights_are_those_of_the_uncut_model(
    kind: str, way: str, pool: Any, tmp_path: Path
) -> None:
    model = saved(kind, tmp_path / "before")
    layers = synth.cut_model(make(kind), IDS[:1], TARGETS[:1], check=False)
    profile = profile_layers(layers, IDS[:1], TARGETS[:1], warmup=0, iterations=1)
    plan = Plan.of(profile, [2, 3], generate("zb-h1", 2, 2))
    losses = pool.run(train, 4, plan.to_json(), kind, way, str(tmp_path))

    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(STEPS):
        for replica in range(2):
            inputs, targets = batch(2 * step + replica)
            logits = model(inputs, use_cache=False).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            (loss / 2).backward()
            for ours in losses[2 * replica : 2 * replica + 2]:
                assert ours[step] == pytest.approx(loss.item(), rel=1e-4)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    found = load(kind, tmp_path / "after").state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4)
