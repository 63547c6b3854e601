"""Whatever a forward changes, R finds as F did: kinds of Python's and torch's objects."""

import array
import contextvars
import copy
import dataclasses
import enum
import functools
import itertools
import random
import threading
from collections import Counter, OrderedDict, UserDict, deque, namedtuple
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.families import generate
from synth.runtime.batch import Batch
from synth.runtime.execution.base.stage_protocol import ForwardInput
from synth.runtime.execution.stage.stage import Stage
from synth.runtime.execution.transport.in_process.ranks import run_ranks
from synth.runtime.pipeline import Pipeline
from synth.runtime.state.array_values import ArrayValues
from synth.runtime.state.tensor_numbers import Watchfulness

MICRO_BATCHES = 6
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("VARIABLE", default=0)


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    number: int


class Meter:
    def __init__(self) -> None:
        self.number = 0


class Numbers(list[int]):
    pass


class Table(dict[str, int]):
    """Counts its own reads, as a cache may."""

    reads = 0

    def __getitem__(self, key: str) -> int:
        self.reads += 1
        return super().__getitem__(key)


Pair = namedtuple("Pair", "meter other")


class Lazy(nn.Module):
    """Scales by what `kind` of state gives, in forwards of which the first is number 1."""

    def __init__(self, change: Callable[[Any], Any], **state: Any) -> None:
        super().__init__()
        self.inner, self.change = nn.Linear(4, 4), change
        vars(self).update(state)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(x)) * self.change(self)

    @functools.cached_property
    def made(self) -> random.Random:
        return random.Random(3)


