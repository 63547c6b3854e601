"""Results of a step besides gradients: losses, outputs, weighted means; as of one process."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import RunFailure, SynthError
from synth.families import generate
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from tests.runtime.rank_threads import RankThreads, group_here

MICRO_BATCHES, ROWS, WIDTH, CLASSES, IGNORED = 4, 3, 6, 5, -100
FAMILIES = ["1f1b", "zb-h1", "zb-v", "gpipe:recompute"]


class Head(nn.Module):
    """A tree of outputs, with something in it that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x_BD: Tensor) -> dict[str, Any]:
        return {"logits": self.out(x_BD), "inner": (x_BD * 2, "told")}


class OwnLoss(nn.Module):
    """Gives its loss where it is given targets, else its output."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x_BD: Tensor, targets_B: Tensor | None = None) -> Tensor:
        y_BC = self.out(x_BD)
        return y_BC if targets_B is None else nn.functional.cross_entropy(y_BC, targets_B)


def loss_of(output: dict[str, Any], targets_B: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output["logits"], targets_B, ignore_index=IGNORED)


def build_stages(count: int, head: type[nn.Module] = Head) -> list[nn.Module]:
    torch.manual_seed(3)
    return [
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count - 1)),
        head(),
    ]


def build_batch() -> tuple[Tensor, Tensor]:
    """Micro-batches of unequally many targets that count."""
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(MICRO_BATCHES * ROWS, WIDTH, generator=draw)
    y = torch.randint(CLASSES, (MICRO_BATCHES * ROWS,), generator=draw)
    y[[0, 1, 4]] = IGNORED
    return x, y


def alone(count: int) -> tuple[list[nn.Module], list[dict[str, Any]], list[Tensor]]:
    """One process's stages, outputs and losses by micro-batch."""
    torch.set_num_threads(1)  # as the ranks have
    stages = build_stages(count)
    x, y = (tensor.chunk(MICRO_BATCHES) for tensor in build_batch())
    outputs = [nn.Sequential(*stages)(part) for part in x]
    return stages, outputs, [loss_of(o, part) for o, part in zip(outputs, y, strict=True)]


def make(rank: int, schedule: Any, head: type[nn.Module] = Head, loss: Any = loss_of) -> Any:
    from synth.runtime.pipeline import Pipeline

    stages = build_stages(schedule.placement.num_stages, head)
    mine = {s: stages[s] for s, _ in schedule.placement.held[rank]}
    return Pipeline(schedule, mine, loss=loss), mine


def step_with_all(rank: int, size: int, name: str) -> Any:
    """The first call fills what a second one then replaces."""
    pipeline, _ = make(rank, generate(name, size, MICRO_BATCHES))
    x, y = build_batch()
    losses: list[Any] = ["of the call before"] * 9
    outputs: list[Any] = ["of the call before"]
    only: list[Any] = []
    batch = pipeline.split(x, targets=y)
    stepped = pipeline.step(batch, losses=losses, outputs=outputs), list(losses), list(outputs)
    evaluated = pipeline.evaluate(batch, losses=losses, outputs=outputs), losses, outputs
    bare = pipeline.evaluate(pipeline.split(x), outputs=only), only
    attached = [t for t in (*losses, *(o["logits"] for o in outputs)) if t.requires_grad]
    return stepped, evaluated, bare, attached, pipeline.held_values


@pytest.mark.parametrize("name", FAMILIES)
def test_losses_and_outputs_are_those_of_one_process(pool: Any, name: str) -> None:
    count = generate(name, 2, MICRO_BATCHES).placement.num_stages
    _, outputs, losses = alone(count)
    found = pool.run(step_with_all, 2, name)
    nothing, (stepped, evaluated, bare, attached, held) = sorted(found, key=lambda f: bool(f[0][1]))
    assert nothing == ((None, [], []), (None, [], []), (None, []), [], 0)
    assert attached == [] and held == 0
    for mean, some_losses, some_outputs in (stepped, evaluated):
        torch.testing.assert_close(mean, torch.stack(losses).mean().detach())
        torch.testing.assert_close(some_losses, [x.detach() for x in losses], rtol=0, atol=0)
        assert_outputs(some_outputs, outputs)
    assert bare[0] is None
    assert_outputs(bare[1], outputs)


