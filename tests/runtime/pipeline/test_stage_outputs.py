"""What stages give on: buffers, parameters, views of each other, lazy conjugates, other trees."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import RunFailure, SynthError
from synth.families import generate
from synth.runtime.batch import Batch
from synth.runtime.execution.base.boundary import Boundary
from synth.runtime.execution.transport.in_process.ranks import run_ranks
from synth.runtime.pipeline import Pipeline
from tests.runtime.rank_threads import RankThreads, draw_weights, group_here

WIDTH, MICRO_BATCHES, STEPS = 4, 4, 2


class Stage(nn.Module):
    """Takes and gives two tensors; subclasses say what the second one is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.aside, self.step = torch.zeros(WIDTH), 0

    def forward(self, x: Tensor, other: Tensor | None = None) -> Any:
        y = torch.tanh(self.linear(x if other is None else x + other))
        return y, self.second(y)

    def second(self, y: Tensor) -> Tensor:
        raise NotImplementedError


class GivesBuffer(Stage):
    def second(self, y: Tensor) -> Tensor:
        self.mean: Tensor
        self.mean.mul_(0.5).add_(y.detach().mean(0))
        return self.mean


class GivesPartOfBuffer(GivesBuffer):
    def second(self, y: Tensor) -> Tensor:
        return super().second(y)[:1]


class GivesParameter(Stage):
    def second(self, y: Tensor) -> Tensor:
        return self.scale


class GivesAttribute(Stage):
    def second(self, y: Tensor) -> Tensor:
        return self.aside.copy_(y.detach().mean(0))


class GivesItself(Stage):
    """The next stage changes one of two views of one tensor in place."""

    def forward(self, x: Tensor, other: Tensor | None = None) -> Any:
        y = self.linear(torch.tanh(x) if other is None else x.mul_(2) + other)
        return y, y.view_as(y)


class GivesParts(Stage):
    """Views of one tensor that share no elements."""

    def forward(self, x: Tensor, other: Tensor | None = None) -> Any:
        y = self.linear(x if other is None else torch.cat([x.mul_(2), other], 1))
        return y[:, : WIDTH // 2], y[:, WIDTH // 2 :]


class GivesLengths(Stage):
    """The next stage refuses lengths of zero, by which shapes are found first."""

    def forward(self, x: Tensor, other: Tensor | None = None) -> Any:
        lengths = torch.full((3,), 2) if other is None else other
        if not lengths.all():
            raise ValueError("a length is 0")
        return torch.tanh(self.linear(x)) * lengths[:, None], lengths


class GivesLossInTraining(Stage):
    def second(self, y: Tensor) -> Tensor:
        return y.square().mean() if self.training else y.new_zeros(())


class GivesLossLater(Stage):
    def second(self, y: Tensor) -> Tensor:
        self.step += 1
        return y.square().mean() if self.step > MICRO_BATCHES else y.new_zeros(())


class GivesOtherTrees(Stage):
    def forward(self, x: Any, other: Tensor | None = None) -> Any:
        x = x if isinstance(x, Tensor) else x["x"] + 2 * x.get("skip", 0)
        y = torch.tanh(self.linear(x))
        self.step += 1
        return {"x": y, "skip" if self.step <= MICRO_BATCHES else "other": y * 2}


def loss_of(output: Any, target: Tensor) -> Tensor:
    if isinstance(output, dict):
        return nn.functional.mse_loss(output["x"] + output.get("skip", 0), target)
    x, other = output
    return nn.functional.mse_loss(x, target[:, : x.shape[1]]) + other.float().pow(2).mean()


def build(kind: type[Stage], count: int) -> list[nn.Module]:
    stages: list[nn.Module] = [kind() for _ in range(count)]
    draw_weights(stages, seed=2)
    return stages


def draw(step: int) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(step)
    both = [torch.randn(3, WIDTH, generator=generator) for _ in range(2 * MICRO_BATCHES)]
    return both[:MICRO_BATCHES], both[MICRO_BATCHES:]


Found = dict[int, dict[str, Tensor]]


def found_in(stages: dict[int, nn.Module]) -> Found:
    """Gradients and buffers."""
    return {
        n: {k: p.grad for k, p in stage.named_parameters() if p.grad is not None}
        | dict(stage.named_buffers())
        for n, stage in stages.items()
    }


def trained(rank: int, size: int, family: str, kind: type[Stage], evaluates: bool = False) -> Found:
    schedule = generate(family, num_ranks=size, num_micro_batches=MICRO_BATCHES)
    stages = build(kind, schedule.placement.num_stages)
    mine = {n: stages[n] for n, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(schedule, mine, group=group_here(), loss=loss_of, timeout_s=60)
    if evaluates:
        for stage in mine.values():
            stage.eval()
        pipeline.evaluate(Batch(*draw(0)))
        for stage in mine.values():
            stage.train()
    for step in range(STEPS):
        pipeline.step(Batch(*draw(step)))
    return found_in(mine)


def by_torch(count: int, kind: type[Stage]) -> Found:
    stages = build(kind, count)
    for step in range(STEPS):
        for given, target in zip(*draw(step), strict=True):
            output: Any = (given,)
            for stage in stages:
                output = stage(*output)
            (loss_of(output, target) / MICRO_BATCHES).backward()
    return found_in(dict(enumerate(stages)))


SEEN = [
    (family, kind)
    for family in ("1f1b", "zb-v", "interleaved:2,recompute")
    for kind in (GivesBuffer, GivesPartOfBuffer, GivesParameter, GivesLengths)
]


@pytest.mark.parametrize(("family", "kind"), [*SEEN, ("1f1b", GivesParts), ("zb-v", GivesParts)])
def test_next_stages_see_what_one_process_sees(family: str, kind: type[Stage]) -> None:
    count = generate(family, 2, MICRO_BATCHES).placement.num_stages
    wanted = by_torch(count, kind)
    for found in RankThreads().run(trained, 2, family, kind):
        for number, tensors in found.items():
            assert tensors.keys() == wanted[number].keys()
            for name, tensor in tensors.items():
                torch.testing.assert_close(tensor, wanted[number][name])


def test_a_loss_that_a_stage_gives_in_training_alone_is_trained_after_an_evaluation() -> None:
    wanted = by_torch(2, GivesLossInTraining)
    for found in RankThreads().run(trained, 2, "1f1b", GivesLossInTraining, True):
        for number, tensors in found.items():
            for name, tensor in tensors.items():
                torch.testing.assert_close(tensor, wanted[number][name])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (GivesAttribute, "has changed a tensor in place that it gave for an earlier micro-batch"),
        (GivesItself, "changes an input in place that shared memory with another one"),
        (GivesLossLater, "gives a tensor that requires a gradient and did not in its trial"),
        (GivesOtherTrees, r"gave TreeSpec\(dict, \['x', 'other'\].*where its trial gave TreeSpec"),
    ],
)
def test_what_next_stages_would_see_otherwise_is_refused(kind: type[Stage], reason: str) -> None:
    with pytest.raises(RunFailure, match=reason):
        RankThreads().run(trained, 2, "interleaved:2", kind)