def set_to(name: str, made: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Replace an attribute by what is made of it."""

    def change(self: Any) -> Any:
        setattr(self, name, made(getattr(self, name)))
        return getattr(self, name)

    return change


def after(does: Callable[[Any], Any], gives: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def change(self: Any) -> Any:
        does(self)
        return gives(self)

    return change


def every(period: int) -> Callable[[Any], Any]:
    def change(self: Any) -> Any:
        self.calls[0] += 1
        if self.calls[0] % period == 0:
            self.scale = self.scale * 2
            self.rare.add_(1)
        return self.scale + self.rare

    return change


def lazily(made: Callable[[], Any], draw: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def change(self: Any) -> Any:
        if self.rng is None:
            self.rng = made()
        return draw(self.rng)

    return change


def cached(self: Any) -> Any:
    return self.made.random()


def in_place_and_saved(self: Any) -> Any:
    self.t.add_(1)
    return self.t


def view_of_it(self: Any) -> Any:
    self.t.add_(1)
    return self.seen[1] + self.t[0]


def popped(self: Any) -> Any:
    return self.left.pop(), self.left.popleft()


def of_a_local(self: Any) -> Any:
    self.local.number = getattr(self.local, "number", 0) + 1
    return self.local.number


def of_a_variable(self: Any) -> Any:
    VARIABLE.set(VARIABLE.get() + 1)
    return VARIABLE.get()


def renamed(self: Any) -> Any:
    (key,) = self.names
    del self.names[key]
    self.names[key + 1] = True
    return key


def new_object(self: Any) -> Any:
    old, self.meter = self.meter, Meter()
    self.meter.number = old.number + 1
    return self.meter.number


def then_within(self: Any) -> Any:
    """An object that the first forward makes, and that later ones change."""
    if self.meter is None:
        self.meter = Meter()
        self.meter.counts = Counter()
    self.meter.counts["x"] += 1
    return self.meter.counts["x"]


def numbers_through_data(self: Any) -> Any:
    self.t.data += 1
    return float(self.t[0])


def lru(self: Any) -> Any:
    self.calls[0] += 1
    return self.lookup(self.calls[0] // 2) + self.lookup(0)


def numpy_view(self: Any) -> Any:
    self.t.numpy()[0] += 1
    return float(self.t[0])


def frozen(*sizes: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(sizes), requires_grad=False)


class Momentum(Lazy):
    """Has a frozen copy of its inner layer, which follows it."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__(change)
        self.copy = copy.deepcopy(self.inner).requires_grad_(False)


class Codebook(Lazy):
    """Has a frozen parameter, and a list of the same."""

    def __init__(self, change: Callable[[Any], Any], *sizes: int) -> None:
        super().__init__(change)
        self.codes = frozen(*sizes)
        self.listed = [self.codes]


def followed(self: Any) -> Any:
    for slow, fast in zip(self.copy.parameters(), self.inner.parameters(), strict=True):
        slow.data = slow.data * 0.9 + fast.data * 0.1 + 0.01
    return self.copy.weight.sum()


def coded(self: Any) -> Any:
    self.codes.data[0] += 1
    assert self.listed[0] is self.codes and isinstance(self.codes, nn.Parameter)
    return self.codes.flatten()[:4].clone()


def coded_and_counted(self: Any) -> Any:
    with torch.no_grad():
        self.codes.add_(1)
    return self.codes.flatten()[:4].clone()


def sparse(self: Any) -> Any:
    self.n = (torch.eye(4) * self.n.to_dense()[0, 0] + torch.eye(4)).to_sparse()
    return self.n.to_dense()[0, 0]


def sparse_rows(self: Any) -> Any:
    self.n = (torch.eye(4) if self.n is None else self.n.to_dense() + 1).to_sparse_csr()
    return self.n.to_dense().sum()


KINDS: dict[str, Callable[[], Lazy]] = {
    "frozen parameters replaced": lambda: Momentum(followed),
    "a frozen parameter through data": lambda: Codebook(coded, 4),
    "a frozen parameter in place": lambda: Codebook(coded_and_counted, 4),
    "a large frozen parameter": lambda: Codebook(coded, 70_000),
    "a large frozen parameter in place": lambda: Codebook(coded_and_counted, 70_000),
    "a sparse tensor": lambda: Lazy(sparse, n=torch.eye(4).to_sparse()),
    "a sparse tensor (CSR)": lambda: Lazy(sparse_rows, n=None),
    "np.int64": lambda: Lazy(set_to("n", lambda n: n + np.int64(1)), n=np.int64(0)),
    "np.float32": lambda: Lazy(set_to("n", lambda n: np.float32(n + 0.5)), n=np.float32(0)),
    "Fraction": lambda: Lazy(
        after(set_to("n", lambda n: n + Fraction(1, 3)), lambda m: float(m.n)), n=Fraction(0)
    ),
    "Enum": lambda: Lazy(
        after(
            set_to("n", lambda n: Level.LOW if n is Level.HIGH else Level.HIGH),
            lambda m: m.n.value,
        ),
        n=Level.LOW,
    ),
    "frozen": lambda: Lazy(
        after(set_to("n", lambda n: Frozen(n.number + 1)), lambda m: m.n.number), n=Frozen(0)
    ),
    "another list": lambda: Lazy(
        after(set_to("n", lambda n: [*n, 1]), lambda m: len(m.n)), n=list[int]()
    ),
    "another dictionary": lambda: Lazy(
        after(set_to("n", lambda n: {"x": n["x"] + 1}), lambda m: m.n["x"]), n={"x": 0}
    ),
    "another array": lambda: Lazy(
        after(set_to("n", lambda n: n + 1), lambda m: float(m.n[0])), n=np.zeros(3)
    ),
    "another large tensor": lambda: Lazy(
        after(set_to("n", lambda n: n + 1), lambda m: m.n[0]), n=torch.zeros(70_000)
    ),
    "another object": lambda: Lazy(new_object, meter=Meter()),
    "an object made by the first": lambda: Lazy(then_within, meter=None),
    "Counter": lambda: Lazy(
        after(lambda m: m.n.update(["a"]), lambda m: m.n["a"]), n=Counter[str]()
    ),
    "defaultdict of a list": lambda: Lazy(
        after(lambda m: m.n.setdefault(0, []).append(1), lambda m: len(m.n[0])), n={}
    ),
    "a log's length": lambda: Lazy(after(lambda m: m.n.append(1), lambda m: len(m.n)), n=[]),
    "list subclass": lambda: Lazy(after(lambda m: m.n.append(1), len_of_n), n=Numbers()),
    "dict subclass": lambda: Lazy(
        after(lambda m: m.n.update(x=m.n["x"] + 1), lambda m: m.n["x"] + m.n.reads), n=Table(x=0)
    ),
    "UserDict": lambda: Lazy(
        after(lambda m: m.n.update(x=m.n["x"] + 1), lambda m: m.n["x"]), n=UserDict(x=0)
    ),
    "OrderedDict in turn": lambda: Lazy(
        after(lambda m: m.n.move_to_end(next(iter(m.n))), lambda m: next(iter(m.n))),
        n=OrderedDict.fromkeys([1, 2, 3]),
    ),
    "renamed": lambda: Lazy(renamed, names={0: True}),
    "bytearray": lambda: Lazy(after(lambda m: m.n.append(1), lambda m: len(m.n)), n=bytearray()),
    "array.array": lambda: Lazy(
        after(lambda m: m.n.append(2.5), lambda m: sum(m.n)), n=array.array("d", [1])
    ),
    "deque in turn": lambda: Lazy(
        after(lambda m: m.n.rotate(1), lambda m: m.n[0]), n=deque([1, 2, 3])
    ),
    "set that grows": lambda: Lazy(
        after(lambda m: m.n.add(len(m.n)), lambda m: len(m.n)), n=set[int]()
    ),
    "list of objects": lambda: Lazy(
        after(lambda m: vars(m.n[0]).update(number=m.n[0].number + 1), lambda m: m.n[0].number),
        n=[Meter()],
    ),
    "named tuple": lambda: Lazy(
        after(
            lambda m: vars(m.n.meter).update(number=m.n.meter.number + 1),
            lambda m: m.n.meter.number,
        ),
        n=Pair(Meter(), 1),
    ),
    "SimpleNamespace": lambda: Lazy(
        after(lambda m: vars(m.n).update(x=m.n.x + 1), lambda m: m.n.x), n=SimpleNamespace(x=0)
    ),
    "slots": lambda: Lazy(
        after(set_to("n", lambda n: Slotted(n.number + 1)), lambda m: m.n.number), n=Slotted(0)
    ),
    "array of objects": lambda: Lazy(
        after(lambda m: m.n.__setitem__(0, m.n[0] + 1), lambda m: m.n[0]),
        n=np.array([0, None], dtype=object),
    ),
    "threading.local": lambda: Lazy(of_a_local, local=threading.local()),
    "ContextVar": lambda: Lazy(of_a_variable),
    "lru_cache": lambda: Lazy(lru, calls=[0], lookup=functools.lru_cache(of_squares)),
    "torch.Generator, lazily": lambda: Lazy(
        lazily(torch.Generator, lambda rng: torch.rand((), generator=rng)), rng=None
    ),
    "random.Random, lazily": lambda: Lazy(
        lazily(lambda: random.Random(3), lambda rng: rng.random()), rng=None
    ),
    "default_rng, lazily": lambda: Lazy(
        lazily(lambda: np.random.default_rng(3), lambda rng: rng.random()), rng=None
    ),
    "cached_property": lambda: Lazy(cached),
    "every third": lambda: Lazy(every(3), calls=[0], scale=1.0, rare=torch.zeros(())),
    "every fifth": lambda: Lazy(every(5), calls=[0], scale=1.0, rare=torch.zeros(())),
    "a tensor that autograd saves": lambda: Lazy(in_place_and_saved, t=torch.zeros(4)),
    "a tensor and a view": lambda: Lazy(*viewed()[:1], **viewed()[1]),
    "numbers through data": lambda: Lazy(numbers_through_data, t=torch.zeros(2)),
    "numbers through NumPy": lambda: Lazy(numpy_view, t=torch.zeros(2)),
    "a large array": lambda: Lazy(
        after(lambda m: m.n.__setitem__((0, 1), m.n[0, 1] + 1), lambda m: float(m.n[0, 1])),
        n=np.zeros((90, 100), order="F")[::2],
    ),
    "a module in a list": lambda: Lazy(
        after(lambda m: m.hidden[0](torch.ones(3, 2)), lambda m: m.hidden[0].running_mean[0]),
        hidden=[nn.BatchNorm1d(2)],
    ),
}


def of_squares(number: int) -> int:
    return number * number


def len_of_n(module: Any) -> int:
    return len(module.n)


def viewed() -> tuple[Callable[[Any], Any], dict[str, Any]]:
    t = torch.zeros(4)
    return view_of_it, {"t": t, "seen": (0, t[1:2])}


def numbers(num_micro_batches: int) -> tuple[list[Tensor], list[Tensor]]:
    draw = torch.Generator().manual_seed(7)
    shapes = (4, 1)
    xs, ys = ([torch.randn(2, n, generator=draw) for _ in range(num_micro_batches)] for n in shapes)
    return xs, ys


def begin(make: Callable[[], Lazy]) -> tuple[Lazy, nn.Module]:
    VARIABLE.set(0)
    torch.manual_seed(0)
    return make(), nn.Linear(4, 1)


def result(module: Lazy) -> Any:
    """What a further forward would use, and the gradients."""
    return torch.as_tensor(module.change(module)), [p.grad for p in module.parameters()]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("family", ["1f1b:recompute", "gpipe:recompute"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_state_are_those_of_one_process(kind: str, family: str) -> None:
    first, last = begin(KINDS[kind])
    xs, ys = numbers(MICRO_BATCHES)
    for _ in range(4):
        for x, y in zip(xs, ys, strict=True):
            (nn.functional.mse_loss(last(first(x)), y) / MICRO_BATCHES).backward()
    want = result(first)
    stages = begin(KINDS[kind])
    schedule = generate(family, 2, MICRO_BATCHES)
    got: list[Any] = []

    def train(group: Any) -> None:
        VARIABLE.set(0)
        pipeline = Pipeline(
            schedule, stages[group.rank], group=group, loss=nn.functional.mse_loss, timeout_s=30
        )
        for _ in range(4):
            pipeline.step(Batch(xs, ys))
        if group.rank == 0:
            got.append(result(stages[0]))

    run_ranks(2, train)
    torch.testing.assert_close(got, [want])


def set_data(self: Any) -> Any:
    self.inner.weight.data = self.inner.weight.data * 0.9
    return 1.0


def yielding() -> Iterator[float]:
    yield from itertools.repeat(1.0)


REFUSED: dict[str, tuple[Callable[[], Lazy], str]] = {
    "set.pop": (
        lambda: Lazy(lambda m: m.n.pop(), n=set(range(90))),
        r"Lazy\.n: a forward takes elements out of a set",
    ),
    "cycle": (
        lambda: Lazy(lambda m: next(m.n), n=itertools.cycle([1.0, 2.0])),
        r"Lazy\.n: a forward takes the next value of an iterator \(cycle\)",
    ),
    "zip": (
        lambda: Lazy(lambda m: next(m.n)[0], n=zip(range(90), range(90), strict=True)),
        r"Lazy\.n: a forward takes the next value of an iterator \(zip\)",
    ),
    "pairwise": (
        lambda: Lazy(lambda m: next(m.n)[0], n=itertools.pairwise(list(range(90)))),
        "a forward takes the next value of an iterator",
    ),
    "yield": (
        lambda: Lazy(lambda m: next(m.n["it"]), n={"it": yielding()}),
        r"Lazy\.n\['it'\]: a forward takes the next value of an iterator \(generator\)",
    ),
    "a generator without a seed": (
        lambda: Lazy(lazily(random.Random, lambda rng: rng.random()), rng=None),
        r"Lazy\.rng: a forward draws random numbers that its recomputation cannot repeat",
    ),
    "a parameter": (
        lambda: Lazy(lambda m: m.inner.weight.detach().mul_(0.9).sum()),
        r"a forward changes the parameter inner\.weight in place",
    ),
    "a parameter through data": (
        lambda: Lazy(lambda m: m.inner.weight.data.mul_(0.9).sum()),
        r"a forward changes the parameter inner\.weight in place",
    ),
    "a parameter's data": (
        lambda: Lazy(set_data),
        r"a forward changes the parameter inner\.weight in place",
    ),
    "a tensor that is resized": (
        lambda: Lazy(lambda m: m.n.resize_(len(m.n) + 4).fill_(1)[0], n=torch.zeros(0)),
        r"Lazy\.n: a forward resizes a tensor in place",
    ),
    "a long list": (
        lambda: Lazy(lambda m: m.n.pop(), n=[1.0] * 70_000),
        r"Lazy\.n: a forward changes the length of a list",
    ),
    "large arrays": (
        lambda: Lazy(
            after(lambda m: m.n.__setitem__(m.i, m.n[m.i] + 1), set_to("i", lambda i: i + 1)),
            n=np.zeros(1 << 23, np.float32),
            i=0,
        ),
        r"Lazy\.n: a forward changes an array in place.* at most 67\.11 MB are kept",
    ),
    "large tensors": (
        lambda: Lazy(lambda m: m.n.add_(1)[0], n=torch.zeros(1 << 25)),
        r"Lazy\.n: .*register it as a buffer \(register_buffer\), or do not recompute",
    ),
    "large tensors that replace others": (
        lambda: Lazy(after(set_to("n", lambda n: n + 1), lambda m: m.n[0]), n=torch.zeros(1 << 23)),
        r"a forward replaces Lazy\.n, .*register_buffer",
    ),
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[pytest.mark.slow] if k.startswith("large") else []) for k in REFUSED],
)
def test_what_cannot_be_restored_is_refused_by_name(kind: str) -> None:
    make, said = REFUSED[kind]
    module, _ = begin(make)
    stage = Stage(module, is_first=True, is_last=False)
    given = [ForwardInput((x,), fused=True) for x in numbers(MICRO_BATCHES)[0]]
    stage.begin()
    with pytest.raises(SynthError, match=said):
        for microbatch, each in enumerate(given):
            stage.forward_light(microbatch, each)
        for microbatch, each in enumerate(given):
            stage.rebuild(microbatch, each)


class Given:
    """An argument that counts, and that draws."""

    def __init__(self, seed: int) -> None:
        self.counts, self.drawn = {"n": 0}, random.Random(seed)


class Taking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, given: Given, table: dict[str, int]) -> Tensor:
        given.counts["n"] += 1
        table["n"] += 1
        return torch.tanh(self.inner(x)) * given.counts["n"] * given.drawn.random() * table["n"]


