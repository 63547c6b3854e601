"""Schedules with weight passing, on real stages: gradients, memory, order, failures."""

import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.costs.costs import uniform_costs
from synth.errors import RunFailure, SynthError
from synth.families import generate
from synth.op_kinds import OpKind
from synth.runtime.execution.weights.share_collectives import ShareCollective
from synth.schedule.lowering.lower import Lowered, lower
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op, ValueKind
from synth.schedule.placements import everywhere
from synth.schedule.weight_flow import Route, Sharded, WeightFlow
from synth.solver.problem import Problem
from synth.solver.weight_passing.first_orders import first_orders
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.programs import make_schedule
from synth.solver.weight_passing.unshard_placement import OpNeeds
from synth.solver.weight_passing.visit_options import VisitOptions
from tests.runtime.gradients import gradient_of
from tests.runtime.rank_threads import RankThreads, draw_weights, group_here
from tests.runtime.replaying import build_batch, build_stages, plain_autograd

WEIPIPE = [
    "weipipe",
    "weipipe:naive",
    "weipipe:wzb2",
    "weipipe:interleaved,ahead=0",
    "weipipe:wzb2,ahead=3",
]
ZERO = ["zero3:1", "zero3:2", "zero2:1", "zero1:1"]


def replayed(rank: int, size: int, schedules: list[Schedule]) -> list[list[int]]:
    """Run two steps of each schedule, and return the stages whose gradients at home differ.

    Sums on a chain are compared bit for bit, others to rounding. Nothing may be
    left in flight, and what is not at home must have no memory.
    """
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    answers = []
    for schedule in schedules:
        stages = build_stages(schedule.placement.num_stages)
        pipeline = Pipeline(
            schedule, {n: [stage] for n, stage in enumerate(stages)}, group=group_here()
        )
        wrong = []
        for _ in range(2):
            for module in pipeline.updated.values():
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter.grad.zero_()
            pipeline.step(Batch(*build_batch(schedule.num_micro_batches)))
            wanted = plain_autograd(len(stages), schedule.num_micro_batches)
            wrong += [n for n in pipeline.updated if not _is_right(pipeline, n, wanted[n])]
            assert pipeline.held_values == 0
        answers.append(wrong)
        _check_absent(schedule, stages, rank)
    return answers


def _is_right(pipeline: Any, stage: int, wanted: list[Tensor]) -> bool:
    kept = pipeline._connections.kept[stage]
    if not kept.is_shared:
        found = [gradient_of(p) for p in kept.weights.trained]
        if kept._flow.gradients == Route.CHAIN:
            return all(map(torch.equal, found, wanted))
        return all(map(_is_close, found, wanted))
    layout = kept.weights.layout.gradients
    whole = layout.zeros(torch.device("cpu"))
    for view, gradient in zip(layout.views(whole), wanted, strict=True):
        view.copy_(gradient)
    found = [gradient_of(p) for p in pipeline.updated[stage].parameters()]
    pairs = zip(found, kept.share_of(whole), strict=True)
    return all(_is_close(a, b) for a, b in pairs)


def _is_close(found: Tensor, wanted: Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)


def _check_absent(schedule: Schedule, stages: list[nn.Module], rank: int) -> None:
    flow = schedule.weights
    assert flow is not None
    for number, stage in enumerate(stages):
        if flow.sharded == "weights" and not flow.keeps_all(number, rank):
            for parameter in stage.parameters():
                assert parameter.untyped_storage().nbytes() == parameter.element_size()
                assert parameter.isnan().all()
                assert parameter.grad is None


def made(names: list[str], num_ranks: int) -> list[Schedule]:
    return [generate(name, num_ranks, 3 * num_ranks) for name in names]


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_gradients_that_are_passed_are_autograds_bit_for_bit(num_ranks: int) -> None:
    names = WEIPIPE + ["weipipe:wzb1"] * (num_ranks % 2 == 0)
    by_rank = RankThreads().run(replayed, num_ranks, made(names, num_ranks))
    assert by_rank == [[[]] * len(names)] * num_ranks


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_shares_of_reduced_gradients_are_autograds(num_ranks: int) -> None:
    by_rank = RankThreads().run(replayed, num_ranks, made(ZERO, num_ranks))
    assert by_rank == [[[]] * len(ZERO)] * num_ranks


TAWPIPE = ["tawpipe", "tawpipe:nodes=1", "tawpipe:ahead=0", "tawpipe:ahead=2"]


