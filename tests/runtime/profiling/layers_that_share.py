"""Lists of layers that share more than registered parameters and outputs, for tests."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, WIDTH = 16, 8
ASIDE: dict[str, Any] = {}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)
        self.norm, self.aux = nn.BatchNorm1d(WIDTH), 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.drop(torch.tanh(self.norm(self.linear(x).mT).mT))
        self.aux = y.square().mean()
        return y


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.tanh(self.linear(x))
        return x + y


class Calls(nn.Module):
    """A layer of a module that others have, too."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Any:
        return self.block(x)


class Head(nn.Module):
    """Ends in logits of a weight, and adds a loss that it finds elsewhere."""

    def __init__(self, weight: Callable[[], Tensor], aux: Callable[[], Any] = lambda: 0.0) -> None:
        super().__init__()
        self.norm, self._weight, self._aux = nn.LayerNorm(WIDTH), weight, aux

    def forward(self, x: Tensor, targets: Tensor) -> Any:
        logits = F.linear(self.norm(x), self._weight())
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + self._aux()


class OwnHead(Head):
    """Has the weight as a parameter."""

    def __init__(self, weight: Tensor, aux: Callable[[], Any] = lambda: 0.0) -> None:
        super().__init__(lambda: self.weight, aux)
        self.weight = weight