def test_what_is_given_for_each_micro_batch_is_found_as_f_did() -> None:
    first, last = begin(lambda: Taking())  # type: ignore[arg-type,return-value]
    plain = copy.deepcopy((first, last))
    xs, ys = numbers(MICRO_BATCHES)

    def inputs() -> list[Any]:
        return [(x, Given(j), {"n": j}) for j, x in enumerate(xs)]

    want = inputs()
    for x, y in zip(want, ys, strict=True):
        (nn.functional.mse_loss(plain[1](plain[0](*x)), y) / MICRO_BATCHES).backward()
    given = inputs()
    schedule = generate("gpipe:recompute", 2, MICRO_BATCHES)
    run_ranks(
        2,
        lambda group: Pipeline(
            schedule,
            (first, last)[group.rank],
            group=group,
            loss=nn.functional.mse_loss,
            timeout_s=30,
        ).step(Batch(given, ys)),
    )
    for got, known in zip(first.parameters(), plain[0].parameters(), strict=True):
        torch.testing.assert_close(got.grad, known.grad)
    for (_, one, table), (_, other, known_table) in zip(given, want, strict=True):
        assert one.counts == other.counts and table == known_table
        assert one.drawn.random() == other.drawn.random()


def test_a_list_that_shrinks_within_a_dictionary_is_restored() -> None:
    def change(self: Any) -> Any:
        return self.table["left"].pop() if self.table["left"] else 0.0

    module, _ = begin(lambda: Lazy(change, table={"left": [3.0, 2.0]}))
    stage = Stage(module, is_first=True, is_last=False)
    given = ForwardInput((torch.ones(2, 4),), fused=True)
    outputs = [stage.forward_light(j, given)[0] for j in range(3)]
    kept: list[Tensor] = []
    module.inner.register_forward_hook(lambda *_: None)
    module.register_forward_hook(lambda _, __, output: kept.append(output.detach()))
    for j in range(3):
        stage.rebuild(j, given)
    assert all(map(torch.equal, kept, outputs))
    assert vars(module)["table"] == {"left": []}


