"""GPT-2: learned positions, LayerNorm before each part, one product for q, k and v, GELU.

Shape suffixes: B batch, T time, D width, H heads, K width of a head, V vocabulary. Unlike GPT-2's,
the head has its own matrix, because the embedding may be on another rank.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .block import CheckpointedBlock
from .checks import check_divides, check_sizes, check_tokens
from .head import STD, Head


class GptEmbedding(nn.Module):
    """tokens_BT -> x_BTD: the sum of token and position embeddings."""

    def __init__(self, vocabulary_size: int, context_length: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary_size, width)
        self.position = nn.Embedding(context_length, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """GPT-2's initialisation."""
        nn.init.normal_(self.token.weight, std=STD)
        nn.init.normal_(self.position.weight, std=STD)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """x_BTD; SynthError if the input is not token ids or has too many."""
        check_tokens(tokens_BT, self.position.num_embeddings)
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD: Tensor = self.token(tokens_BT) + self.position(positions_T)
        return x_BTD


class GptBlock(CheckpointedBlock):
    """x_BTD -> x_BTD: causal self-attention, then the MLP, each added to its input."""

    def __init__(
        self, width: int, num_heads: int, num_blocks: int, checkpoint: bool = False
    ) -> None:
        super().__init__(checkpoint)
        self.num_heads, self.num_blocks = num_heads, num_blocks
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """GPT-2's initialisation: projections onto the residual are scaled down by the depth."""
        residual_std = STD / math.sqrt(2 * self.num_blocks)
        for linear in (self.qkv, self.attention_out, self.mlp_in, self.mlp_out):
            adds = linear in (self.attention_out, self.mlp_out)
            nn.init.normal_(linear.weight, std=residual_std if adds else STD)
            nn.init.zeros_(linear.bias)
        self.attention_norm.reset_parameters()
        self.mlp_norm.reset_parameters()

    def run(self, x_BTD: Tensor) -> Tensor:
        """The block itself."""
        x_BTD = x_BTD + self.attend(self.attention_norm(x_BTD))
        hidden_BTF = F.gelu(self.mlp_in(self.mlp_norm(x_BTD)), approximate="tanh")
        out_BTD: Tensor = x_BTD + self.mlp_out(hidden_BTF)
        return out_BTD

    def attend(self, x_BTD: Tensor) -> Tensor:
        """Causal self-attention."""
        qkv_BT3HK = self.qkv(x_BTD).unflatten(-1, (3, self.num_heads, -1))
        q_BHTK, k_BHTK, v_BHTK = qkv_BT3HK.transpose(1, 3).unbind(2)
        y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        out_BTD: Tensor = self.attention_out(y_BHTK.transpose(1, 2).flatten(2))
        return out_BTD


def gpt(
    vocabulary_size: int = 50257,
    width: int = 768,
    num_blocks: int = 12,
    num_heads: int = 12,
    context_length: int = 1024,
    checkpoint: bool = False,
) -> list[nn.Module]:
    """The embedding, the blocks and the head; SynthError for sizes that do not fit together."""
    check_sizes(
        vocabulary_size=vocabulary_size, width=width, num_blocks=num_blocks,
        num_heads=num_heads, context_length=context_length,
    )  # fmt: skip
    check_divides("num_heads", num_heads, "width", width)
    return [
        GptEmbedding(vocabulary_size, context_length, width),
        *(GptBlock(width, num_heads, num_blocks, checkpoint) for _ in range(num_blocks)),
        Head(nn.LayerNorm(width), vocabulary_size, width),
    ]
