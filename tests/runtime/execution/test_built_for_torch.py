"""Plans under PyTorch's own runtime, by `synth.interop.torch.build`: as one process trains."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import synth
from synth.interop.torch import build
from synth.interop.torch_csv import from_torch_csv
from synth.profile import Profile
from synth.profile.layer_times import LayerTimes
from synth.profile.tied_parameters import TiedParameters
from tests.runtime.gradients import gradient_of
from tests.runtime.rank_threads import draw_weights

WIDTH, BATCH, MICRO_BATCHES = 6, 3, 4
OUT_OF_ORDER = "0F2,0F0,0F1,0I2,0W2,0F3,0B0,0B1,0B3\n1F2,1I2,1F0,1W2,1B0,1F1,1B1,1F3,1B3\n"


class Embedding(nn.Module):
    """Makes two tensors, one of which is only handed on, of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, WIDTH)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.table(ids), ids


class Block(nn.Module):
    """Returns a transposed view, which is not contiguous, and its own input."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        mixed = torch.tanh(self.mix(x)) * (1 + ids[..., None])
        return mixed.transpose(-1, -2).reshape_as(mixed).transpose(1, 2).transpose(1, 2)[:], ids


class Flat(nn.Module):
    """Ends in a view."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return (x + ids[..., None]).flatten(1)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5 * WIDTH, 3)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        found = self.out(x)
        return found if targets is None else cross_entropy(found, targets)


def cross_entropy(found: Tensor, targets: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(found, targets)
    return loss[None].squeeze(0)  # a view, as losses may be


def make_layers() -> list[nn.Module]:
    layers = [Embedding(), Block(), Block(), Block(), Block(), Flat(), Head()]
    draw_weights(layers, seed=3)
    return layers


def draw() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(7)
    ids = torch.randint(8, (MICRO_BATCHES * BATCH, 5), generator=source)
    return ids, torch.randint(3, (MICRO_BATCHES * BATCH,), generator=source)


def run_rank(
    rank: int, size: int, plan: str, has_loss_fn: bool, by_stage: bool
) -> tuple[list[float], dict[int, list[Tensor]]]:
    layers = make_layers()
    loaded = synth.Plan.from_json(plan)
    held = loaded.modules(rank, layers)
    loss_fn = cross_entropy if has_loss_fn else None
    pipeline = build(loaded, held if by_stage else layers, loss_fn=loss_fn)
    losses = []
    ids, targets = draw()
    for _ in range(2):
        for parameter in pipeline.parameters():
            parameter.grad = None
        loss = pipeline.step(ids, target=targets)
        losses += [] if loss is None else [float(loss)]
    places = {id(layer): place for place, layer in enumerate(layers)}
    return losses, {
        places[id(layer)]: [gradient_of(p) for p in layer.parameters()]
        for stage in held.values()
        for layer in stage
    }


def one_process() -> tuple[float, list[list[Tensor]]]:
    layers, total = make_layers(), 0.0
    for ids, targets in zip(*(t.chunk(MICRO_BATCHES) for t in draw()), strict=True):
        x: Any = (ids,)
        for layer in layers[:-1]:
            x = layer(*x)
            x = x if isinstance(x, tuple) else (x,)
        loss = layers[-1](*x, targets) / MICRO_BATCHES
        loss.backward()
        total += float(loss.detach())
    return total, [[gradient_of(p) for p in layer.parameters()] for layer in layers]


def plan_of(schedule: Any, partition: str = "even") -> synth.Plan:
    names = [f"{type(layer).__name__}.{i}" for i, layer in enumerate(make_layers())]
    times = [LayerTimes(name=n, forward_us=1, backward_us=2, output_bytes=1) for n in names]
    profile = Profile.from_times("mine", times)
    if not isinstance(schedule, str):
        return synth.Plan.of(profile, [3, 4], schedule)
    return synth.simulate(schedule, profile, ranks=2, micro_batches=4, partition=partition)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "partition", "has_loss_fn", "by_stage"),
    [
        ("1f1b", "4,3", False, False),
        ("zb-h1", "6,1", False, True),  # the last stage is the loss alone
        ("zb-h1", "3,4", True, False),
        ("interleaved:2", "2,1,2,2", False, False),
        ("zb-v", "2,2,1,2", True, True),
        ("zb-v", "1,3,2,1", False, False),
        ("out of order", "", False, False),
    ],
)
def test_losses_and_gradients_are_those_of_one_process(
    pool: Any, family: str, partition: str, has_loss_fn: bool, by_stage: bool
) -> None:
    schedule = from_torch_csv(OUT_OF_ORDER) if family == "out of order" else family
    plan = plan_of(schedule, partition)
    found = pool.run(run_rank, 2, plan.to_json(), has_loss_fn, by_stage)
    loss, gradients = one_process()
    assert [each for losses, _ in found for each in losses] == pytest.approx([loss, loss])
    seen = set()
    for _, held in found:
        for place, mine in held.items():
            seen.add(place)
            for got, true in zip(mine, gradients[place], strict=True):
                torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-6)
    assert seen == set(range(7))


