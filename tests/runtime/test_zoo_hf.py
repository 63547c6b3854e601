"""Hugging Face's models and layers, with F, B and W of several micro-batches interleaved."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.families import generate

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