class Complex(nn.Module):
    """Takes and gives complex numbers, whose conjugates torch computes late."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([1.0 + 1.0j, 2.0 - 1.0j]))

    def forward(self, z: Tensor) -> Tensor:
        return (z.conj() * self.factor).conj()


def of_complex(z: Tensor, target: Tensor) -> Tensor:
    return (z - target).abs().pow(2).mean()


def complex_gradients(rank: int, size: int) -> Tensor:
    from synth.runtime.pipeline import Pipeline

    stage = Complex()
    schedule = generate("zb-h1", num_ranks=size, num_micro_batches=2)
    pipeline = Pipeline(schedule, stage, group=group_here(), loss=of_complex, timeout_s=60)
    z = torch.tensor([[1.0 + 2.0j, 3.0j], [0.5 - 1.0j, 1.0j]])
    pipeline.step(pipeline.split(z, targets=z * 0.5j))
    assert stage.factor.grad is not None
    return stage.factor.grad


def test_lazy_conjugates_cross_stages(ranks: Any) -> None:
    stages = [Complex(), Complex()]
    z = torch.tensor([[1.0 + 2.0j, 3.0j], [0.5 - 1.0j, 1.0j]])
    of_complex(stages[1](stages[0](z)), z * 0.5j).backward()
    for found, stage in zip(ranks.run(complex_gradients, 2), stages, strict=True):
        torch.testing.assert_close(found, stage.factor.grad)


class GivesLocalClass(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return namedtuple("Local", "x")(super().forward(x))


def step_of(first: nn.Module) -> list[Any]:
    """The loss of a step of two ranks, whose second has a linear stage, on each rank."""
    stages = [first, nn.Linear(WIDTH, WIDTH)]

    def step(group: Any) -> Any:
        schedule, loss = generate("1f1b", 2, MICRO_BATCHES), nn.functional.mse_loss
        pipeline = Pipeline(schedule, stages[group.rank], loss=loss, group=group, timeout_s=30)
        return pipeline.step(Batch(*draw(0)))

    return run_ranks(2, step)


def test_an_output_of_a_class_that_others_cannot_import_is_refused() -> None:
    with pytest.raises(SynthError, match="stage 0 gives a container that other ranks cannot make"):
        step_of(GivesLocalClass(WIDTH, WIDTH))


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_a_scripted_stage_is_refused_and_runs_within_a_module() -> None:
    scripted = torch.jit.script(nn.Linear(WIDTH, WIDTH))
    with pytest.raises(SynthError, match=r"stage 0 is a torch.jit.ScriptModule.*nn.Sequential"):
        step_of(scripted)
    assert step_of(nn.Sequential(scripted))[1] > 0


def test_a_sparse_output_is_refused() -> None:
    with pytest.raises(SynthError, match="a stage gave a sparse tensor in its output; only dense"):
        Boundary.of((torch.eye(3).to_sparse(),), trained=True)


Views = Callable[[Tensor], tuple[Tensor, ...]]


@pytest.mark.parametrize(
    ("views", "overlapping"),
    [
        (lambda x: (x, x.clone()), ()),
        (lambda x: (x.clone(), x, x.t()), (1, 2)),
        (lambda x: x.chunk(2, 1), ()),
        (lambda x: (x[:, :3], x[:, 2:]), (0, 1)),
        (lambda x: (x[::2], x[1::2], x[:0], x[0, :1].expand(5)), (0, 3)),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_overlapping_outputs_are_found(views: Views, overlapping: Any, device: str) -> None:
    outputs = views(torch.zeros(4, 6, device=device))
    assert Boundary.of(outputs, trained=True).overlapping == overlapping


class Labelled(Tensor):
    """A tensor whose class says something, which another rank would not be told."""


@pytest.mark.parametrize("output", [lambda x: x, lambda x: (torch.ones(2), {"image": x})])
def test_a_subclass_of_tensor_is_refused_by_name(output: Callable[[Tensor], Any]) -> None:
    with pytest.raises(SynthError, match=r"gave a Labelled \(\[3\]\)"):
        Boundary.of(output(torch.zeros(3).as_subclass(Labelled)), trained=True)