def assert_outputs(found: list[Any], wanted: list[dict[str, Any]]) -> None:
    for mine, true in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine["logits"], true["logits"].detach(), rtol=0, atol=0)
        torch.testing.assert_close(mine["inner"][0], true["inner"][0].detach(), rtol=0, atol=0)
        assert mine["inner"][1] == "told"


def step_with_copies(rank: int, size: int) -> Any:
    pipeline, _ = make(rank, generate("chimera", size, MICRO_BATCHES))
    x, y = build_batch()
    losses: list[Any] = []
    part = pipeline.step(pipeline.split(x, targets=y), losses=losses)
    return part, losses


def test_each_of_two_last_stages_has_its_losses_in_their_places(pool: Any) -> None:
    _, _, wanted = alone(2)
    (one, mine), (other, theirs) = pool.run(step_with_copies, 2)
    torch.testing.assert_close(one + other, torch.stack(wanted).mean().detach())
    assert len(mine) == len(theirs) == MICRO_BATCHES
    for a, b, true in zip(mine, theirs, wanted, strict=True):
        assert (a is None) != (b is None)
        torch.testing.assert_close(b if a is None else a, true.detach(), rtol=0, atol=0)


def step_weighted(rank: int, size: int, name: str, kind: str) -> Any:
    """Two mini-batches that make one update, weighted by tokens; the same evaluated."""
    schedule = generate(name, size, MICRO_BATCHES)
    pipeline, mine = make(rank, schedule)
    x, y = build_batch()
    total, losses = 0.0, []
    tokens = [(part != IGNORED).sum() for part in y.chunk(MICRO_BATCHES)]
    weights: Any = torch.stack(tokens) / (2 * sum(tokens))
    weights = {"tensor": weights, "list": weights.tolist(), "tensors": list(weights)}[kind]
    held = rank == schedule.placement.rank_of(schedule.placement.num_stages - 1)
    for k in (0, 1):
        batch = pipeline.split(x, targets=y)
        loss = pipeline.step(batch, weights=weights if held else None, update=k == 1)
        total += 0.0 if loss is None else loss
        losses.append(pipeline.evaluate(batch, weights=weights))
    return held, total, losses, {s: [p.grad for p in m.parameters()] for s, m in mine.items()}


@pytest.mark.parametrize("kind", ["tensor", "list", "tensors"])
@pytest.mark.parametrize("name", FAMILIES)
def test_weights_by_tokens_give_the_mean_over_tokens(pool: Any, name: str, kind: str) -> None:
    count = generate(name, 2, MICRO_BATCHES).placement.num_stages
    stages, outputs, _ = alone(count)
    logits = torch.cat([output["logits"] for output in outputs])
    wanted = nn.functional.cross_entropy(logits, build_batch()[1], ignore_index=IGNORED)
    wanted.backward()
    for held, total, evaluated, gradients in pool.run(step_weighted, 2, name, kind):
        if held:
            torch.testing.assert_close(total, wanted.detach())
            torch.testing.assert_close(sum(evaluated), wanted.detach())
        for stage, mine in gradients.items():
            torch.testing.assert_close(mine, [p.grad for p in stages[stage].parameters()])