def test_gradients_that_go_up_a_tree_are_autograds_to_rounding() -> None:
    names = [*TAWPIPE, "tawpipe:nodes=4"]
    by_rank = RankThreads().run(replayed, 4, made(names, 4))
    assert by_rank == [[[]] * len(names)] * 4


class _Scale(nn.Module):
    """A product that no rule of the split backward knows, so that B computes its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x * self.factor)


def split_on_one_rank(rank: int, size: int, name: str) -> bool:
    """True if the gradient of a stage whose backwards are split is autograd's."""
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, 1, 2)
    kinds = {OpKind.BW: (OpKind.B, OpKind.W)}
    ops = [op._replace(kind=k) for op in schedule.programs[0] for k in kinds.get(op.kind, (op[0],))]
    split = replace(schedule, programs=(tuple(ops),))
    stage, alone, x = _Scale(), _Scale(), torch.linspace(-1, 1, 16).view(4, 4)
    pipeline = Pipeline(split, {0: stage}, group=group_here(), loss=nn.functional.mse_loss)
    pipeline.step(pipeline.split(x, targets=x))
    nn.functional.mse_loss(alone(x), x).backward()
    return torch.allclose(gradient_of(stage.factor), gradient_of(alone.factor))


@pytest.mark.parametrize("name", ["zero3:1", "zero2:1", "zero1:1"])
def test_one_rank_may_split_its_backwards(name: str) -> None:
    assert RankThreads().run(split_on_one_rank, 1, name) == [True]


def test_gradients_are_right_however_often_a_search_reduces_them() -> None:
    costs = uniform_costs(2, forward_us=1, backward_input_us=1, backward_weight_us=1)
    gather = WeightPassingProblem(Problem(costs, everywhere(2, 2), 6), WeightMovement.GATHER)
    order = next(iter(first_orders(gather)))
    choices_of_visits = [
        VisitOptions(scatter_every=n, sharded=level) for level in Sharded for n in (1, 2, 3)
    ]
    schedules = [
        make_schedule(OpNeeds(gather), [order], visit_options, None)
        for visit_options in choices_of_visits
    ]
    assert RankThreads().run(replayed, 2, schedules) == [[[]] * len(choices_of_visits)] * 2


def reduced_twice(rank: int, size: int, lowered: Lowered) -> None:
    """Run a step of a schedule that nothing has verified."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    stages = build_stages(lowered.schedule.placement.num_stages)
    pipeline = Pipeline(lowered, {n: [s] for n, s in enumerate(stages)}, group=group_here())
    pipeline.step(Batch(*build_batch(lowered.schedule.num_micro_batches)))


def test_whole_gradients_that_would_be_reduced_twice_stop_the_step() -> None:
    each = generate("zero2:1", 2, 4)
    assert each.weights is not None
    whole = replace(each, weights=replace(each.weights, sharded=Sharded.OPTIMIZER))
    costs = uniform_costs(2, forward_us=1, backward_input_us=1, backward_weight_us=1)
    # The instruction is named, as that of any failure.
    with pytest.raises(RunFailure, match=r"COLLECT gradient of stage 1 .*are to be reduced once"):
        RankThreads().run(reduced_twice, 2, lower(whole, costs))


def test_weights_may_be_sent_from_their_home_to_each_visit() -> None:
    schedule = generate("weipipe", 3, 6)
    assert schedule.weights is not None
    star = replace(schedule, weights=replace(schedule.weights, weights=Route.STAR))
    assert RankThreads().run(replayed, 3, [star]) == [[[]]] * 3


def test_a_chain_may_visit_a_rank_twice_in_a_row() -> None:
    program = [
        Op(kind, 0, j, 1)
        for j in range(2)
        for kind in (OpKind.UNSHARD, OpKind.F, OpKind.BW, OpKind.RESHARD)
    ]
    flow = WeightFlow(((0,),), weights=Route.CHAIN, gradients=Route.CHAIN)
    placement = Placement(((0,), (1,)))
    schedule = Schedule(placement, 2, ((), tuple(program)), "in a row", weights=flow)
    assert RankThreads().run(replayed, 2, [schedule]) == [[[]]] * 2


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_gloo_does_the_same(pool: Any, num_ranks: int) -> None:
    names = ["weipipe", "weipipe:naive", "weipipe:wzb2", "zero3:1", "zero1:1"]
    names += ["weipipe:wzb1"] * (num_ranks % 2 == 0)
    by_rank = pool.run(replayed, num_ranks, made(names, num_ranks))
    assert by_rank == [[[]] * len(names)] * num_ranks


def clipped(rank: int, size: int, name: str) -> tuple[float, float]:
    """The global norm before gradients are clipped, and this rank's sum of squares after it."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, 2 * size)
    stages = build_stages(schedule.placement.num_stages)
    pipeline = Pipeline(schedule, {n: [s] for n, s in enumerate(stages)}, group=group_here())
    pipeline.step(Batch(*build_batch(schedule.num_micro_batches)))
    norm = float(pipeline.clip_grad_norm_(0.1))
    updated = (p for each in pipeline.updated.values() for p in each.parameters())
    return norm, sum(float(gradient_of(p).double().square().sum()) for p in updated)


