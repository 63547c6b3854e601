"""Llama and Mixtral of Hugging Face's transformers, from configurations."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "use_cache": False,
}


# --- adapter


class Block(nn.Module):
    def __init__(self, layer: nn.Module, rotary: nn.Module) -> None:
        super().__init__()
        self.layer, self.rotary = layer, rotary

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None]
        return self.layer(x, position_embeddings=self.rotary(x, positions))


class Head(nn.Module):
    def __init__(self, norm: nn.Module, out: nn.Module) -> None:
        super().__init__()
        self.norm, self.out = norm, out

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        logits = self.out(self.norm(x))
        return logits if targets is None else loss(logits, targets)


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def layers_of(whole: LlamaForCausalLM | MixtralForCausalLM) -> list[nn.Module]:
    inner = whole.model
    blocks = [Block(layer, inner.rotary_emb) for layer in inner.layers]
    return [inner.embed_tokens, *blocks, Head(inner.norm, whole.lm_head)]


def llama() -> list[nn.Module]:
    return layers_of(LlamaForCausalLM(LlamaConfig(**SIZES)))


def mixtral() -> list[nn.Module]:
    experts: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return layers_of(MixtralForCausalLM(MixtralConfig(**SIZES, **experts)))


# --- data


def batch(number: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(256, (2, 33), generator=torch.Generator().manual_seed(number))
    return drawn[:, :-1], drawn[:, 1:]
