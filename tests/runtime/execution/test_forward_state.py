"""Random generators and counters of a stage's own: trials leave no trace, and R repeats F."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.families import generate
from synth.runtime.batch import Batch
from synth.runtime.execution.base.stage_protocol import ForwardInput
from synth.runtime.execution.stage.replay_input import Replay
from synth.runtime.execution.stage.stage import Stage
from synth.runtime.execution.transport.in_process.ranks import run_ranks
from synth.runtime.models.layered_stage import LayerCall, LayeredStage
from synth.runtime.pipeline import Pipeline

MICRO_BATCHES = 6
of_torch = torch.Generator()
of_python = random.Random()
of_numpy = np.random.default_rng()
COUNT = 0
COUNTS = [0]


def count_globally() -> int:
    global COUNT
    COUNT += 1
    return COUNT


class Source:
    """A generator within an object of the user's own."""

    drawn = 0

    def __init__(self) -> None:
        self.generator = np.random.RandomState(5)

    def __call__(self) -> float:
        Source.drawn += 1
        return float(self.generator.rand()) + Source.drawn


class Slots:
    """An object without a dictionary."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


class Drawing(nn.Module):
    """Scales by a number that comes from `kind` of state."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = nn.Linear(4, 4), kind
        self.own = torch.Generator().manual_seed(3)
        self.source = Source()
        self.number, self.plain, self.rebound = 0, torch.zeros(1), torch.zeros(())
        self.listed, self.table, self.left = [0], {"seen": 0}, [0.1 * i for i in range(40)]
        self.slots, self.array = Slots(), np.zeros(2)
        self.register_buffer("buffer", torch.zeros(()))
        local = 0

        def enclosed() -> int:
            nonlocal local
            local += 1
            return local

        self.enclosed = enclosed

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(x)) * self.factor()

    def factor(self) -> Any:
        return getattr(self, f"_{self.kind}")()

    def _python(self) -> float:
        return random.random()

    def _python_inside(self) -> float:
        import random as hidden

        return hidden.random() if self.number >= 0 else 0.0

    def _numpy(self) -> float:
        return float(np.random.rand())

    def _torch_of_a_global(self) -> Tensor:
        return torch.rand((), generator=of_torch)

    def _python_of_a_global(self) -> float:
        return of_python.random()

    def _numpy_of_a_global(self) -> float:
        return float(of_numpy.random())

    def _own_dropout(self) -> Tensor:
        return torch.bernoulli(torch.full((4,), 0.5), generator=self.own)

    def _own_normal(self) -> Tensor:
        return torch.normal(0.0, 1.0, (4,), generator=self.own)

    def _object(self) -> float:
        return self.source()

    def _now_and_then(self) -> float:
        self.number += 1
        return of_python.random() if self.number % 3 == 0 else 0.25

    def _attribute(self) -> int:
        self.number += 1
        return self.number

    def _tensor(self) -> float:
        self.plain += 1
        return float(self.plain)

    def _new_tensor(self) -> Tensor:
        self.rebound = self.rebound + 1
        return self.rebound

    def _list(self) -> int:
        self.listed[0] += 1
        return self.listed[0]

    def _dictionary(self) -> int:
        self.table["seen"] += 1
        self.table["more"] = self.table.get("more", 0) + 2
        return self.table["seen"] + self.table["more"]

    def _taken_from_a_list(self) -> float:
        return self.left.pop()

    def _slot(self) -> int:
        self.slots.number += 1
        return self.slots.number

    def _array(self) -> float:
        self.array[1] += 1
        return float(self.array[1])

    def _closure(self) -> int:
        return self.enclosed()

    def _global(self) -> int:
        return count_globally()

    def _list_of_a_global(self) -> int:
        COUNTS[0] += 1
        return COUNTS[0]

    def _buffer(self) -> float:
        assert isinstance(self.buffer, Tensor)
        self.buffer += 1
        return float(self.buffer)


KINDS = [name[1:] for name, member in vars(Drawing).items() if name[0] == "_" and name[1] != "_"]


@pytest.fixture(autouse=True)
def same_start() -> Iterator[None]:
    global COUNT
    COUNT, COUNTS[0], Source.drawn = 0, 0, 0
    kept = random.getstate(), np.random.get_state()
    yield
    random.setstate(kept[0])
    np.random.set_state(kept[1])


def begin(kind: str) -> tuple[list[nn.Module], list[Tensor], list[Tensor]]:
    """Stages, inputs and targets, with every generator at its start."""
    global COUNT
    COUNT, COUNTS[0], Source.drawn = 0, 0, 0
    torch.manual_seed(0)
    random.seed(1)
    np.random.seed(2)
    of_torch.manual_seed(3)
    of_python.seed(4)
    of_numpy.bit_generator.state = np.random.default_rng(5).bit_generator.state
    stages = [Drawing(kind), nn.Linear(4, 1)]
    draw = torch.Generator().manual_seed(7)
    xs, ys = ([torch.randn(2, n, generator=draw) for _ in range(MICRO_BATCHES)] for n in (4, 1))
    return stages, xs, ys


