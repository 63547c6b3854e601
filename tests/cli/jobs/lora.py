"""A pretrained model that stays frozen, with LoRA adapters on its projections."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

WIDTH, HEADS, RANK, VOCABULARY = 64, 4, 4, 256


class LoRA(nn.Module):
    """A frozen linear layer, plus a trained product of two thin ones (arXiv 2106.09685)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, RANK, bias=False)
        self.b = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.normal_(self.b.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2)).requires_grad_(False)
        self.qkv, self.out = LoRA(nn.Linear(WIDTH, 3 * WIDTH)), LoRA(nn.Linear(WIDTH, WIDTH))
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        ).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        logits = self.out(self.norm(x))
        return logits if targets is None else loss(logits, targets)


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(number: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(VOCABULARY, (2, 33), generator=torch.Generator().manual_seed(number))
    return drawn[:, :-1], drawn[:, 1:]


def layers() -> list[nn.Module]:
    frozen = [nn.Embedding(VOCABULARY, WIDTH), Head()]
    embedding, head = (layer.requires_grad_(False) for layer in frozen)
    return [embedding, *(Block() for _ in range(4)), head]