def step_own_loss(rank: int, size: int) -> Any:
    """A module with its own loss: losses, outputs where it is given no targets."""
    pipeline, _ = make(rank, generate("1f1b", size, MICRO_BATCHES), OwnLoss, None)
    x, y = build_batch()
    batch = pipeline.split(x, targets=y.clamp(min=0))
    losses: list[Any] = []
    outputs: list[Any] = []
    mean = pipeline.step(batch, losses=losses)
    assert pipeline.evaluate(pipeline.split(x), outputs=outputs) is None
    with pytest.raises(SynthError) as caught:
        pipeline.step(batch, outputs=outputs if rank else None)
    return mean, losses, outputs, str(caught.value)


def test_a_module_with_its_own_loss_gives_losses_and_outputs_without_targets(pool: Any) -> None:
    (_, *_, told), (mean, losses, outputs, said) = pool.run(step_own_loss, 2)
    model = nn.Sequential(*build_stages(2, OwnLoss))
    x, y = build_batch()
    wanted = nn.functional.cross_entropy(model(x), y.clamp(min=0)).detach()
    torch.testing.assert_close(torch.stack(losses).mean(), wanted)
    torch.testing.assert_close(mean, wanted)
    torch.testing.assert_close(torch.cat(outputs), model(x).detach())
    assert "there are no outputs to give" in said
    assert "rank 1 failed: there are no outputs to give" in told


MOVED = {  # what the last stage's forward of the first micro-batch saves goes away and comes back
    "to the host": ("F0.0 F0.1 BW0.0 BW0.1", "F1.0 O1.0 L1.0 BW1.0 F1.1 BW1.1"),
    "to rank 0": ("F0.0 K1.0 F0.1 G1.0 BW0.0 BW0.1", "F1.0 O1.0 L1.0 BW1.0 F1.1 BW1.1"),
}


def square_loss(output: dict[str, Any], targets_B: Tensor) -> Tensor:
    """Autograd saves the output itself."""
    return output["logits"].square().mean()


def step_moved(rank: int, size: int, name: str) -> Any:
    programs = [[Op.parse(token) for token in line.split()] for line in MOVED[name]]
    pipeline, mine = make(rank, Schedule.linear(name, 2, programs), loss=square_loss)
    x, y = build_batch()
    outputs: list[Any] = []
    pipeline.step(pipeline.split(x, targets=y), outputs=outputs)
    return outputs, {s: [p.grad for p in m.parameters()] for s, m in mine.items()}


@pytest.mark.parametrize("name", list(MOVED))
def test_outputs_do_not_hold_what_moves_away(pool: Any, name: str) -> None:
    stages = build_stages(2)
    logits = nn.Sequential(*stages)(build_batch()[0])["logits"]
    logits.square().mean().backward()
    (_, first), (outputs, last) = pool.run(step_moved, 2, name)
    torch.testing.assert_close(torch.cat([o["logits"] for o in outputs]), logits.detach())
    for stage, mine in (first | last).items():
        torch.testing.assert_close(mine, [p.grad for p in stages[stage].parameters()])


def weigh_wrongly(rank: int, size: int) -> str:
    pipeline, _ = make(rank, generate("1f1b", size, MICRO_BATCHES))
    x, y = build_batch()
    with pytest.raises(SynthError) as caught:
        pipeline.step(pipeline.split(x, targets=y), weights=[0.5, 0.5] if rank else None)
    return str(caught.value)


def test_other_ranks_read_that_weights_are_too_few(pool: Any) -> None:
    told, said = pool.run(weigh_wrongly, 2)
    assert said.startswith("2 weights were given for 4 micro-batches")
    assert f"rank 1 failed: {said}" in told


def squares(y: Tensor, targets: Tensor) -> Tensor:
    return (y - targets).pow(2).mean()


