"""Whole models as people write them, small."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

WORDS, WIDTH = 32, 16


class RotatedBlock(nn.Module):
    """A block that is given complex angles and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 24), nn.SiLU(), nn.Linear(24, WIDTH))

    def forward(self, x: Tensor, freqs_cis: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).unbind(2)
        q, k = (self.rotated(each, freqs_cis).transpose(1, 2) for each in (q, k))
        y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(x)

    @staticmethod
    def rotated(x: Tensor, freqs_cis: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * freqs_cis.unsqueeze(-2)
        return torch.view_as_real(turned).flatten(3)


class Llama(nn.Module):
    """Meta's Llama in small: complex RoPE, a mask of the input's dtype, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(RotatedBlock() for _ in range(3))
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        angles = torch.outer(torch.arange(64), 1 / 100 ** (torch.arange(0, 8, 2) / 8))
        self.freqs_cis = torch.polar(torch.ones_like(angles), angles)

    def forward(self, tokens: Tensor, start_pos: int = 0) -> Tensor:
        h, length = self.tok_embeddings(tokens), tokens.shape[1]
        freqs_cis = self.freqs_cis.to(h.device)[start_pos : start_pos + length]
        mask = torch.full((length, length), float("-inf"), device=tokens.device)
        mask = torch.triu(mask, diagonal=1).type_as(h)
        for layer in self.layers:
            h = layer(h, freqs_cis, mask)
        logits: Tensor = self.output(self.norm(h)).float()
        return logits


class TitanBlock(RotatedBlock):
    """A block with arguments that may be missing, and flex attention if there is a mask for it."""

    def forward(
        self, x: Tensor, freqs_cis: Tensor, mask: Any = None, positions: Tensor | None = None
    ) -> Tensor:
        freqs_cis = freqs_cis[: x.shape[1]] if positions is None else freqs_cis[positions]
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).unbind(2)
        q, k = (self.rotated(each, freqs_cis).transpose(1, 2) for each in (q, k))
        if mask is None:
            y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        else:
            y = flex_attention(q, k, v.transpose(1, 2), block_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Titan(nn.Module):
    """torchtitan's decoder in small: a dictionary of blocks, angles as a buffer, parts left out."""

    freqs_cis: Tensor

    def __init__(self, *, is_flex: bool = False) -> None:
        super().__init__()
        self.tok_embeddings: nn.Module | None = nn.Embedding(WORDS, WIDTH)
        angles = torch.outer(torch.arange(64), 1 / 100 ** (torch.arange(0, 8, 2) / 8))
        turned = torch.polar(torch.ones_like(angles), angles)
        self.register_buffer("freqs_cis", turned, persistent=False)
        self.layers = nn.ModuleDict({str(number): TitanBlock() for number in range(3)})
        self.norm: nn.Module | None = nn.RMSNorm(WIDTH)
        self.output: nn.Module | None = nn.Linear(WIDTH, WORDS, bias=False)
        self.is_flex = is_flex

    def forward(
        self, tokens: Tensor, attention_masks: Any = None, positions: Tensor | None = None
    ) -> Tensor:
        if self.is_flex:
            length = tokens.shape[1]
            attention_masks = create_block_mask(causal, None, None, length, length, device="cpu")
        h = self.tok_embeddings(tokens) if self.tok_embeddings is not None else tokens
        for layer in self.layers.values():
            h = layer(h, self.freqs_cis, mask=attention_masks, positions=positions)
        h = self.norm(h) if self.norm is not None else h
        return self.output(h) if self.output is not None else h


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


class DropoutBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.drop = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Dropout(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(torch.tanh(self.linear(self.norm(x))))


class Gpt(nn.Module):
    """nanoGPT in small: a Sequential of blocks, tied weights, dropout, a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(WORDS, WIDTH),
                "wpe": nn.Embedding(64, WIDTH),
                "drop": nn.Dropout(0.1),
                "h": nn.Sequential(*(DropoutBlock() for _ in range(3))),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.tied()

    def tied(self) -> nn.Parameter:
        embedding = self.transformer["wte"]
        assert isinstance(embedding, nn.Embedding)
        weight = embedding.weight
        assert isinstance(weight, nn.Parameter)
        return weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        parts: Any = self.transformer
        positions = torch.arange(idx.size(1), device=idx.device)
        x = parts["h"](parts["drop"](parts["wte"](idx) + parts["wpe"](positions)))
        x = parts["ln_f"](x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, WORDS), targets.view(-1), ignore_index=-1)


class Timestep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(8, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, t: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(1e4) * torch.arange(4) / 4).to(t.device)
        angles = t[:, None].float() * frequencies
        embedded: Tensor = self.mlp(torch.cat([angles.cos(), angles.sin()], -1))
        return embedded


class Modulated(nn.Module):
    """A block, or the end, of a DiT: shifted and scaled by the condition."""

    def __init__(self, width_out: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.linear = nn.Linear(WIDTH, width_out)
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 2 * WIDTH))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale = self.ada(c)[:, None].chunk(2, -1)
        y: Tensor = self.linear(self.norm(x) * (1 + scale) + shift)
        return x + y if y.shape == x.shape else y


class DiT(nn.Module):
    """A diffusion transformer: a condition for all blocks, frozen positions."""

    def __init__(self) -> None:
        super().__init__()
        self.x_embedder, self.t_embedder = nn.Conv2d(3, WIDTH, 2, 2), Timestep()
        self.y_embedder = nn.Embedding(10, WIDTH)
        self.pos_embed = nn.Parameter(torch.randn(1, 16, WIDTH), requires_grad=False)
        self.blocks = nn.ModuleList(Modulated() for _ in range(3))
        self.final_layer = Modulated(12)

    def forward(self, x: Tensor, t: Tensor, y: Tensor, target: Tensor) -> Tensor:
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        c = self.t_embedder(t) + self.y_embedder(y)
        for block in self.blocks:
            x = block(x, c)
        return F.mse_loss(self.final_layer(x, c), target)


class Convolved(nn.Module):
    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv, self.norm = (
            nn.Conv2d(width_in, width_out, 3, padding=1),
            nn.BatchNorm2d(width_out),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class UNet(nn.Module):
    """Skip connections from each block on the way down to one on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(Convolved(3 * 2**i, 6 * 2**i) for i in range(3))
        self.mid = Convolved(24, 24)
        self.up = nn.ModuleList(Convolved(12 * 2**i, 3 * 2**i) for i in reversed(range(3)))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.mid(x)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], 1))
        return F.mse_loss(x, target)