class TakesTree(nn.Module):
    """The embedding, of ids in a dictionary beside a factor for each sample."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        x, ids = self.embedding(batch["ids"])
        return x * batch["factor"][:, None, None], ids


def run_on_trees(rank: int, size: int, plan: str) -> list[float]:
    layers: list[nn.Module]
    given: Any
    losses = []
    ids, targets = draw()
    plain = torch.ones(len(ids))
    for factor in (None, plain, plain + ids[:, 0]):
        embedding, *others = make_layers()
        if factor is None:
            layers, given = [embedding, *others], ids
        else:
            layers, given = [TakesTree(embedding), *others], {"ids": ids, "factor": factor}
        loss = build(synth.Plan.from_json(plan), layers).step(given, target=targets)
        losses += [] if loss is None else [float(loss)]
    return losses


@pytest.mark.slow
def test_inputs_are_trees_of_tensors(pool: Any) -> None:
    first, (one, plain, scaled) = pool.run(run_on_trees, 2, plan_of("1f1b").to_json())
    assert first == []
    assert one == pytest.approx(one_process()[0])
    assert plain == pytest.approx(one)
    assert scaled != pytest.approx(one)


def refusals(rank: int, size: int, plan: str) -> list[str]:
    loaded, layers = synth.Plan.from_json(plan), make_layers()
    found = []
    for given in (layers[1:], {5: layers}):
        with pytest.raises(synth.SynthError) as refused:
            build(loaded, given)
        found.append(str(refused.value))
    return found


@pytest.mark.slow
def test_wrong_modules_and_groups_are_refused(pool: Any) -> None:
    plan = plan_of("1f1b", "4,3")
    for rank, (few, others) in enumerate(pool.run(refusals, 2, plan.to_json())):
        assert "6 layers were given, plan '1f1b' is for 7" in few
        assert f"holds stages [{rank}], modules were given for [5]" in others
    [[alone, _]] = pool.run(refusals, 1, plan.to_json())
    assert "is for 2 ranks, the group has 1; start 2 processes" in alone


class Joined(nn.Module):
    """Looks up ids that travelled, and has a gradient of its input that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(8, WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        mixed: Tensor = self.mix(torch.cat([x, self.table(ids)], -1))
        return mixed


class TiedHead(nn.Module):
    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(x.sum(1) @ self.table.weight.T, targets)


def tied_layers() -> list[nn.Module]:
    first = Embedding()
    layers = [first, Joined(), TiedHead(first.table)]
    draw_weights(layers, seed=3)
    return layers


def run_tied(rank: int, size: int, plan: str) -> tuple[int, list[Tensor | None]]:
    """Run two batches whose gradients add up; return the gradients of all layers."""
    layers = tied_layers()
    pipeline = build(synth.Plan.from_json(plan), layers)
    ids, targets = draw()
    for _ in range(2):
        pipeline.step(ids, target=targets)
    every = dict.fromkeys(parameter for layer in layers for parameter in layer.parameters())
    return len(pipeline.parameters()), [parameter.grad for parameter in every]


def tied_plan(is_tied: bool = True) -> synth.Plan:
    times = [
        LayerTimes(name=n, forward_us=1, backward_us=2, output_bytes=1, parameter_bytes=192)
        for n in ("embedding", "joined", "head")
    ]
    sizes = {"parameter_bytes": 192, "gradient_bytes": 192, "optimizer_bytes": 384}
    tied = (TiedParameters(layers=("embedding", "head"), **sizes),) * is_tied
    profile = Profile.from_times("mine", times).replace(tied_parameters=tied or None)
    return synth.simulate("zb-h1", profile, ranks=2, micro_batches=4, partition="1,2")


@pytest.mark.slow
def test_gradients_of_parameters_that_ranks_share_are_added_up(pool: Any) -> None:
    layers = tied_layers()
    for ids, targets in zip(*(t.chunk(MICRO_BATCHES) for t in draw()), strict=True):
        loss = layers[2](layers[1](*layers[0](ids)), targets)
        (2 * loss / MICRO_BATCHES).backward()
    table, *others = dict.fromkeys(p for layer in layers for p in layer.parameters())
    (count, first), (_, last) = pool.run(run_tied, 2, tied_plan(is_tied=False).to_json())
    assert count == 1 and first[1:] == [None] * len(others)
    expected = [gradient_of(parameter) for parameter in (table, table, *others)]
    for found, true in zip([first[0], *last], expected, strict=True):
        torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-6)


