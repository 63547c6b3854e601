"""A Llama of one's own, whose rotary table is complex, as in Meta's code."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

WIDTH, HEADS, LENGTH, VOCABULARY = 64, 4, 32, 256


def rotary_table(head_width: int, length: int) -> Tensor:
    """Return e^(i·position·frequency), complex64 [length, head_width / 2]."""
    frequencies = 10_000.0 ** (-torch.arange(0, head_width, 2) / head_width)
    angles = torch.outer(torch.arange(length), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotated(x: Tensor, table: Tensor) -> Tensor:
    """Rotate pairs of [batch, length, heads, head_width] by their positions."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * table[: x.shape[1], None]).flatten(-2).type_as(x)


class Block(nn.Module):
    freqs_cis: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up, self.down = (
            nn.Linear(*shape, bias=False)
            for shape in ((WIDTH, 4 * WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
        )
        self.register_buffer("freqs_cis", rotary_table(WIDTH // HEADS, LENGTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, HEADS, -1)).unbind(2)
        q, k = rotated(q, self.freqs_cis), rotated(k, self.freqs_cis)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.mlp_norm(x)
        return x + self.down(silu(self.gate(h)) * self.up(h))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        logits = self.out(self.norm(x))
        return logits if targets is None else loss(logits, targets)


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def batch(number: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(
        VOCABULARY, (2, LENGTH + 1), generator=torch.Generator().manual_seed(number)
    )
    return drawn[:, :-1], drawn[:, 1:]


def layers() -> list[nn.Module]:
    return [nn.Embedding(VOCABULARY, WIDTH), *(Block() for _ in range(4)), Head()]