def test_parameters_may_be_frozen_and_trained_in_turn() -> None:
    def train(step: Callable[[Lazy, Tensor], None]) -> list[Tensor]:
        module = begin(lambda: Momentum(lambda m: m.copy(torch.ones(4))))[0]
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for number in range(8):
            vars(module)["_modules"]["copy"].requires_grad_(number % 2 == 1)
            optimizer.zero_grad()
            step(module, torch.ones(2, 4))
            optimizer.step()
        return [p.detach() for p in module.parameters()]

    stages: list[Stage] = []

    def recomputed(module: Lazy, x: Tensor) -> None:
        if not stages:
            stages.append(Stage(module, is_first=True, is_last=False))
        (stage,) = stages
        given = ForwardInput((x,), fused=True)
        stage.begin()
        stage.forward_light(0, given)
        stage.rebuild(0, given)
        stage.backward(0, (torch.ones(2, 4),))
        stage.end()

    want = train(lambda module, x: module(x).sum().backward())
    torch.testing.assert_close(train(recomputed), want)


def test_a_frozen_parameter_that_does_not_change_stays_in_its_place() -> None:
    module = begin(lambda: Momentum(lambda m: m.copy(torch.ones(4))))[0]
    stage, given = Stage(module, is_first=True, is_last=False), ForwardInput((torch.ones(2, 4),))
    known = id(module.get_parameter("copy.weight"))

    def check(module: nn.Module, _: Any) -> None:
        assert id(module.get_parameter("copy.weight")) == known

    module.register_forward_pre_hook(check)
    for _ in range(3):
        stage.begin()
        stage.forward_light(0, given)
        stage.rebuild(0, given)
        stage.end()
        stage.forget()


