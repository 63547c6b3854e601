"""Models whose layers pass tensors on, share memory or work in place, for `planned_peaks`.

Each function returns layers from token ids to the loss. Legend: N micro-batch, T tokens, D width.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, mse_loss, scaled_dot_product_attention

N, T, D, SIDE, CHANNELS = 4, 64, 64, 16, 16
NUM_BLOCKS = 7


def batch(number: int) -> tuple[Tensor, Tensor]:
    """Return token ids [N, T], and targets [N, T, D]."""
    draw = torch.Generator().manual_seed(number)
    return torch.randint(256, (N, T), generator=draw), torch.randn(N, T, D, generator=draw)


def images(number: int) -> tuple[Tensor, Tensor]:
    """Return the colours of pixels [N, SIDE²], and targets [N, CHANNELS]."""
    draw = torch.Generator().manual_seed(number)
    colours = torch.randint(256, (N, SIDE * SIDE), generator=draw)
    return colours, torch.randn(N, CHANNELS, generator=draw)


class Embedding(nn.Module):
    """Token ids to a hidden state, and what `more` makes of it, for the layers behind."""

    def __init__(self, more: Callable[[Tensor], Sequence[Tensor]] = lambda x: ()) -> None:
        super().__init__()
        self.table, self.more = nn.Embedding(256, D), more

    def forward(self, ids: Tensor) -> Any:
        """Return the hidden state [N, T, D], alone if there is nothing more."""
        x = self.table(ids)
        others = self.more(x)
        return (x, *others) if others else x


class Head(nn.Module):
    """The loss of a hidden state, whatever comes with it."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(D, D)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        """Return the loss; the targets are the last argument."""
        return mse_loss(self.out(x), others[-1])


class Mlp(nn.Module):
    """A residual MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next hidden state."""
        return x + self.down(gelu(self.up(self.norm(x))))


class Cross(nn.Module):
    """Attention to an encoder's output, which every layer passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.kv = nn.LayerNorm(D), nn.Linear(D, D), nn.Linear(D, 2 * D)
        self.mlp = Mlp()

    def forward(self, x: Tensor, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next hidden state, and the encoder's output."""
        k, v = self.kv(encoded).chunk(2, -1)
        return self.mlp(x + scaled_dot_product_attention(self.q(self.norm(x)), k, v)), encoded


class Apart(nn.Module):
    """An MLP whose residual stream is kept apart from its output."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        """Return the MLP's output, and the stream with its input added."""
        stream = stream + x
        return self.down(torch.tanh(self.up(self.norm(stream)))), stream


class Masked(nn.Module):
    """Attention under a mask [N, T, T] of truth values, which every layer passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.mlp = nn.LayerNorm(D), nn.Linear(D, 3 * D), Mlp()

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next hidden state, and the mask."""
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = (q @ k.transpose(-1, -2)).masked_fill(~mask, -1e4).softmax(-1)
        return self.mlp(x + weights @ v), mask


class Rotary(nn.Module):
    """Attention with rotary tables [N, T, D], which every layer passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.mlp = nn.LayerNorm(D), nn.Linear(D, 3 * D), Mlp()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next hidden state, and the tables."""
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        q, k = (y * cos + y.roll(D // 2, -1) * sin for y in (q, k))
        return self.mlp(x + scaled_dot_product_attention(q, k, v)), cos, sin


class AddInPlace(nn.Module):
    """Adds what it computes to its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input, changed."""
        return x.add_(self.down(torch.tanh(self.up(x.clone()))))


class Halves(nn.Module):
    """Returns two halves of one result."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(D, 2 * D)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        """Return views, which are not contiguous."""
        return torch.tanh(self.up(a * b)).chunk(2, -1)


class Unbound(nn.Module):
    """Returns two results that are parts of one memory; the backward needs one of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(D, D)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        """Return views, which are contiguous."""
        return torch.stack([torch.tanh(self.up(a)) + b, b + 1]).unbind(0)


class Turned(nn.Module):
    """A residual layer that returns its output turned, which is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next hidden state, with tokens and width exchanged."""
        return (x + torch.tanh(self.out(self.norm(x)))).transpose(1, 2)


class Exchange(nn.Module):
    """A layer that puts tokens before samples, in new memory."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden state [T, N, D]."""
        return x.transpose(0, 1).contiguous()


class History(nn.Module):
    """A layer that takes the outputs of all layers before, as dense networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(D), nn.Linear(D, D)

    def forward(self, *history: Tensor) -> list[Tensor]:
        """Return these outputs, and one more."""
        mean = torch.stack(history).mean(0)
        return [*history, torch.tanh(self.out(self.norm(mean)))]


class HistoryHead(Head):
    """The loss of the mean of all outputs."""

    def forward(self, *history: Tensor) -> Tensor:
        """Return the loss; the targets are the last argument."""
        return super().forward(torch.stack(history[:-1]).mean(0), history[-1])


class Prefix(nn.Module):
    """A layer with tokens of its own before those that it takes (arXiv 2101.00190)."""

    def __init__(self) -> None:
        super().__init__()
        self.prefix, self.out = nn.Parameter(torch.randn(T, N, D)), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next hidden state [T, N, D], without the prefix."""
        return torch.tanh(torch.tanh(self.out(torch.cat([self.prefix, x])))[T:])


class Lora(nn.Module):
    """A frozen linear layer and a trained product of two thin ones (arXiv 2106.09685)."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, out).requires_grad_(False)
        self.a, self.b = nn.Linear(width, 4, bias=False), nn.Linear(4, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both."""
        return self.base(x) + self.b(self.a(x))


class LoraMlp(nn.Module):
    """A residual MLP with adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D).requires_grad_(False)
        self.up, self.down = Lora(D, 4 * D), Lora(4 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next hidden state."""
        return x + self.down(gelu(self.up(self.norm(x))))


class Pixels(nn.Module):
    """The colours of pixels to images."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, CHANNELS)

    def forward(self, colours: Tensor) -> Tensor:
        """Return images [N, CHANNELS, SIDE, SIDE]."""
        return self.table(colours).movedim(-1, 1).unflatten(2, (SIDE, SIDE)).contiguous()


class ChannelsLast(Pixels):
    """The colours of pixels to images, in memory pixel by pixel."""

    def forward(self, colours: Tensor) -> Tensor:
        """Return images of the same shape, which are not contiguous."""
        return super().forward(colours).contiguous(memory_format=torch.channels_last)


class MeanLoss(nn.Module):
    """The loss of the mean pixel."""

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        return mse_loss(x.mean((2, 3)), targets)


def ordinary() -> list[nn.Module]:
    """Return layers with one tensor between them."""
    return [Embedding(), *(Mlp() for _ in range(NUM_BLOCKS)), Head()]


def encoder_output() -> list[nn.Module]:
    """Return layers that pass an encoder's output on."""
    first = Embedding(lambda x: [torch.tanh(x)])
    return [first, *(Cross() for _ in range(NUM_BLOCKS)), Head()]


def residual_apart() -> list[nn.Module]:
    """Return layers between which the residual stream and another tensor go."""
    first = Embedding(lambda x: [torch.tanh(x)])
    return [first, *(Apart() for _ in range(NUM_BLOCKS)), Head()]


def mask_passed_on() -> list[nn.Module]:
    """Return layers that pass a mask on."""
    first = Embedding(lambda x: [x[:, :, :1] * x[:, :, 0][:, None] > 0])
    return [first, *(Masked() for _ in range(NUM_BLOCKS)), Head()]


def _tables(x: Tensor) -> list[Tensor]:
    angles = torch.arange(T)[:, None] * torch.logspace(0, -3, D)
    return [table.expand(x.shape).contiguous() for table in (angles.cos(), angles.sin())]


def rotary_tables() -> list[nn.Module]:
    """Return layers that pass two tables on, which have no gradient."""
    return [Embedding(_tables), *(Rotary() for _ in range(NUM_BLOCKS)), Head()]


def relu_in_place() -> list[nn.Module]:
    """Return convolutions and norms with activations in place, each a layer."""
    first = [Pixels(), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)]
    blocks = [
        (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.ReLU(True))
        for _ in range(3)
    ]
    return [*first, *(layer for block in blocks for layer in block), MeanLoss()]


def channels_last() -> list[nn.Module]:
    """Return convolutions and norms of images in memory pixel by pixel."""
    convs = [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(4)]
    blocks = [(conv, nn.BatchNorm2d(CHANNELS), nn.ReLU()) for conv in convs[1:]]
    layers: list[nn.Module] = [ChannelsLast(), convs[0]]
    layers += [layer for block in blocks for layer in block]
    layers.append(MeanLoss())
    for layer in layers:
        layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return layers


def add_in_place() -> list[nn.Module]:
    """Return layers, every second of which adds to its input in place."""
    pairs = ((nn.Linear(D, D), AddInPlace()) for _ in range(NUM_BLOCKS // 2))
    return [Embedding(), *(layer for pair in pairs for layer in pair), Head()]


def halves() -> list[nn.Module]:
    """Return layers between which halves of one memory go."""
    first = Embedding(lambda x: [torch.tanh(x)])
    return [first, *(Halves() for _ in range(NUM_BLOCKS)), Head()]


def unbound() -> list[nn.Module]:
    """Return layers between which contiguous parts of one memory go."""
    first = Embedding(lambda x: [torch.tanh(x)])
    return [first, *(Unbound() for _ in range(NUM_BLOCKS)), Head()]


def views_in_place() -> list[nn.Module]:
    """Return linear layers, whose outputs are views, and activations in place after them."""
    blocks = [(nn.Linear(D, D), nn.Identity(), nn.ReLU(True), nn.Identity()) for _ in range(3)]
    return [Embedding(), *(layer for block in blocks for layer in block), Head()]


def turned() -> list[nn.Module]:
    """Return layers between which dimensions are exchanged; T and D are equal."""
    return [Embedding(), *(Turned() for _ in range(NUM_BLOCKS)), Head()]


def histories() -> list[nn.Module]:
    """Return layers that pass on what all layers before returned."""
    first = Embedding(lambda x: [torch.tanh(x)])
    return [first, *(History() for _ in range(NUM_BLOCKS)), HistoryHead()]


def prefixes() -> list[nn.Module]:
    """Return layers with prefixes; tokens come first, so that gradients are parts of others."""
    head = Head()
    head.out.register_forward_pre_hook(lambda _, given: (given[0].transpose(0, 1),))
    first = nn.Sequential(Embedding(), Exchange())
    return [first, *(Prefix() for _ in range(NUM_BLOCKS)), head]


def lora() -> list[nn.Module]:
    """Return frozen layers with adapters."""
    frozen = [Embedding().requires_grad_(False), Head().requires_grad_(False)]
    return [frozen[0], *(LoraMlp() for _ in range(NUM_BLOCKS)), frozen[1]]
