"""Hugging Face's models and layers, with F, B and W of several micro-batches interleaved."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.families import generate
from synth.profile.workload import Workload
from synth.runtime.rank_result import RankResult
from synth.schedule.files.plan_file import Plan

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM

from tests.runtime.zoo import hugging_face
from tests.runtime.zoo.replay import replay

CASES = {case.name: case for case in hugging_face.CASES}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Kernels this small only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_autograds(name: str) -> None:
    replay(CASES[name], steps=2)


def test_the_names_are_distinct() -> None:
    assert len(CASES) == len(hugging_face.CASES)


class Partitioning(nn.Module):
    """One of two halves of a language model of transformers, with modules that both have."""

    def __init__(self, whole: Any, rank: int) -> None:
        super().__init__()
        self.rotary_emb = whole.model.rotary_emb
        self.layers = whole.model.layers[:1] if rank == 0 else whole.model.layers[1:]
        self.start = whole.model.embed_tokens if rank == 0 else nn.Identity()
        self.end = nn.Identity() if rank == 0 else nn.Sequential(whole.model.norm, whole.lm_head)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        positions = torch.arange(x.shape[1], device=x.device)[None]
        angles = self.rotary_emb(x, positions)
        for layer in self.layers:
            x = layer(x, position_embeddings=angles, position_ids=positions)
        return self.end(x)


def build_whole() -> Any:
    torch.manual_seed(0)
    sizes = hugging_face.config("llama", hugging_face.GROUPED, use_cache=False)
    return AutoModelForCausalLM.from_config(sizes)


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def step_cut(rank: int, size: int, name: str) -> dict[str, Tensor]:
    """The gradients of one rank's half, by the shape-finding trial and a split schedule."""
    from synth.runtime.pipeline import Pipeline

    module = Partitioning(build_whole(), rank)
    pipeline = Pipeline(generate(name, size, 4), module, loss=next_token_loss)
    ids = torch.arange(48).reshape(8, 6) % hugging_face.WORDS
    for _ in range(2):
        pipeline.step(pipeline.split(ids[:, :-1], targets=ids[:, 1:]))
    return {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


def test_a_llama_cut_in_two_has_the_gradients_of_a_whole_one(pool: Any) -> None:
    halves = pool.run(step_cut, 2, "zb-h1")
    whole = build_whole()
    ids = torch.arange(48).reshape(8, 6) % hugging_face.WORDS
    for _ in range(2):
        next_token_loss(whole(ids[:, :-1]).logits, ids[:, 1:]).backward()
    for rank, mine in enumerate(halves):
        wanted = dict(Partitioning(whole, rank).named_parameters())
        assert mine.keys() == wanted.keys()
        for name, gradient in mine.items():
            torch.testing.assert_close(gradient, wanted[name].grad, rtol=1e-4, atol=1e-6)


SHARING = """
import torch
from torch import nn
from transformers import AutoConfig
from transformers.models.albert.modeling_albert import AlbertLayer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
class Rotated(nn.Module):
    def __init__(self, config, index, rotary_emb):
        super().__init__()
        self.inner, self.rotary_emb = LlamaDecoderLayer(config, index), rotary_emb
    def forward(self, x):
        positions = torch.arange(x.shape[1], device=x.device)[None]
        angles = self.rotary_emb(x, positions)
        return self.inner(x, position_embeddings=angles, position_ids=positions)
class Again(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block
    def forward(self, x):
        return self.block(x)
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(16, 256)
    def forward(self, x, targets):
        return nn.functional.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())
def sized(kind):
    return AutoConfig.for_model(
        kind, vocab_size=256, hidden_size=16, embedding_size=16, intermediate_size=24,
        num_attention_heads=4, num_key_value_heads=2, head_dim=4, attn_implementation="eager",
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
def rotary():
    config = sized("llama")
    shared = LlamaRotaryEmbedding(config)
    return [nn.Embedding(256, 16), *(Rotated(config, i, shared) for i in range(4)), Head()]
def albert():
    block = AlbertLayer(sized("albert"))
    return [nn.Embedding(256, 16), *(Again(block) for _ in range(4)), Head()]
"""


def train_own(rank: int, size: int, plan: Plan, model: str, data: Path) -> RankResult:
    """Two steps of `synth run` on one rank."""
    from synth.run_options.train_options import TrainOptions
    from synth.runtime.training.trainer import RankTrainer
    from synth.runtime.world import World

    world = World(rank, size, torch.device("cpu"), "gloo", "here", 2)
    options = TrainOptions(data=data, steps=2, model=model, clip_norm=None)
    return RankTrainer(plan, plan.check()[0], options, world).train()


@pytest.mark.parametrize("shared", ["rotary", "albert"])
def test_layers_that_share_a_module_train_alike_in_one_stage_and_in_two(
    shared: str, pool: Any, tmp_path: Path
) -> None:
    from synth.runtime.profiling.profile_model import profile_model

    file, data = tmp_path / "sharing.py", tmp_path / "data.txt"
    file.write_text(SHARING)
    data.write_text("the quick brown fox " * 100)
    model = f"{file}:{shared}"
    workload = Workload(model=model, micro_batch_size=2, sequence_length=8)
    profile = profile_model(workload, torch.device("cpu"), warmup=0, iterations=1)
    losses = []
    for sizes in ([6], [3, 3]):
        plan = Plan.of(profile, sizes, generate("1f1b", len(sizes), 2))
        losses.append(pool.run(train_own, len(sizes), plan, model, data)[-1].losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
