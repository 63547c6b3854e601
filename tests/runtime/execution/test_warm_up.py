"""Stages run ahead of the first step leave no trace; on CPU, where the switch has to be set."""

import random
from queue import SimpleQueue
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from synth.costs.costs import HOST
from synth.runtime.execution.transport.host.host_link import HostLink, HostMove
from synth.schedule.lowering.lower import Transfer
from synth.schedule.model import Schedule
from synth.schedule.ops import Op, Value, ValueKind
from tests.runtime.replaying import WIDTH, Head

BY_HAND = {
    "fused": ("F0.0 F0.1 BW0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1"),
    "split": ("F0.0 F0.1 B0.0 W0.0 B0.1 W0.1", "F1.0 B1.0 W1.0 F1.1 B1.1 W1.1"),
    "mixed": ("F0.0 F0.1 B0.0 W0.0 BW0.1", "F1.0 BW1.0 F1.1 B1.1 W1.1"),
    "rebuilt": ("F0.0 F0.1 R0.0 BW0.0 R0.1 B0.1 W0.1", "F1.0 R1.0 BW1.0 F1.1 BW1.1"),
    "to the host": ("F0.0 O0.0 F0.1 L0.0 BW0.0 BW0.1", "F1.0 O1.0 L1.0 BW1.0 F1.1 BW1.1"),
    "to rank 1": ("F0.0 O0.0 F0.1 O0.1 L0.0 BW0.0 L0.1 BW0.1",
                  "K0.0 F1.0 K0.1 BW1.0 G0.0 F1.1 G0.1 BW1.1"),
}  # fmt: skip


def by_hand(name: str) -> Schedule:
    programs = [[Op.parse(token) for token in line.split()] for line in BY_HAND[name]]
    return Schedule.linear(name, 2, programs)