def refusal_of_stages(rank: int, size: int, plan: str) -> str:
    loaded = synth.Plan.from_json(plan)
    with pytest.raises(synth.SynthError) as refused:
        build(loaded, loaded.modules(rank, tied_layers()))
    return str(refused.value)


@pytest.mark.slow
def test_stages_that_share_parameters_need_all_layers(pool: Any) -> None:
    for refusal in pool.run(refusal_of_stages, 2, tied_plan().to_json()):
        assert "stages 0 and 1 of plan 'zb-h1' share parameters" in refusal


class Reusing(nn.Module):
    """The same norm behind each of two layers; the last one returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.norm(self.second(self.norm(torch.tanh(self.first(x)))))
        return x if targets is None else (x - targets).square().mean()


def reusing_layers() -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Linear(WIDTH, WIDTH), Reusing(), Reusing()]
    draw_weights(layers, seed=5)
    return layers


def run_reusing(rank: int, size: int, plan: str) -> str | list[Tensor]:
    layers, loaded = reusing_layers(), synth.Plan.from_json(plan)
    pipeline = build(loaded, layers)
    x, y = torch.randn(
        (2, MICRO_BATCHES * BATCH, WIDTH), generator=torch.Generator().manual_seed(1)
    )
    try:
        pipeline.step(x, target=y)
    except Exception as error:
        return str(error)
    return [gradient_of(parameter) for parameter in pipeline.parameters()]


@pytest.mark.slow
def test_a_stage_whose_modules_are_reused_runs_with_whole_backwards_or_says_so(pool: Any) -> None:
    times = [LayerTimes(name=n, forward_us=1, backward_us=2, output_bytes=1) for n in "abc"]
    profile = Profile.from_times("mine", times)
    split, whole = (
        synth.simulate(name, profile, ranks=2, micro_batches=4, partition="2,1").to_json()
        for name in ("zb-h1", "1f1b")
    )
    _, refusal = pool.run(run_reusing, 2, split)
    assert refusal.startswith("PyTorch's split of the backward (I and W) failed: a stage uses")
    layers = reusing_layers()
    x, y = torch.randn(
        (2, MICRO_BATCHES * BATCH, WIDTH), generator=torch.Generator().manual_seed(1)
    )
    layers[2](layers[1](layers[0](x)), y).backward()
    found = [gradient for held in pool.run(run_reusing, 2, whole) for gradient in held]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    for mine, parameter in zip(found, parameters, strict=True):
        torch.testing.assert_close(mine, gradient_of(parameter), rtol=1e-4, atol=1e-6)