@pytest.mark.parametrize("name", ["weipipe", "weipipe:wzb2", "zero3:1", "zero2:1", "zero1:1"])
def test_gradients_are_clipped_by_the_norm_of_one_process(name: str) -> None:
    found = RankThreads().run(clipped, 2, name)
    gradients = [g for stage in plain_autograd(2, 4) for g in stage]
    wanted = sum(float(gradient.double().square().sum()) for gradient in gradients) ** 0.5
    assert wanted > 0.1
    assert [norm for norm, _ in found] == pytest.approx([wanted] * 2, rel=1e-6)
    assert sum(squares for _, squares in found) ** 0.5 == pytest.approx(0.1, rel=1e-4)


def beside_fsdp(rank: int, size: int, name: str) -> float:
    """The largest relative difference of a stage's gradients from those of `fully_shard`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, 2 * size)
    count, num_stages = schedule.num_micro_batches, schedule.placement.num_stages
    inputs, targets = build_batch(count)
    ours, theirs = build_stages(num_stages), build_stages(num_stages)
    pipeline = Pipeline(schedule, {n: [stage] for n, stage in enumerate(ours)}, group=group_here())
    pipeline.step(Batch(inputs, targets))
    mesh = init_device_mesh("cpu", (size,))
    for stage in theirs:
        fully_shard(stage, mesh=mesh)
    for x, target in list(zip(inputs, targets, strict=True))[rank::size]:
        for stage in theirs[:-1]:
            x = stage(x)
        # FSDP2 takes the mean over ranks, of which each has its own micro-batches.
        (theirs[-1](x, target) * size / count).backward()
    shared = pipeline.shared_parameters
    worst = 0.0
    for stage, other in zip(ours, theirs, strict=True):
        for parameter, sharded in zip(stage.parameters(), other.parameters(), strict=True):
            own: Any = shared[parameter].within(gradient_of(shared[parameter].part))
            found, wanted = own.full_tensor(), gradient_of(sharded).full_tensor()  # type: ignore[attr-defined]
            worst = max(worst, float((found - wanted).norm() / wanted.norm()))
    return worst


@pytest.mark.parametrize("name", ["zero3:2", "zero2:1", "zero1:1"])
def test_gradients_are_those_of_fsdp2(pool: Any, name: str) -> None:
    assert max(pool.run(beside_fsdp, 2, name)) < 1e-6


def sent_bytes(
    rank: int, size: int, name: str, dtype: torch.dtype, gradient_dtype: torch.dtype
) -> tuple[list[int], list[int]]:
    """The bytes of weights and of sums that a rank sends in a step, and those of the plan."""
    from synth.runtime.optimize import widen_gradients
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, 2 * size)
    # All tensors are of whole 64 bytes.
    stages = {n: nn.Linear(32, 32, dtype=dtype) for n in range(size)}
    if gradient_dtype != dtype:
        widen_gradients(stages.values())
    pipeline = Pipeline(schedule, stages, group=group_here(), loss=nn.functional.mse_loss)
    channels: Any = pipeline._connections.channels
    send, sent = channels.send, Counter[ValueKind]()

    def counting(tensors: Any, transfer: Any) -> Any:
        sent[transfer.value.kind] += sum(tensor.nbytes for tensor in tensors)
        return send(tensors, transfer)

    channels.send = counting
    x = torch.ones(2 * size, 32, dtype=dtype)
    pipeline.step(pipeline.split(x, targets=x))
    num_parameters = 32 * 32 + 32
    parameter_bytes = num_parameters * dtype.itemsize
    gradient_bytes = num_parameters * gradient_dtype.itemsize
    costs = uniform_costs(
        size,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        parameter_bytes=parameter_bytes,
        gradient_bytes=gradient_bytes,
        static_bytes=parameter_bytes + gradient_bytes,
    )
    planned = Counter[ValueKind]()
    for transfer in lower(schedule, costs).transfers:
        if transfer.source == rank:
            planned[transfer.value.kind] += transfer.num_bytes
    kinds = (ValueKind.WEIGHTS, ValueKind.GRAD_SUM)
    assert set(sent) == set(kinds)
    return [sent[kind] for kind in kinds], [planned[kind] for kind in kinds]


@pytest.mark.parametrize(
    ("dtype", "gradient_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
    ],
)
@pytest.mark.parametrize("name", ["weipipe", "weipipe:naive", "weipipe:wzb2"])
def test_the_bytes_sent_are_those_of_the_plan_in_the_precision_of_computation(
    name: str, dtype: torch.dtype, gradient_dtype: torch.dtype
) -> None:
    for sent, planned in RankThreads().run(sent_bytes, 3, name, dtype, gradient_dtype):
        assert min(sent) > 0 and sent == planned


class _ManyCalls(nn.Module):
    """Calls with each rule of the split backward, on parameters and on parts of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.turned = nn.Linear(4, 4), nn.Parameter(torch.empty(4, 4))
        self.stack, self.norm = nn.Parameter(torch.empty(3, 4, 4)), nn.LayerNorm(4)
        self.window = nn.Conv1d(1, 1, 3, padding=1)
        self.table = nn.Embedding(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) @ self.turned.T + self.table(torch.arange(len(x)) % 5)
        for part in self.stack:
            x = torch.tanh(x @ part)
        x = torch.einsum("bi,nij->bj", x, self.stack)
        out: Tensor = self.norm(self.window(x[:, None])[:, 0])
        return out