def after(stage: nn.Module) -> Any:
    """The number that a further forward would use, and the gradients."""
    assert isinstance(stage, Drawing)
    return stage.factor(), [p.grad for p in stage.parameters()]


def one_process(kind: str) -> Any:
    (first, last), xs, ys = begin(kind)
    for _ in range(2):
        for x, y in zip(xs, ys, strict=True):
            (nn.functional.mse_loss(last(first(x)), y) / MICRO_BATCHES).backward()
    return after(first)


@pytest.mark.parametrize("family", ["1f1b", "1f1b:recompute"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_later_draws_are_those_of_one_process(kind: str, family: str) -> None:
    want = one_process(kind)
    stages, xs, ys = begin(kind)
    schedule = generate(family, 2, MICRO_BATCHES)

    def train(group: Any) -> None:
        pipeline = Pipeline(
            schedule, stages[group.rank], group=group, loss=nn.functional.mse_loss, timeout_s=30
        )
        for _ in range(2):
            pipeline.step(Batch(xs, ys))

    run_ranks(2, train)
    torch.testing.assert_close(after(stages[0]), want)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recomputed_layer_repeats_its_forward(kind: str) -> None:
    (plain, _), xs, _ = begin(kind)
    for x in xs:
        plain(x).sum().backward()
    want = after(plain)
    (layer, _), xs, _ = begin(kind)
    call = LayerCall(0, layer, policy="full")
    outputs = [call((x.requires_grad_(),)) for x in xs]
    for output in reversed(outputs):
        output.sum().backward()
    torch.testing.assert_close(after(layer), want)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("python", "the random generator Drawing.*random"),
        ("own_normal", "the random generator Drawing.own"),
        ("tensor", "Drawing.plain"),
        ("attribute", "Drawing.number"),
    ],
)
def test_another_rank_does_not_recompute_what_it_cannot_repeat(kind: str, named: str) -> None:
    (module, _), xs, _ = begin(kind)
    stage = Stage(module, is_first=True, is_last=False)
    stage.forward_light(0, ForwardInput((xs[0],)))
    with pytest.raises(SynthError, match=f"changes {named}, and another rank is to recompute it"):
        stage.give_replay(0)
    assert Replay(None).packed().numel()


def test_random_numbers_that_the_loss_draws_are_repeated() -> None:
    def smoothing(y: Tensor, t: Tensor) -> Tensor:
        return (y - t).square().mean() * (1 + of_python.random())

    (_, last), xs, ys = begin("attribute")
    for x, y in zip(xs, ys, strict=True):
        (smoothing(last(x), y) / MICRO_BATCHES).backward()
    want = [p.grad for p in last.parameters()]
    (_, again), xs, ys = begin("attribute")
    # On one rank: ranks of one process share Python's generator.
    schedule = generate("1f1b:recompute", 1, MICRO_BATCHES)
    run_ranks(
        1,
        lambda group: Pipeline(schedule, again, group=group, loss=smoothing, timeout_s=30).step(
            Batch(xs, ys)
        ),
    )
    torch.testing.assert_close([p.grad for p in again.parameters()], want)


class Iterating(nn.Module):
    """Takes the next number of an iterator."""

    def __init__(self, numbers: Iterator[float]) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, x: Tensor) -> Tensor:
        return x * next(self.numbers)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kind", ["count", "list", "yield"])
def test_an_iterator_that_a_forward_advances_is_refused(kind: str, place: int) -> None:
    made: dict[str, Iterator[float]] = {
        "count": itertools.count(1.0),
        "list": iter([1.0] * 99),
        "yield": (float(number) for number in range(99)),
    }
    (_, last), xs, ys = begin("attribute")
    numbers = Iterating(made[kind])
    stages = [nn.Sequential(numbers, nn.Linear(4, 4)), nn.Sequential(last)]
    if place:
        stages = [nn.Sequential(nn.Linear(4, 4)), nn.Sequential(numbers, last)]
    schedule = generate("1f1b:recompute", 2, MICRO_BATCHES)

    def train(group: Any) -> None:
        Pipeline(
            schedule, stages[group.rank], group=group, loss=nn.functional.mse_loss, timeout_s=30
        ).step(Batch(xs, ys))

    with pytest.raises(SynthError, match=r"takes the next value of an iterator .*rewound"):
        run_ranks(2, train)


class Late(nn.Module):
    """Changes a module of torch's own for the first time in its seventh forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.number = nn.Linear(4, 4), 0
        vars(self.inner)["scale"] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.number += 1
        if self.number > 6:
            vars(self.inner)["scale"] *= 2
        return torch.tanh(self.inner(x)) * vars(self.inner)["scale"]


def test_a_late_change_of_a_recomputed_layer_ends_the_step_with_an_error() -> None:
    stage = LayeredStage([LayerCall(0, Late(), policy="full")], is_first=True, is_last=False)

    def step() -> None:
        stage.begin()
        for microbatch in range(2):
            stage.forward(microbatch, ForwardInput((torch.ones(2, 4),), fused=True))
        for microbatch in range(2):
            stage.backward(microbatch, (torch.ones(2, 4),))
        stage.end()

    for _ in range(3):
        step()
    with pytest.raises(SynthError, match=r"changed Late\.inner\.scale, of one of torch's modules"):
        step()