def in_doubles(rank: int, size: int, family: str) -> list[Tensor | None]:
    """Losses in float64: of a step, of an evaluation in inference mode, of a step after it."""
    from synth.runtime.pipeline import Pipeline

    schedule = generate(family, size, 2)
    stages = {
        number: nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
        for number, _ in schedule.placement.held[rank]
    }
    for stage in stages.values():
        nn.init.constant_(stage.weight, 0.1)
    pipeline = Pipeline(schedule, stages, loss=squares, group=group_here(), timeout_s=60)
    x = torch.linspace(0, 1, 4 * WIDTH, dtype=torch.float64).view(4, WIDTH)
    batch = pipeline.split(x, targets=x)
    first = pipeline.step(batch)
    with torch.inference_mode():
        evaluated = pipeline.evaluate(pipeline.split(x.clone(), targets=x))
        again = pipeline.evaluate(batch)
    return [first, evaluated, again, pipeline.evaluate(batch), pipeline.step(batch)]


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_of_doubles_are_doubles_also_in_inference_mode(family: str) -> None:
    count = generate(family, 2, 2).placement.num_stages
    x = torch.linspace(0, 1, 4 * WIDTH, dtype=torch.float64).view(4, WIDTH)
    y = x
    for _ in range(count):
        y = y @ torch.full((WIDTH, WIDTH), 0.1, dtype=torch.float64)
    found = [x for each in RankThreads().run(in_doubles, 2, family) for x in each if x is not None]
    assert len(found) == 5
    for loss in found:
        torch.testing.assert_close(loss, squares(y, x), rtol=1e-13, atol=0)


def refuse_more_than_a_loss(rank: int, size: int) -> str:
    from synth.runtime.pipeline import Pipeline

    def two(y: Tensor, targets: Tensor) -> Any:
        return squares(y, targets), y.mean()

    stage, schedule = nn.Linear(WIDTH, WIDTH), generate("1f1b", size, 2)
    pipeline = Pipeline(schedule, stage, loss=two, group=group_here(), timeout_s=60)
    with pytest.raises(RunFailure) as caught:
        pipeline.step(pipeline.split(torch.ones(2, WIDTH), targets=torch.ones(2, WIDTH)))
    return str(caught.value)


def test_a_loss_with_something_beside_it_is_refused() -> None:
    said = "the last stage gave a tuple, where it must give the loss, one tensor: give"
    assert all(said in told for told in RankThreads().run(refuse_more_than_a_loss, 2))


def gradients_of_inputs(rank: int, size: int, family: str) -> list[Tensor | None]:
    """Those of inputs that require a gradient, ahead of a frozen first stage."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    stage = nn.Linear(WIDTH, WIDTH).requires_grad_(rank > 0)
    nn.init.constant_(stage.weight, 0.1)
    schedule = generate(family, size, 2)
    pipeline = Pipeline(schedule, stage, loss=squares, group=group_here(), timeout_s=60)
    prompts = [torch.ones(2, WIDTH, requires_grad=True) for _ in range(2)]
    pipeline.step(Batch(prompts, [torch.zeros(2, WIDTH)] * 2))
    return [prompt.grad for prompt in prompts]


@pytest.mark.parametrize("family", ["1f1b", "zb-h1"])
def test_inputs_ahead_of_frozen_stages_get_their_gradients(family: str) -> None:
    found, nothing = RankThreads().run(gradients_of_inputs, 2, family)
    assert nothing == [None, None] and all(g is not None and g.any() for g in found)


def test_a_complex_loss_is_refused() -> None:
    def refused(rank: int, size: int) -> str:
        from synth.runtime.pipeline import Pipeline

        def loss(y: Tensor, targets: Tensor) -> Tensor:
            return torch.complex(y, targets).sum()

        stage, schedule = nn.Linear(WIDTH, WIDTH), generate("1f1b", size, 1)
        pipeline = Pipeline(schedule, stage, loss=loss, group=group_here(), timeout_s=60)
        with pytest.raises(RunFailure) as caught:
            pipeline.step(pipeline.split(torch.ones(2, WIDTH), targets=torch.ones(2, WIDTH)))
        return str(caught.value)

    (told,) = RankThreads().run(refused, 1)
    assert "the loss is a complex number; give a real one" in told