class Masks(nn.Embedding):
    """Leaves a mask in a global, which later layers read."""

    def forward(self, ids: Tensor) -> Tensor:
        ASIDE["mask"] = (ids > WORDS // 2)[..., None]
        return super().forward(ids)


class Masked(Plain):
    def forward(self, x: Tensor) -> Tensor:
        masked: Tensor = super().forward(x) * ASIDE.get("mask", 1)
        return masked


def hidden_weight() -> list[nn.Module]:
    table = nn.Embedding(WORDS, WIDTH)
    return [table, Plain(), Head(lambda: table.weight)]


def attributes_of_another() -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Block()
    return [table, block, OwnHead(table.weight, lambda: block.aux)]


def detached_attributes_of_another() -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Block()
    return [table, block, OwnHead(table.weight, lambda: torch.as_tensor(block.aux).detach())]


class Logs(Plain):
    """A layer that leaves the mean of its output as a number, which a later one multiplies by."""

    def forward(self, x: Tensor) -> Tensor:
        scale, y = ASIDE.get("scale", 1.0), super().forward(x)
        ASIDE["scale"] = 1 + float(y.detach().square().mean())
        return y * scale


def numbers_of_another() -> list[nn.Module]:
    table = nn.Embedding(WORDS, WIDTH)
    return [table, Logs(), Logs(), OwnHead(table.weight)]


class Scales(Plain):
    """Multiplies by what a function returns, after another function was called."""

    def __init__(self, read: Callable[[], Any], first: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self._read, self._first = read, first

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self._first(y)
        return y * self._read()


def means_of_another() -> list[nn.Module]:
    """Return layers with an auxiliary number that samples in another order have, too."""
    table = nn.Embedding(WORDS, WIDTH)
    block = Scales(lambda: 1.0, lambda y: ASIDE.update(mean=float(y.detach().square().mean())))
    return [table, block, OwnHead(table.weight, lambda: ASIDE.get("mean", 0.0))]


def constants_of_another() -> list[nn.Module]:
    """Return layers of which the first sets what the others find at 1 on other ranks."""
    table, shared = nn.Embedding(WORDS, WIDTH), nn.Module()
    shared.scale = 1.0  # type: ignore[assignment]
    first = Scales(lambda: shared.scale, lambda _: setattr(shared, "scale", 2.0))
    later = [Scales(lambda: shared.scale, lambda _: None) for _ in range(2)]
    return [table, first, *later, OwnHead(table.weight)]


def constants_of_another_alone() -> list[nn.Module]:
    table = nn.Embedding(WORDS, WIDTH)
    first = Scales(lambda: ASIDE["scale"], lambda _: ASIDE.update(scale=2.0))
    return [table, first, Scales(lambda: ASIDE["scale"], lambda _: None), OwnHead(table.weight)]


def random_table_of_all() -> list[nn.Module]:
    """Return layers of which the first draws a mask that all keep."""
    table = nn.Embedding(WORDS, WIDTH)

    def mask(y: Tensor) -> None:
        if "mask" not in ASIDE:
            ASIDE["mask"] = torch.rand(y.shape[1:])

    blocks = [Scales(lambda: ASIDE["mask"], mask) for _ in range(3)]
    return [table, *blocks, OwnHead(table.weight)]


def number_of_a_weight_of_another() -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Plain()
    mean = block.linear.weight.detach().numpy().mean
    reader = Scales(lambda: 1 + float(mean()), lambda _: None)
    return [table, block, reader, Plain(), OwnHead(table.weight)]


class Reads(Plain):
    """Adds what a function returns, without a gradient."""

    def __init__(self, read: Callable[[], Tensor]) -> None:
        super().__init__()
        self._read = read

    def forward(self, x: Tensor) -> Tensor:
        # Too little to be seen in a loss, and a copy in part.
        y = super().forward(x)
        y[:, 0] += 1e-9 * self._read().detach().mean()
        return y


def detached_weight_of_another() -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Plain()
    return [table, block, Reads(lambda: block.linear.weight.t()), OwnHead(table.weight)]


def buffer_of_another(*, persistent: bool = True) -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Plain()
    block.register_buffer("gains", torch.ones(WIDTH), persistent=persistent)
    return [table, block, Reads(lambda: block.gains), OwnHead(table.weight)]  # type: ignore[arg-type, return-value]


class Shares(Plain):
    """Leaves its result in an attribute."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x)
        return self.last + 0


def result_of_another() -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Shares()
    return [table, block, Reads(lambda: block.last), OwnHead(table.weight)]


class Caches(Plain):
    """Makes a table for all layers, if none has, and counts and scratches in tensors of all."""

    def forward(self, x: Tensor) -> Tensor:
        if "table" not in ASIDE:
            ASIDE["table"] = torch.arange(WIDTH).to(x).cos()
            ASIDE["count"], ASIDE["scratch"] = torch.zeros(2), torch.zeros_like(x)
        ASIDE["count"] += x.detach().mean()
        ASIDE["scratch"].copy_(x.detach())
        return super().forward(x * ASIDE["table"]) + ASIDE["scratch"] * 2


def tables_of_all() -> list[nn.Module]:
    table = nn.Embedding(WORDS, WIDTH)
    return [table, Caches(), Caches(), OwnHead(table.weight)]


class Turns(nn.Module):
    """Multiplies by cosines of its own angles, which it keeps."""

    def __init__(self, *, is_parameter: bool) -> None:
        super().__init__()
        angles = torch.arange(WIDTH) / WIDTH
        if is_parameter:
            self.angles: Tensor = nn.Parameter(angles, requires_grad=False)
        else:
            self.register_buffer("angles", angles)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = self.angles.detach().cos()
        return x * self.kept


def angles_of_all(*, is_parameter: bool) -> list[nn.Module]:
    """Return layers with one module for angles, of which the first makes the table of all."""
    table, turns = nn.Embedding(WORDS, WIDTH), Turns(is_parameter=is_parameter)
    blocks = [nn.Sequential(turns, Plain()) for _ in range(3)]
    return [table, *blocks, OwnHead(table.weight)]


class Works(Plain):
    """Computes in memory of all layers, which it fills anew."""

    def forward(self, x: Tensor) -> Tensor:
        memory = ASIDE.setdefault("memory", torch.empty(2 * x.numel()))[: x.numel()].view(x.shape)
        with torch.no_grad():
            torch.mul(x, 2.0, out=memory)
        return super().forward(x) + memory.clone()


def memory_of_all() -> list[nn.Module]:
    table = nn.Embedding(WORDS, WIDTH)
    return [table, Works(), Works(), OwnHead(table.weight)]


def globals_of_all() -> list[nn.Module]:
    table = Masks(WORDS, WIDTH)
    return [table, Masked(), OwnHead(table.weight)]


def shared_statistics() -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Block()
    return [table, Calls(block), Calls(block), OwnHead(table.weight)]


def shared_parameters() -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Plain()
    return [table, Calls(block), Calls(block), Block(), OwnHead(table.weight)]


class Gives(nn.Module):
    """Gives on a parameter or a buffer of its own beside its output."""

    def __init__(self, second: Callable[["Gives"], Tensor]) -> None:
        super().__init__()
        self.table, self._second = nn.Embedding(WORDS, WIDTH), second
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.table(x)
        self.mean: Tensor
        self.mean.mul_(0.5).add_(y.detach().mean((0, 1)))
        return y, self._second(self)


class Weighs(nn.Module):
    """Takes what `Gives` gives."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x)) * other.mean(0)


def own_state_given_on(second: Callable[[Gives], Tensor]) -> list[nn.Module]:
    """Layers of which the first one gives on a part of its own state."""
    return [Gives(second), Weighs(), OwnHead(nn.Parameter(torch.randn(WORDS, WIDTH)))]
