"""Llama: RMSNorm before each part, rotary positions, grouped-query attention, SwiGLU, no biases.

Shape suffixes: B batch, T time, D width, H query heads, G key-value heads, K width of a head,
R half of it, F width of the MLP, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .block import CheckpointedBlock
from .checks import check_divides, check_sizes, check_tokens
from .head import STD, Head


class LlamaEmbedding(nn.Module):
    """tokens_BT -> x_BTD"""

    def __init__(self, vocabulary_size: int, context_length: int, width: int) -> None:
        super().__init__()
        self.context_length = context_length
        self.token = nn.Embedding(vocabulary_size, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal, as everywhere in this model."""
        nn.init.normal_(self.token.weight, std=STD)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """x_BTD; SynthError if the input is not token ids or has too many."""
        check_tokens(tokens_BT, self.context_length)
        x_BTD: Tensor = self.token(tokens_BT)
        return x_BTD


def rotate(x_BTHK: Tensor, cos_T1R: Tensor, sin_T1R: Tensor) -> Tensor:
    """Turn each pair (i, i + K/2) of a head's numbers by its position's angle."""
    a_BTHR, b_BTHR = x_BTHK.chunk(2, dim=-1)
    turned = (a_BTHR * cos_T1R - b_BTHR * sin_T1R, b_BTHR * cos_T1R + a_BTHR * sin_T1R)
    return torch.cat(turned, dim=-1)


def rotations(time: int, head_width: int, base: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos_T1R and sin_T1R on the device and in the dtype of `like`.

    Computed at each use: a table per block would be memory, and one shared by the blocks could
    not be cut into stages. Angles need float32 for positions in the thousands.
    """
    exponents_R = torch.arange(0, head_width, 2, device=like.device, dtype=torch.float32)
    positions_T = torch.arange(time, device=like.device, dtype=torch.float32)
    angles_TR = torch.outer(positions_T, base ** (-exponents_R / head_width))
    angles_T1R = angles_TR.unsqueeze(1)
    return angles_T1R.cos().to(like.dtype), angles_T1R.sin().to(like.dtype)


class LlamaBlock(CheckpointedBlock):
    """x_BTD -> x_BTD: causal grouped-query attention, then SwiGLU, each added to its input."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_kv_heads: int,
        hidden_width: int,
        rope_base: float,
        epsilon: float,
        checkpoint: bool = False,
    ) -> None:
        super().__init__(checkpoint)
        self.head_width, self.rope_base = width // num_heads, rope_base
        self.grouped = num_kv_heads != num_heads
        kv_width = num_kv_heads * self.head_width
        self.attention_norm = nn.RMSNorm(width, eps=epsilon)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_width, bias=False)
        self.v = nn.Linear(width, kv_width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, eps=epsilon)
        self.gate = nn.Linear(width, hidden_width, bias=False)
        self.up = nn.Linear(width, hidden_width, bias=False)
        self.down = nn.Linear(hidden_width, width, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal matrices, norms of one."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=STD)
        self.attention_norm.reset_parameters()
        self.mlp_norm.reset_parameters()

    def run(self, x_BTD: Tensor) -> Tensor:
        """The block itself."""
        x_BTD = x_BTD + self.attend(self.attention_norm(x_BTD))
        n_BTD = self.mlp_norm(x_BTD)
        hidden_BTF = F.silu(self.gate(n_BTD)) * self.up(n_BTD)
        out_BTD: Tensor = x_BTD + self.down(hidden_BTF)
        return out_BTD

    def attend(self, x_BTD: Tensor) -> Tensor:
        """Causal self-attention, in which groups of query heads share a key-value head."""
        q_BTHK, k_BTGK, v_BTGK = (
            linear(x_BTD).unflatten(-1, (-1, self.head_width))
            for linear in (self.q, self.k, self.v)
        )
        cos_T1R, sin_T1R = rotations(x_BTD.shape[1], self.head_width, self.rope_base, q_BTHK)
        y_BHTK = F.scaled_dot_product_attention(
            rotate(q_BTHK, cos_T1R, sin_T1R).transpose(1, 2),
            rotate(k_BTGK, cos_T1R, sin_T1R).transpose(1, 2),
            v_BTGK.transpose(1, 2),
            is_causal=True,
            enable_gqa=self.grouped,
        )
        out_BTD: Tensor = self.attention_out(y_BHTK.transpose(1, 2).flatten(2))
        return out_BTD


def llama(
    vocabulary_size: int = 32000,
    width: int = 512,
    num_blocks: int = 8,
    num_heads: int = 8,
    num_kv_heads: int = 0,
    hidden_width: int = 0,
    context_length: int = 2048,
    rope_base: float = 10000.0,
    epsilon: float = 1e-5,
    checkpoint: bool = False,
) -> list[nn.Module]:
    """The embedding, the blocks and the head; SynthError for sizes that do not fit together.

    `num_kv_heads` 0 means as many as `num_heads`; `hidden_width` 0 means 8/3 of the width,
    rounded up to a multiple of 64.
    """
    check_sizes(
        vocabulary_size=vocabulary_size, width=width, num_blocks=num_blocks,
        num_heads=num_heads, context_length=context_length,
    )  # fmt: skip
    kv_heads = num_kv_heads or num_heads
    hidden = hidden_width or -(-8 * width // (3 * 64)) * 64
    check_sizes(num_kv_heads=kv_heads, hidden_width=hidden)
    check_divides("2 * num_heads", 2 * num_heads, "width", width)
    check_divides("num_kv_heads", kv_heads, "num_heads", num_heads)
    return [
        LlamaEmbedding(vocabulary_size, context_length, width),
        *(
            LlamaBlock(width, num_heads, kv_heads, hidden, rope_base, epsilon, checkpoint)
            for _ in range(num_blocks)
        ),
        Head(nn.RMSNorm(width, eps=epsilon), vocabulary_size, width),
    ]