def test_storages_can_be_resized_after_a_step() -> None:
    module, _ = begin(lambda: Lazy(lambda m: m.n[0], n=torch.zeros(4)))
    stage, given = Stage(module, is_first=True, is_last=False), ForwardInput((torch.ones(2, 4),))
    stage.begin()
    stage.forward_light(0, given)
    stage.rebuild(0, given)
    assert vars(module)["n"].resize_(8).shape == (8,)


@pytest.mark.parametrize(
    "made",
    [
        np.zeros((3, 4)),
        np.zeros((3, 4), order="F")[::2],
        np.zeros((3, 4))[::-1, ::2],
        np.zeros((2, 3), dtype=">i4"),
        np.zeros(3, dtype=[("a", "i2"), ("b", "f8")])["b"],
        np.zeros(()),
        np.full(3, np.nan),
    ],
    ids=str,
)
@pytest.mark.parametrize("room", [0, 1 << 20])
def test_an_array_differs_once_a_number_has_changed(
    made: Any, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synth.runtime.state.array_values.FEW_BYTES", 0)
    place = ArrayValues(made, Watchfulness(room_bytes=room))
    before = place.take()
    assert not place.differs(before)
    made.flat[-1] = 5 + room
    assert place.differs(before)
    if room:
        place.put(before)
        assert not place.differs(before)
