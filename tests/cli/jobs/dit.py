"""A diffusion transformer, whose blocks pass patches and a condition on as a tuple."""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, scaled_dot_product_attention

WIDTH, HEADS, PATCHES, CHANNELS, CLASSES = 64, 4, 16, 12, 10

Passed = tuple[Tensor, Tensor]


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale[:, None]) + shift[:, None]


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.labels = nn.Linear(CHANNELS, WIDTH), nn.Embedding(CLASSES, WIDTH)
        self.time = nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.positions = nn.Parameter(0.02 * torch.randn(PATCHES, WIDTH))

    def forward(self, x: Tensor, time: Tensor, label: Tensor) -> Passed:
        return self.patches(x) + self.positions, self.time(time[:, None]) + self.labels(label)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))

    def forward(self, x: Tensor, condition: Tensor) -> Passed:
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulation(condition).chunk(6, 1)
        h = modulated(self.norms[0](x), shift_a, scale_a)
        q, k, v = self.qkv(h).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate_a[:, None] * self.out(mixed)
        x = x + gate_m[:, None] * self.mlp(modulated(self.norms[1](x), shift_m, scale_m))
        return x, condition


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHANNELS)

    def forward(self, x: Tensor, condition: Tensor, targets: Tensor | None = None) -> Tensor:
        noise = self.out(modulated(self.norm(x), condition, condition))
        return noise if targets is None else loss(noise, targets)


def loss(noise: Tensor, targets: Tensor) -> Tensor:
    return mse_loss(noise, targets)


def batch(number: int) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    drawn = torch.Generator().manual_seed(number)
    x, noise = torch.randn(2, 4, PATCHES, CHANNELS, generator=drawn)
    time = torch.rand(4, generator=drawn)
    label = torch.randint(CLASSES, (4,), generator=drawn)
    mixed = (1 - time[:, None, None]) * x + time[:, None, None] * noise
    return (mixed, time, label), noise


def layers() -> list[nn.Module]:
    return [Embedding(), *(Block() for _ in range(4)), Head()]