def many_calls(rank: int, size: int, name: str) -> list[str]:
    """The parameters at home whose gradients are not those of one process."""
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, 2 * size)
    x = torch.linspace(-1, 1, 16 * size).view(-1, 4)
    stages, alone = ([_ManyCalls() for _ in range(size)] for _ in range(2))
    for modules in (stages, alone):
        draw_weights(modules, seed=5)
    pipeline = Pipeline(
        schedule, dict(enumerate(stages)), group=group_here(), loss=nn.functional.mse_loss
    )
    pipeline.step(pipeline.split(x, targets=x))
    for part in x.chunk(2 * size):
        y = part
        for module in alone:
            y = module(y)
        (nn.functional.mse_loss(y, part) / (2 * size)).backward()
    mine = next(iter(pipeline.updated))
    pairs = zip(stages[mine].named_parameters(), alone[mine].parameters(), strict=True)
    return [n for (n, p), q in pairs if not torch.allclose(gradient_of(p), gradient_of(q))]


@pytest.mark.parametrize("name", ["weipipe", "weipipe:wzb2"])
def test_weights_may_be_gone_before_w_whatever_is_called(name: str) -> None:
    assert RankThreads().run(many_calls, 2, name) == [[], []]


def warmed_up(rank: int, size: int, name: str) -> bool:
    """True if a rank's gradients are those without a warm-up, and an evaluation's loss repeats."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, 2 * size)
    num_stages = schedule.placement.num_stages
    batch, found = Batch(*build_batch(schedule.num_micro_batches)), []
    for warm_up in (False, True):
        stages = build_stages(num_stages)
        pipeline = Pipeline(
            schedule,
            {n: [stage] for n, stage in enumerate(stages)},
            group=group_here(),
            warm_up=warm_up,
        )
        before = pipeline.evaluate(batch)
        loss = pipeline.step(batch)
        after = pipeline.evaluate(batch)
        assert before is not None and loss is not None and after is not None
        assert torch.equal(before, after) and torch.allclose(before, loss)
        updated = pipeline.updated.values()
        found.append([gradient_of(p) for module in updated for p in module.parameters()])
    return all(map(torch.equal, *found))


@pytest.mark.parametrize("name", ["weipipe", "weipipe:wzb2", "zero3:1", "zero1:1"])
def test_warm_up_and_evaluation_leave_no_trace(name: str) -> None:
    assert all(RankThreads().run(warmed_up, 2, name))


def own_loop(rank: int, size: int, name: str, zeroes: str) -> list[float]:
    """The losses of a training loop with one of torch's optimizers, as far as of this rank."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, 2 * size)
    stages = build_stages(schedule.placement.num_stages)
    pipeline = Pipeline(
        schedule, {n: [stage] for n, stage in enumerate(stages)}, group=group_here()
    )
    updated = [p for module in pipeline.updated.values() for p in module.parameters()]
    optimizer = torch.optim.AdamW(updated, 1e-2)
    losses = []
    for _ in range(4):
        loss = pipeline.step(Batch(*build_batch(schedule.num_micro_batches)))
        assert loss is not None
        losses.append(float(loss))
        optimizer.step()
        optimizer.zero_grad(set_to_none=zeroes != "in place")
        if zeroes == "modules":
            for stage in stages:
                stage.zero_grad()
        elif zeroes == "replaced":
            for module in (*stages, *pipeline.updated.values()):
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter.grad = torch.zeros_like(parameter.grad)
    return losses


