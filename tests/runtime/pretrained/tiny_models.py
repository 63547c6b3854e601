"""Tiny models of transformers, saved as `save_pretrained` does."""

from pathlib import Path
from typing import Any

import torch

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SIZES),
    "gpt2": (
        "GPT2",
        {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
        | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
    "mixtral": ("Mixtral", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
"""The name of the class without what is common to all, and the fields of its config."""


def make(kind: str, **changes: Any) -> Any:
    """Make a model with random weights."""
    import transformers

    name, fields = CONFIGS[kind]
    head = "LMHeadModel" if kind == "gpt2" else "ForCausalLM"
    config = getattr(transformers, f"{name}Config")(**fields | changes)
    torch.manual_seed(7)
    return getattr(transformers, f"{name}{head}")(config).train()


def saved(kind: str, folder: Path, *, shard: str = "1GB", **changes: Any) -> Any:
    """Make a model, save it in a folder, and return it."""
    model = make(kind, **changes)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def load(kind: str, folder: Path, **keywords: Any) -> Any:
    """Load a model as transformers does; nothing may be missing or unexpected."""
    model = type(make(kind))
    found, info = model.from_pretrained(folder, output_loading_info=True, **keywords)
    assert not any(info.values()), info
    return found


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token ids and the targets of a micro-batch of two sequences."""
    draw = torch.Generator().manual_seed(number)
    ids = torch.randint(64, (2, 9), generator=draw)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