class ByParts(nn.Module):
    """Blocks that are dictionaries of modules, which the model calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {"norm": nn.LayerNorm(16), "up": nn.Linear(16, 32), "down": nn.Linear(32, 16)}
            )
            for _ in range(3)
        )
        self.head = nn.Linear(16, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            assert isinstance(block, nn.ModuleDict)
            scale = 1 / (
                1 + torch.arange(tokens.shape[1])[:, None]
            )  # a new constant of equal bytes
            x = x + scale * block["down"](F.gelu(block["up"](block["norm"](x))))
        logits: Tensor = self.head(x)
        return logits


class Recurrent(nn.Module):
    """Blocks without sub-modules, and keywords as inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.layers = nn.ModuleDict({f"layer{i}": nn.GRU(16, 16) for i in range(3)})
        self.head = nn.Linear(16, WORDS)

    def forward(self, words: Tensor, *, scale: Tensor) -> Tensor:
        x = self.embed(words)
        for layer in self.layers.values():
            x = x + layer(x)[0] * scale[:, :, None]
        logits: Tensor = self.head(x)
        return logits


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.up(x))
        return y


class PlacedBlock(nn.Module):
    """A block that returns a penalty beside its output if its place is odd."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx, self.inner = layer_idx, Wide()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x + torch.tanh(self.inner(x))
        return (y, y.square().mean()) if self.layer_idx % 2 else (y,)


class Penalized(nn.Module):
    """Blocks that are equal but for their places, which decide what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.blocks = nn.ModuleList(PlacedBlock(place) for place in range(4))
        self.head = nn.Linear(16, WORDS)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x, penalties = self.embed(tokens), []
        for block in self.blocks:
            x, *penalty = block(x)
            penalties += penalty
        loss = F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())
        return loss + torch.stack(penalties).sum()


class TwoTables(nn.Module):
    """A list of two tables, and blocks that are attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(WORDS, 16) for _ in range(2))
        self.first, self.second = Wide(), Wide()

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.tables[0](tokens) + self.tables[1](tokens)
        x = self.second(self.first(x))
        return x


class Repeating(nn.Module):
    """A list that has one block several times."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())] * 3)

    def forward(self, tokens: Tensor) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Routed(Llama):
    """Reads a number of a hidden state between its layers."""

    def forward(self, tokens: Tensor, start_pos: int = 0) -> Tensor:
        if self.tok_embeddings(tokens).mean() > 0:
            return super().forward(tokens)
        return super().forward(tokens, 1)


class FromNumbers(Llama):
    """Computes outside of what torch's functions show, with numbers of the input."""

    def forward(self, tokens: Tensor, start_pos: int = 0) -> Tensor:
        shift = torch.vmap(lambda ids: ids.float().mean())(tokens)
        h = self.tok_embeddings(tokens) * shift[:, None, None]
        for layer in self.layers:
            h = layer(h, self.freqs_cis[: tokens.shape[1]], None)
        logits: Tensor = self.output(h)
        return logits