class Noisy(nn.Module):
    """Random numbers of three kinds, running statistics, a counter, a parameter used apart."""

    def __init__(self, seen: "SimpleQueue[str]") -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.BatchNorm1d(2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.gate = nn.Parameter(torch.ones(WIDTH))
        self.frozen = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.count = 0
        self.seen = seen

    def forward(self, x_BD: Tensor) -> Tensor:
        self.count += 1
        if not x_BD.is_meta:
            self.seen.put("F")
        x_BD = nn.functional.dropout(self.norm(self.up(x_BD)).relu(), 0.4)
        drawn = random.random() + float(np.random.rand())
        return self.down(x_BD) * self.gate * self.frozen * drawn


class InPlace(nn.Module):
    """Changes its input, which on the first stage is the batch's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x_BD: Tensor) -> Tensor:
        return self.inner(x_BD.add_(1))


def stage_of(rank: int, seen: "SimpleQueue[str]", hooks: str) -> nn.Module:
    if rank:
        return Head()
    stage = Noisy(seen)
    if hooks == "post-accumulate":
        for parameter in stage.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda _: seen.put("hook"))
    if hooks == "tensor":
        stage.up.weight.register_hook(lambda gradient: gradient * 2)
        stage.gate.register_hook(lambda gradient: seen.put("hook"))
    return stage


def train(rank: int, name: str, hooks: str, warm: bool) -> tuple[Any, list[str]]:
    """Two steps, from gradients that are there; all that a trace could be left in."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)
    seen: SimpleQueue[str] = SimpleQueue()  # the warm-up would restore a list
    stage = stage_of(rank, seen, hooks)
    for parameter in stage.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    before = [p.grad for p in stage.parameters()]
    pipeline = Pipeline(by_hand(name), stage, warm_up=warm)
    losses = []
    for step in range(2):
        draw = torch.Generator().manual_seed(step)
        x, y = (torch.randn(2, 4, n, generator=draw) for n in (WIDTH, 1))
        losses.append(pipeline.step(Batch(list(x), list(y))))
    gradients = [p.grad for p in stage.parameters()]
    assert all(a is b for a, b in zip(before, gradients, strict=True))
    state = list(stage.state_dict().values())
    drawn = torch.rand(1), random.random(), np.random.rand(), getattr(stage, "count", 0)
    return (losses, gradients, state, drawn), [seen.get() for _ in range(seen.qsize())]


def train_both_ways(rank: int, size: int, names: list[str], hooks: str) -> list[Any]:
    return [[train(rank, name, hooks, warm) for warm in (False, True)] for name in names]


@pytest.mark.parametrize("hooks", ["no", "post-accumulate", "tensor"])
def test_gradients_losses_statistics_and_random_numbers_are_those_without(
    pool: Any, hooks: str
) -> None:
    for rank, answers in enumerate(pool.run(train_both_ways, 2, list(BY_HAND), hooks)):
        for (cold, cold_seen), (warm, warm_seen) in answers:
            torch.testing.assert_close(warm, cold, rtol=0, atol=0)
            assert warm_seen.count("hook") == cold_seen.count("hook")
            assert rank or warm_seen.count("F") > cold_seen.count("F")


def train_in_place(rank: int, size: int) -> list[Any]:
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    answers = []
    for warm in (False, True):
        torch.manual_seed(3)
        stage = (InPlace(), Head())[rank]
        xs, ys = ([torch.ones(4, n) for _ in range(2)] for n in (WIDTH, 1))
        pipeline = Pipeline(by_hand("fused"), stage, warm_up=warm)
        pipeline.evaluate(Batch([x.clone() for x in xs], ys))
        pipeline.step(Batch(xs, ys))
        answers.append([*xs, *(p.grad for p in stage.parameters())])
    return answers


def test_a_batch_that_a_stage_changes_is_changed_once(pool: Any) -> None:
    for cold, warm in pool.run(train_in_place, 2):
        torch.testing.assert_close(warm, cold, rtol=0, atol=0)


def train_wrapped(rank: int, size: int, wrapper: str) -> list[Any]:
    """Two pipelines of two ranks, of replicas of the same stages."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    place, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    answers = []
    for warm in (False, True):
        torch.manual_seed(3)
        stage: Any = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)), Head())[place]
        if wrapper == "ddp":
            stage = DistributedDataParallel(stage, process_group=mesh["dp"].get_group())
        else:
            fully_shard(stage, mesh=mesh["dp"])
        pipeline = Pipeline(by_hand("split"), stage, group=mesh["pp"], warm_up=warm)
        torch.manual_seed(replica)
        for _ in range(2):
            x, y = torch.randn(2, 4, WIDTH), torch.randn(2, 4, 1)
            loss = pipeline.step(Batch(list(x), list(y)))
        gradients = [p.grad for p in stage.parameters()]
        whole = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in gradients]
        answers.append([loss, whole, [b.clone() for b in stage.buffers()]])
    return answers


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_replicas_are_reduced_as_without(pool: Any, wrapper: str) -> None:
    for cold, warm in pool.run(train_wrapped, 4, wrapper):
        torch.testing.assert_close(warm, cold, rtol=0, atol=0)


def train_layered(rank: int, size: int) -> list[Any]:
    """Layers with dropout seeded by the data, one recomputed; evaluated before the first step."""
    from synth.runtime.batch import Batch
    from synth.runtime.models.layered_stage import LayeredStage, Randomness, layer_calls
    from synth.runtime.pipeline import Pipeline

    answers = []
    for warm in (False, True):
        torch.manual_seed(3)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)) for _ in range(2)]
        modules = dict(enumerate(layers)) if rank == 0 else {2: Head()}
        calls = layer_calls(modules, ["a", "b", "head"], autocast="bfloat16", recomputed=["b"])
        stage = LayeredStage(
            list(calls.values()),
            is_first=rank == 0,
            is_last=rank == 1,
            randomness=Randomness(1, 4),
        )
        pipeline = Pipeline(by_hand("mixed"), {rank: stage}, warm_up=warm)
        draw = torch.Generator().manual_seed(1)
        x, y = (torch.randn(2, 4, n, generator=draw) for n in (WIDTH, 1))
        losses = [pipeline.evaluate(Batch(list(x), list(y)))]
        losses.append(pipeline.step(Batch(list(x), list(y))))
        answers.append([losses, [p.grad for p in stage.parameters()], torch.rand(1)])
    return answers


def test_seeded_and_recomputed_layers_are_as_without(pool: Any) -> None:
    for cold, warm in pool.run(train_layered, 2):
        torch.testing.assert_close(warm, cold, rtol=0, atol=0)


def train_compiled(rank: int, size: int, hooks: bool) -> list[list[int]]:
    """Number of compilations by step, without and with a warm-up."""
    from torch._dynamo.backends.debugging import aot_eager

    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    answers = []
    for warm in (False, True):
        torch._dynamo.reset()
        made: list[Any] = []
        stage: Any = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
        if hooks:
            stage[0].weight.register_post_accumulate_grad_hook(lambda _: None)

        def compiled(graph: Any, inputs: Any, made: list[Any] = made) -> Any:
            made.append(graph)
            return aot_eager(graph, inputs)

        program = [Op.parse(token) for token in ("F0.0", "F0.1", "B0.0", "W0.0", "BW0.1")]
        pipeline = Pipeline(
            Schedule.linear("one rank", 2, [program]),
            cast(nn.Module, torch.compile(stage, backend=compiled)),
            loss=nn.functional.mse_loss,
            warm_up=warm,
        )
        counts = []
        for _ in range(2):
            x = [torch.ones(2, 4) for _ in range(2)]
            pipeline.step(Batch(x, x))
            counts.append(len(made))
        answers.append(counts)
    return answers


@pytest.mark.parametrize("hooks", [False, True])
def test_a_compiled_stage_is_not_compiled_again(pool: Any, hooks: bool) -> None:
    ((cold, warm),) = pool.run(train_compiled, 1, hooks)
    assert warm == cold == [cold[0], cold[0]]


class Refusing(nn.Module):
    """Takes no zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        if not x.is_meta and not x.any():
            raise ValueError("nothing but zeros")
        return nn.functional.mse_loss(self.inner(x), targets)


def train_refusing(rank: int, size: int) -> Any:
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    stage = Refusing() if rank else nn.Linear(WIDTH, WIDTH)
    pipeline = Pipeline(by_hand("fused"), stage, warm_up=True)
    batch = Batch(list(torch.ones(2, 4, WIDTH)), list(torch.ones(2, 4, 1)))
    if rank == 0:
        return pipeline.step(batch)
    with pytest.warns(UserWarning, match="stage 1 could not be run ahead .* nothing but zeros"):
        return pipeline.step(batch)


def test_a_stage_that_takes_no_zeros_is_warned_of_and_trained(pool: Any) -> None:
    assert pool.run(train_refusing, 2)[1] > 0


def test_the_hosts_memory_is_allocated_ahead_of_the_first_move() -> None:
    link, sizes = HostLink(torch.device("cpu")), {0: 10, 1: 30, 2: 20}
    order = [(0, True), (1, True), (0, False), (2, True), (1, False), (2, False)]
    link.reserve(HostMove((0, j, 0), is_out, sizes[j]) for j, is_out in order)

    def refuse(num_bytes: int) -> Tensor:
        raise AssertionError(f"{num_bytes} bytes were allocated in a step")

    link._pool._make = refuse
    for _ in range(2):
        for j, is_out in order:
            row = (torch.full((sizes[j],), j, dtype=torch.uint8),)
            value = Value(ValueKind.MOVED_OUT if is_out else ValueKind.MOVED_BACK, 0, j)
            if is_out:
                link.send(row, Transfer(value, 0, HOST, 0, 0)).wait()
            else:
                (came,) = link.receive(
                    (torch.empty_like(row[0]),), Transfer(value, HOST, 0, 0, 0)
                ).wait()
                assert torch.equal(came, row[0])


def move_reserved(rank: int, size: int) -> list[int]:
    """Host memory allocated before and after the moves of a first step, in bytes."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    torch.manual_seed(3)
    stage = Head() if rank else Noisy(SimpleQueue())
    pipeline = Pipeline(by_hand("to the host"), stage, warm_up=True)
    channels: Any = pipeline._connections.channels
    host = channels._host

    made: list[int] = []
    make, reserve = host._pool._make, host.reserve

    def making(num_bytes: int) -> Any:
        made.append(num_bytes)
        return make(num_bytes)

    def reserving(moves: Any) -> None:
        reserve(moves)
        made.append(0)

    host._pool._make, host.reserve = making, reserving
    pipeline.step(Batch(list(torch.ones(2, 4, WIDTH)), list(torch.ones(2, 4, 1))))
    return made


def test_what_a_step_moves_was_allocated_before_it(pool: Any) -> None:
    for made in pool.run(move_reserved, 2):
        assert len(made) == 2 and made[0] > 0 and made[1] == 0
