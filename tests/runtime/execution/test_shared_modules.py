"""Modules and weights that a stage uses at several places: in its trial, and their gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from synth.families import generate
from synth.runtime.execution.base.boundary import Boundary
from synth.runtime.execution.stage.shapes import _run
from synth.runtime.execution.stage.stage import Stage

D, WORDS, ROWS = 8, 11, 4


class Angles(nn.Module):
    """Rotary embeddings: a buffer, and what the last call left."""

    def __init__(self) -> None:
        super().__init__()
        self.speeds: Tensor
        self.register_buffer("speeds", 1.0 / torch.arange(1, D + 1), persistent=False)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = torch.arange(x.shape[1], device=x.device)[:, None] * self.speeds
        return self.last.cos()


class Layer(nn.Module):
    """Is given the angles' module, which others have too."""

    def __init__(self, angles: Angles) -> None:
        super().__init__()
        self.angles, self.inner = angles, nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(x * self.angles(x)))


class Tied(nn.Module):
    """One layer twice, another with the first one's weight, a third with its transpose."""

    def __init__(self) -> None:
        super().__init__()
        angles = Angles()
        self.twice = Layer(angles)
        self.layers = nn.ModuleList([self.twice, Layer(angles), self.twice])
        self.other = nn.Linear(D, D)
        self.other.weight = self.twice.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.tanh(self.other(x)) @ self.twice.inner.weight.T


class Ends(nn.Module):
    """A table that is the head's matrix too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, D)
        self.head = nn.Linear(D, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(tokens))) @ self.table.weight


class Memo:
    """An object that is no module, and remembers tensors by length."""

    def __init__(self) -> None:
        self.cosines: list[dict[int, tuple[Tensor]]] = [{}]


class Remembered(nn.Module):
    """Angles that are computed once for each length."""

    def __init__(self) -> None:
        super().__init__()
        self.memo, self.speeds = Memo(), nn.Buffer(1.0 / torch.arange(1, D + 1))

    def forward(self, x: Tensor) -> Tensor:
        known, length = self.memo.cosines[0], x.shape[1]
        if length not in known:
            positions = torch.arange(length, device=x.device)[:, None]
            known[length] = ((positions * self.speeds).cos(),)
        return known[length][0]


def remembered(angles: Any) -> nn.Module:
    return nn.Sequential(Layer(angles), Layer(angles))


@pytest.mark.parametrize("known", [False, True], ids=["empty", "filled"])
def test_a_trial_without_data_leaves_no_tensors_in_a_cache(known: bool) -> None:
    angles, x = Remembered(), torch.randn(2, 5, D)
    module = remembered(angles)
    if known:
        module(x[:, :2])
    stage = Stage(module, is_first=False, is_last=False)
    output = _run(stage, (), Boundary.of(x, trained=True), {}, torch.device("meta"))
    assert output.is_meta
    assert list(angles.memo.cosines[0]) == ([2] if known else [])
    assert not module(x).is_meta


class Hostile:
    """An object whose missing attributes fail in their own way."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is not there yet")


def test_a_trial_passes_over_odd_attributes_and_large_data() -> None:
    module: Any = nn.Linear(D, D)
    module.hostile, module.data = Hostile(), list(range(1 << 20))
    module.own = [module.data, {"itself": module}]
    module.own.append(module.own)
    stage = Stage(module, is_first=False, is_last=False)
    boundary = Boundary.of(torch.zeros(2, D), trained=True)
    assert _run(stage, (), boundary, {}, torch.device("meta")).shape == (2, D)


def normed() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(D, D)), Tied())


MODULES: dict[str, Any] = {"tied": Tied, "ends": Ends, "normed": normed}


@pytest.mark.parametrize("place", ["meta", "cpu"])
@pytest.mark.parametrize("name", MODULES)
def test_a_trial_of_shared_weights_finds_shapes_and_leaves_nothing(name: str, place: str) -> None:
    module = MODULES[name]()
    stage = Stage(module, is_first=name == "ends", is_last=False)
    x = torch.zeros(2, 5, D)
    tokens = (torch.zeros(2, 5, dtype=torch.long),) if name == "ends" else ()
    before = [dict(vars(part)) for part in module.modules()]
    state = [id(t) for t in stage.state()]
    entry = None if tokens else Boundary.of(x, trained=True)
    output = _run(stage, tokens, entry, {}, torch.device(place))
    assert output.shape == x.shape and output.device.type == place
    assert [vars(part) for part in module.modules()] == before
    assert [id(t) for t in stage.state()] == state


def build_stages() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(Ends(), Tied()), Tied(), nn.Sequential(Tied(), nn.Linear(D, 1))]


def draw() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(WORDS, (2 * ROWS, 5), generator=generator)
    return tokens, torch.randn((2 * ROWS, 5, 1), generator=generator)


def step(rank: int, size: int, name: str) -> list[Tensor | None]:
    from synth.runtime.pipeline import Pipeline

    module = build_stages()[rank]
    pipeline = Pipeline(generate(name, size, ROWS), module, loss=nn.functional.mse_loss)
    x, y = draw()
    pipeline.step(pipeline.split(x, targets=y))
    return [p.grad for p in module.parameters()]


@pytest.mark.parametrize("name", ["zb-h1", "1f1b"])
def test_weights_shared_within_stages_have_autograds_gradients(pool: Any, name: str) -> None:
    stages = build_stages()
    x, y = draw()
    nn.functional.mse_loss(nn.Sequential(*stages)(x), y).backward()
    for mine, stage in zip(pool.run(step, 3, name), stages, strict=True):
        for gradient, parameter in zip(mine, stage.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)