@pytest.mark.parametrize("zeroes", ["in place", "to None", "modules", "replaced"])
def test_a_loop_of_ones_own_updates_what_is_at_home(zeroes: str) -> None:
    stages = build_stages(2)
    optimizer = torch.optim.AdamW([p for stage in stages for p in stage.parameters()], 1e-2)
    wanted = []
    for _ in range(4):
        wanted.append(0.0)
        for x, targets in zip(*build_batch(4), strict=True):
            loss = stages[1](stages[0](x), targets) / 4
            loss.backward()
            wanted[-1] += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    for name in ("weipipe", "zero3:1", "zero2:1", "zero1:1"):
        by_rank = RankThreads().run(own_loop, 2, name, zeroes)
        assert [sum(shares) for shares in zip(*by_rank, strict=True)] == pytest.approx(wanted)


class _Meeting(nn.Module):
    """A layer whose forward waits for an event, or sets it."""

    def __init__(self, event: threading.Event, waits: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.event, self.waits = event, waits

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            if self.waits:
                assert self.event.wait(20), "nobody was handed the weights"
            else:
                self.event.set()
        out: Tensor = self.layer(x)
        return out


def relay_while_computing(rank: int, size: int) -> None:
    """Rank 0 cannot end its first op before rank 1 has run stage 1, which comes through rank 0."""
    from synth.runtime.pipeline import Pipeline

    if rank == 0:
        _EVENT.clear()
    stages: list[nn.Module] = [nn.Linear(4, 4) for _ in range(size)]
    if rank == 0:
        stages[0] = _Meeting(_EVENT, waits=True)
    else:
        stages[0] = _Meeting(threading.Event(), waits=False)
    stages[1] = _Meeting(_EVENT if rank == 1 else threading.Event(), waits=False)
    draw_weights(stages, seed=1)
    schedule = generate("weipipe:naive", size, size)
    pipeline = Pipeline(
        schedule, dict(enumerate(stages)), group=group_here(), loss=nn.functional.mse_loss
    )
    x = torch.ones(size, 4)
    pipeline.step(pipeline.split(x, targets=x))


_EVENT = threading.Event()


def test_weights_are_handed_on_while_the_rank_computes() -> None:
    programs = generate("weipipe:naive", 3, 3).programs
    assert [str(op) for op in programs[0][:2]] == ["U1.0", "F0.0"]
    RankThreads(timeout_s=30).run(relay_while_computing, 3)


class _Ended:
    """A collective that has ended."""

    def wait(self) -> None:
        pass


@pytest.mark.parametrize("language", ["C++", "Python"])
def test_a_collective_ends_once_its_transport_has_let_go_of_the_buffer(language: str) -> None:
    collectives: list[ShareCollective] = []
    held: list[Tensor] = []

    def start() -> None:
        part: Any = torch.ones(4)
        # The graph holds the factor.
        held.append(part if language == "Python" else part * nn.Parameter(torch.ones(4)))
        collectives.append(ShareCollective(_Ended(), part))

    start()
    timer = threading.Timer(0.05, held.clear)
    timer.start()
    collectives[0].wait()
    is_released = not held
    timer.join()
    assert is_released


class _Failing(nn.Module):
    """A layer that fails at one of its forwards."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.left = at

    def forward(self, x: Tensor) -> Tensor:
        if self.left is not None and torch.is_grad_enabled():
            self.left -= 1
            if self.left < 0:
                raise ValueError("the rank that fails")
        out: Tensor = self.layer(x)
        return out


def fail_in_the_second_step(rank: int, size: int, name: str, failing: int) -> str:
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, 2 * size)
    num_stages = schedule.placement.num_stages
    at = schedule.num_micro_batches // size + 1 if rank == failing else None
    stages = {n: _Failing(at if n == 1 else None) for n in range(num_stages)}
    pipeline = Pipeline(schedule, stages, loss=nn.functional.mse_loss, group=group_here())
    x = torch.ones(2 * size, 64)
    with pytest.raises(RunFailure) as caught:
        for _ in range(2):
            pipeline.step(pipeline.split(x, targets=x))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "size", "failing"),
    [("weipipe", 2, 0), ("weipipe", 4, 2), ("zero3:1", 2, 1)],
)
def test_ranks_that_wait_for_weights_of_one_that_failed_fail_too(
    pool: Any, name: str, size: int, failing: int
) -> None:
    said = pool.run(fail_in_the_second_step, size, name, failing)
    assert f"rank {failing} failed in F1" in said[failing]
    for rank in set(range(size)) - {failing}:
        assert said[rank].startswith(f"rank {rank} failed ")
        assert "imed out" not in said[rank]


# Refusals


def build(rank: int, size: int, stages: dict[int, nn.Module]) -> str:
    from synth.runtime.pipeline import Pipeline

    with pytest.raises(SynthError) as caught:
        Pipeline(generate("weipipe", size, size), stages, group=group_here())
    return str(caught.value)


def test_a_home_without_values_is_refused_on_all_ranks_while_others_need_none() -> None:
    here, nowhere = nn.Linear(3, 3), nn.Linear(3, 3, device="meta")
    said = RankThreads().run(build, 2, {0: here, 1: nowhere})
    assert "stage 1 has its home on rank 1, and its parameters have no values" in said[1]
    assert "rank 1 failed" in said[0]
    for rank, module in enumerate(RankThreads().run(sent_home, 2)):
        assert module == [rank]


def sent_home(rank: int, size: int) -> list[int]:
    """Build with values at home alone, step, and return the stages at home."""
    from synth.runtime.pipeline import Pipeline

    stages = {n: nn.Linear(3, 3, device=None if n == rank else "meta") for n in range(size)}
    schedule = generate("weipipe", size, size)
    pipeline = Pipeline(schedule, stages, group=group_here(), loss=nn.functional.mse_loss)
    x = torch.ones(size, 3)
    loss = pipeline.step(pipeline.split(x, targets=x))
    assert loss is not None and loss.isfinite()
    return list(pipeline.updated)


class _Scaled(nn.Linear):
    """A linear layer whose output is scaled by a buffer."""

    scale: Tensor

    def __init__(self, device: str | None) -> None:
        super().__init__(3, 3, device=device)
        self.register_buffer("scale", torch.full((3,), 0.5, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def scaled(rank: int, size: int, name: str, away: str) -> list[list[float]]:
    """Build with other buffers away from home, step, and return those that the rank has."""
    from synth.runtime.pipeline import Pipeline

    schedule = generate(name, size, size)
    assert schedule.weights is not None
    stages: dict[int, nn.Module] = {}
    for n in range(schedule.placement.num_stages):
        is_first_home = schedule.weights.homes[n][0] == rank
        stages[n] = _Scaled("meta" if away == "meta" and not is_first_home else None)
        if not is_first_home:
            next(stages[n].buffers()).fill_(7.0)
    pipeline = Pipeline(schedule, stages, group=group_here(), loss=nn.functional.mse_loss)
    x = torch.ones(size, 3)
    loss = pipeline.step(pipeline.split(x, targets=x))
    assert loss is not None and loss.isfinite()
    return [next(stage.buffers()).tolist() for stage in stages.values()]


@pytest.mark.parametrize(
    ("name", "away"), [("weipipe", "differs"), ("weipipe", "meta"), ("zero3:1", "differs")]
)
def test_buffers_start_as_at_home(name: str, away: str) -> None:
    assert RankThreads().run(scaled, 2, name, away) == [[[0.5] * 3] * 2] * 2


def test_a_parameter_of_two_stages_is_refused() -> None:
    one = nn.Linear(3, 3)
    said = RankThreads().run(build, 2, {0: one, 1: nn.Sequential(one)})
    assert all("stages 0 and 1 share a parameter" in text for text in said)
