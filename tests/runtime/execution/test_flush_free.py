"""Schedules without a flush, replayed: weights equal those of the papers' recurrences bit for bit.

The references run in one process, micro-batch by micro-batch, and keep a list of versions for each
stage. Which version is read is written down here as a formula, not taken from the schedule.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from synth.errors import SynthError
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.optimizer import OptimizerKind, OptimizerSpec
from synth.schedule.model import Schedule
from synth.schedule.ops import ValueKind
from synth.schedule.version_facts import version_facts
from synth.schedule.weight_versions import BackwardReads, ForwardReads, WeightVersions
from tests.runtime.rank_threads import RankThreads, draw_weights, group_here
from tests.runtime.replaying import BATCH, WIDTH, build_stages

LEARNING_RATE, ITERATIONS = 0.004, 2
ANNEALING = 4  # updates
OPTIMIZERS = {
    "sgd": OptimizerSpec(kind=OptimizerKind.SGD),
    "sgd:0.9": OptimizerSpec(kind=OptimizerKind.SGD, momentum=0.9),
    "adamw": OptimizerSpec(),
}

# By name: the micro-batches of an update, and the versions that F and B of stage s of n read for
# micro-batch j.
Reads = Callable[[int, int, int], tuple[int, int]]


def _both(version: int) -> tuple[int, int]:
    return max(version, 0), max(version, 0)


def _reads(name: str, n: int, k: int) -> Reads:
    return {
        "pipedream": lambda s, j, _: _both(j - (n - 1 - s)),
        "pipedream:vertical": lambda s, j, _: _both(j - (n - 1)),
        f"2bw:every={k}": lambda s, j, _: _both(j // k - 1),
        f"2bw:recompute,every={k}": lambda s, j, _: _both(j // k - 1),
        "delayed-update": lambda s, j, _: (max(j - 2 * (n - 1 - s), 0), j),
        f"paci:every={k}": lambda s, j, _: (max(j - (n - 1 - s), 0) // k, j // k),
    }[name]


STASHED = ("pipedream", "pipedream:vertical", "2bw:every={k}", "2bw:recompute,every={k}")
NEWEST = ("delayed-update", "paci:every={k}", "paci:every=1")


class Plain(nn.Module):
    """A linear layer and tanh, of which the backward is written by hand below."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x_BD: Tensor, targets_BD: Tensor | None = None) -> Tensor:
        y_BD = torch.tanh(self.linear(x_BD))
        return y_BD if targets_BD is None else nn.functional.mse_loss(y_BD, targets_BD)


def plain_stages(count: int) -> list[nn.Module]:
    stages: list[nn.Module] = [Plain() for _ in range(count)]
    draw_weights(stages, seed=5)
    return stages


def batch_of(m: int, width: int, iteration: int) -> tuple[list[Tensor], list[Tensor]]:
    draw = torch.Generator().manual_seed(7 + iteration)
    inputs = torch.randn((m, BATCH, WIDTH), generator=draw)
    return list(inputs), list(torch.randn((m, BATCH, width), generator=draw))


class Versions:
    """The versions of every stage since the pipeline was empty, and torch's own optimizers."""

    def __init__(self, stages: Sequence[nn.Module], optimizer: str) -> None:
        self.stages = stages
        self.optimizers = [_torch_optimizer(stage, optimizer) for stage in stages]
        self.kept: list[list[dict[str, Tensor]]] = [[] for _ in stages]

    def begin(self) -> None:
        self.kept = [[_copy(stage)] for stage in self.stages]

    def update(self) -> None:
        for stage in range(len(self.stages)):
            self.update_stage(stage)

    def update_stage(self, stage: int) -> None:
        self.optimizers[stage].step()
        self.optimizers[stage].zero_grad()
        self.kept[stage].append(_copy(self.stages[stage]))


def _copy(stage: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in stage.named_parameters()}


def _torch_optimizer(stage: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "adamw":
        return torch.optim.AdamW(stage.parameters(), LEARNING_RATE, weight_decay=0.0, fused=True)
    momentum = OPTIMIZERS[name].momentum
    return torch.optim.SGD(stage.parameters(), LEARNING_RATE, momentum=momentum, fused=True)


def _add(stage: nn.Module, name: str, gradient: Tensor) -> None:
    parameter = stage.get_parameter(name)
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    parameter.grad += gradient


def by_autograd(stages: Sequence[nn.Module], reads: Reads, k: int, m: int, optimizer: str) -> None:
    """Train on the gradients of f(W_0^a, W_1^b, …), each stage with the version that it reads."""
    state = Versions(stages, optimizer)
    for iteration in range(ITERATIONS):
        state.begin()
        for j, (x, targets) in enumerate(zip(*batch_of(m, 1, iteration), strict=True)):
            used = []
            for s, stage in enumerate(stages):
                version, again = reads(s, j, k)
                assert version == again
                weights = {
                    name: tensor.clone().requires_grad_()
                    for name, tensor in state.kept[s][version].items()
                }
                used.append(weights)
                arguments = (x, targets) if s == len(stages) - 1 else (x,)
                x = functional_call(stage, weights, arguments)
            (x * (1 / k)).backward()
            for stage, weights in zip(stages, used, strict=True):
                for name, tensor in weights.items():
                    assert tensor.grad is not None
                    _add(stage, name, tensor.grad)
            if (j + 1) % k == 0:
                state.update()


def by_hand(stages: Sequence[nn.Module], reads: Reads, k: int, m: int, optimizer: str) -> None:
    """Train with backwards that use other weights than their forwards did."""
    state = Versions(stages, optimizer)
    for iteration in range(ITERATIONS):
        state.begin()
        for j, (x, targets) in enumerate(zip(*batch_of(m, WIDTH, iteration), strict=True)):
            inputs, outputs = [], []
            for s in range(len(stages)):
                weights = state.kept[s][reads(s, j, k)[0]]
                inputs.append(x)
                x = torch.addmm(weights["linear.bias"], x, weights["linear.weight"].t()).tanh()
                outputs.append(x)
            seed = torch.tensor(1 / k)
            gradient = torch.ops.aten.mse_loss_backward(seed, x, targets, 1)
            for s in reversed(range(len(stages))):
                gradient = torch.ops.aten.tanh_backward(gradient, outputs[s])
                _add(stages[s], "linear.weight", gradient.t().mm(inputs[s]))
                _add(stages[s], "linear.bias", gradient.sum(0))
                gradient = gradient.mm(state.kept[s][reads(s, j, k)[1]]["linear.weight"])
            if (j + 1) % k == 0:
                state.update()


def train(
    rank: int,
    size: int,
    schedules: list[Schedule],
    is_plain: bool,
    optimizer: str,
    clip_norm: float | None = None,
) -> list[tuple[list[list[Tensor]], int, int]]:
    """Run each schedule's part of a rank; return its weights by stage, the most versions
    (the newest ones count once), and how many values are left.

    The versions are counted in the executor's table, after each instruction.
    """
    from synth.runtime.batch import Batch
    from synth.runtime.optimize import StepSettings, build_flush_free_step
    from synth.runtime.pipeline import Pipeline

    answers = []
    for schedule in schedules:
        where = schedule.placement
        stages = plain_stages(size) if is_plain else build_stages(where.num_stages)
        mine = {stage: stages[stage] for stage, _ in where.held[rank]}
        pipeline = Pipeline(schedule, mine, group=group_here())
        pipeline.stepper = build_flush_free_step(
            mine,
            OPTIMIZERS[optimizer],
            StepSettings(LEARNING_RATE),
            delays=pipeline.delays,
            device=torch.device("cpu"),
            clip_norm=clip_norm,
        )
        most = _counting_versions(pipeline)
        for iteration in range(ITERATIONS):
            width = WIDTH if is_plain else 1
            pipeline.step(Batch(*batch_of(schedule.num_micro_batches, width, iteration)))
        weights = [[p.detach().clone() for p in mine[s].parameters()] for s in sorted(mine)]
        answers.append((weights, most[0], pipeline.held_values))
    return answers


def _counting_versions(pipeline: Any) -> list[int]:
    program, most = pipeline._connections.executor._program, [1]
    slots = program._slots.numbers
    of_weights = [slot for value, slot in slots.items() if value.kind == ValueKind.WEIGHTS]

    def counted(run: Callable[[], None]) -> None:
        run()
        table = program._table.values
        most[0] = max(most[0], 1 + sum(table[slot] is not None for slot in of_weights))

    program._actions = [(lambda run=run: counted(run)) for run in program._actions]
    return most


def _schedules(names: Sequence[str], n: int) -> dict[str, Schedule]:
    k = max(2, n - 1)
    m = 12 if n != 4 else 15
    return {
        (name := text.format(k=k)): generate(name, n, m if "every=1" not in name else 6)
        for text in names
    }


def _check(by_rank: list[Any], index: int, schedule: Schedule, stages: list[nn.Module]) -> None:
    from synth.runtime.pipeline.rank_parts import lower_verified

    facts = version_facts(lower_verified(schedule))
    for rank, held in enumerate(schedule.placement.held):
        weights, most, left = by_rank[rank][index]
        for (s, _), found in zip(held, weights, strict=True):
            assert all(map(torch.equal, found, stages[s].parameters())), (schedule.name, s)
        assert (most, left) == (1 + sum(facts[s].alive - 1 for s, _ in held), 0)


def _check_stashed(ranks: Any, n: int, optimizer: str) -> None:
    schedules = _schedules(STASHED, n)
    by_rank = ranks.run(train, n, list(schedules.values()), False, optimizer)
    for index, (name, schedule) in enumerate(schedules.items()):
        assert schedule.versions is not None
        stages, k = build_stages(n), schedule.versions.every
        by_autograd(stages, _reads(name, n, k), k, schedule.num_micro_batches, optimizer)
        _check(by_rank, index, schedule, stages)


def _check_newest(ranks: Any, n: int, optimizer: str) -> None:
    schedules = _schedules(NEWEST, n)
    by_rank = ranks.run(train, n, list(schedules.values()), True, optimizer)
    for index, (name, schedule) in enumerate(schedules.items()):
        assert schedule.versions is not None
        stages, k = plain_stages(n), schedule.versions.every
        by_hand(stages, _reads(name, n, k), k, schedule.num_micro_batches, optimizer)
        _check(by_rank, index, schedule, stages)


def _check_two_groups(ranks: Any, n: int, optimizer: str) -> None:
    k = n + 1
    schedule = generate(f"wpipe:every={k}", n, 4 * k)
    by_rank = ranks.run(train, n, [schedule], False, optimizer)
    stages = build_stages(2 * n)

    def reads(s: int, j: int, k: int) -> tuple[int, int]:
        return _both(j // k - 1) if s < n else _both(j // k)

    by_autograd(stages, reads, k, 4 * k, optimizer)
    _check(by_rank, 0, schedule, stages)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_stashed_versions_train_as_their_recurrence_says(n: int, optimizer: str) -> None:
    _check_stashed(RankThreads(), n, optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_two_groups_of_stages_train_as_their_recurrence_says(n: int, optimizer: str) -> None:
    _check_two_groups(RankThreads(), n, optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_backwards_that_read_newer_weights_train_as_written_by_hand(n: int, optimizer: str) -> None:
    _check_newest(RankThreads(), n, optimizer)


def test_the_references_agree_where_both_apply() -> None:
    reads = _reads("pipedream", 3, 1)
    one, other = plain_stages(3), plain_stages(3)
    by_hand(one, reads, 1, 6, "sgd")
    width = WIDTH
    state = Versions(other, "sgd")
    for iteration in range(ITERATIONS):
        state.begin()
        for j, (x, targets) in enumerate(zip(*batch_of(6, width, iteration), strict=True)):
            used = []
            for s, stage in enumerate(other):
                weights = {
                    name: tensor.clone().requires_grad_()
                    for name, tensor in state.kept[s][reads(s, j, 1)[0]].items()
                }
                used.append(weights)
                x = functional_call(stage, weights, (x, targets) if s == 2 else (x,))
            x.backward()
            for stage, weights in zip(other, used, strict=True):
                for name, tensor in weights.items():
                    assert tensor.grad is not None
                    _add(stage, name, tensor.grad)
            state.update()
    for left, right in zip(one, other, strict=True):
        assert all(map(torch.equal, left.parameters(), right.parameters()))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_with_gloo_processes_weights_are_the_same(pool: Any, n: int, optimizer: str) -> None:
    _check_stashed(pool, n, optimizer)
    _check_two_groups(pool, n, optimizer)
    _check_newest(pool, n, optimizer)


def _refused(rank: int, size: int, schedule: Schedule, what: str) -> str:
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    stages = build_stages(size)
    tied = {"shared": next(iter(stages[0].parameters()))} if what == "tied" else None
    try:
        pipeline = Pipeline(schedule, {rank: stages[rank]}, group=group_here(), tied=tied)
        pipeline.step(Batch(*batch_of(schedule.num_micro_batches, 1, 0)))
    except SynthError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("stepper", "give the pipeline a stepper"),
        ("tied", "ranks have tied parameters"),
        ("mixed", "which autograd cannot do"),
    ],
)
def test_what_cannot_be_run_is_refused(what: str, message: str) -> None:
    schedule = generate("pipedream", 2, 4)
    if what == "mixed":
        rule = WeightVersions(1, ForwardReads.VERTICAL, BackwardReads.NEWEST)
        schedule = replace(schedule, versions=rule)
    for said in RankThreads().run(_refused, 2, schedule, what):
        assert message in said


# Corrections of late gradients


def test_the_rate_is_divided_by_the_delay_at_first_and_whole_at_last() -> None:
    from synth.runtime.optimize import DelayedRate, StageUpdate, StepSettings

    rule, settings = DelayedRate(annealing_updates=8), StepSettings(0.6)
    rates = [rule(StageUpdate(0, t, 4), settings).learning_rate for t in (0, 4, 8, 100)]
    assert rates == pytest.approx([0.6 / 4, 0.6 / 2, 0.6, 0.6])
    assert rule(StageUpdate(3, 0, 0), settings).learning_rate == 0.6


def test_nesterov_look_ahead_is_the_papers_recurrence() -> None:
    """On f(w) = w² / 2 without delay: w' = w + d − η (1 − γ) (w + d), d = γ (w − w_before)."""
    from synth.runtime.optimize import (
        NesterovLookAhead,
        StageUpdate,
        StepSettings,
        build_flush_free_step,
    )

    gamma, eta, module = 0.9, 0.3, nn.Linear(1, 1, bias=False)
    spec = OptimizerSpec(kind=OptimizerKind.SGD, momentum=gamma)
    step = build_flush_free_step(
        {0: module},
        spec,
        StepSettings(eta),
        delays={0: 2},
        device=torch.device("cpu"),
        on_update=NesterovLookAhead(gamma),
    )
    assert NesterovLookAhead(gamma)(StageUpdate(0, 0, 2), StepSettings(eta)).nesterov
    parameter = module.weight
    with torch.no_grad():
        parameter.fill_(1.0)
    now = before = 1.0
    step.begin()
    for _ in range(6):
        ahead = gamma * (now - before)
        assert float(parameter.detach()) == pytest.approx(now + ahead, rel=1e-5)
        before, now = now, now + ahead - eta * (1 - gamma) * (now + ahead)
        assert parameter.grad is not None
        parameter.grad.copy_(parameter.detach())
        step.step(0)


def _train_with(
    rank: int, size: int, schedule: Schedule, optimizer: str, what: str
) -> list[Tensor]:
    from synth.runtime.batch import Batch
    from synth.runtime.optimize import (
        DelayedRate,
        StepSettings,
        build_flush_free_step,
        predict_by_delay,
    )
    from synth.runtime.pipeline import Pipeline

    module = plain_stages(size)[rank]
    pipeline = Pipeline(schedule, {rank: module}, group=group_here())
    pipeline.stepper = build_flush_free_step(
        {rank: module},
        OPTIMIZERS[optimizer],
        StepSettings(LEARNING_RATE),
        delays=pipeline.delays,
        device=torch.device("cpu"),
        on_update=DelayedRate(ANNEALING) if "rate" in what else None,
        prediction=predict_by_delay if "prediction" in what else None,
    )
    pipeline.step(Batch(*batch_of(schedule.num_micro_batches, WIDTH, 0)))
    return [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize("optimizer", ["sgd:0.9", "adamw"])
@pytest.mark.parametrize("what", ["rate", "prediction", "rate and prediction"])
def test_corrections_act_on_each_stage_by_its_delay(what: str, optimizer: str) -> None:
    """The rate of each update, and the weights of each forward, are computed by hand."""
    n, m = 3, 8
    by_rank = RankThreads().run(_train_with, n, generate("paci:every=1", n, m), optimizer, what)
    stages = plain_stages(n)
    state = Versions(stages, optimizer)
    state.begin()
    ahead = [[_directions(state, s, optimizer)] for s in range(n)]
    for j, (x, targets) in enumerate(zip(*batch_of(m, WIDTH, 0), strict=True)):
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []
        for s in range(n):
            version = max(j - (n - 1 - s), 0)
            inputs.append(x)
            weights = state.kept[s][version]
            if "prediction" in what:
                rate = _rate(n - 1 - s, version) if "rate" in what else LEARNING_RATE
                steps = (j - version) * rate
                weights = {
                    name: weights[name].sub(ahead[s][version][name], alpha=steps)
                    for name in weights
                }
            x = torch.addmm(weights["linear.bias"], x, weights["linear.weight"].t()).tanh()
            outputs.append(x)
        gradient = torch.ops.aten.mse_loss_backward(torch.tensor(1.0), x, targets, 1)
        for s in reversed(range(n)):
            gradient = torch.ops.aten.tanh_backward(gradient, outputs[s])
            _add(stages[s], "linear.weight", gradient.t().mm(inputs[s]))
            _add(stages[s], "linear.bias", gradient.sum(0))
            gradient = gradient.mm(state.kept[s][j]["linear.weight"])
        for s in range(n):
            if "rate" in what:
                state.optimizers[s].param_groups[0]["lr"] = _rate(n - 1 - s, j)
        state.update()
        for s in range(n):
            ahead[s].append(_directions(state, s, optimizer))
    for s, stage in enumerate(stages):
        assert all(map(torch.equal, by_rank[s], stage.parameters())), s


def _rate(delay: int, update: int) -> float:
    """The rate of PipeMare's technique 1."""
    rate: float = LEARNING_RATE / max(1, delay) ** (1 - min(update / ANNEALING, 1.0))
    return rate


def _directions(state: Versions, stage: int, optimizer: str) -> dict[str, Tensor]:
    """The last update of each parameter, divided by the rate, by the definitions."""
    found = {}
    for name, parameter in state.stages[stage].named_parameters():
        moments = state.optimizers[stage].state.get(parameter, {})
        if not moments:
            found[name] = torch.zeros_like(parameter)
        elif optimizer == "adamw":
            count = int(moments["step"])
            first = moments["exp_avg"] / (1 - 0.9**count)
            second = moments["exp_avg_sq"] / (1 - 0.999**count)
            found[name] = first / (second.sqrt() + 1e-8)
        else:
            found[name] = moments["momentum_buffer"].clone()
    return found


def test_weights_are_not_predicted_without_momentum() -> None:
    from synth.runtime.optimize import StepSettings, build_flush_free_step, predict_by_delay

    with pytest.raises(SynthError, match="take adamw, or sgd with momentum"):
        build_flush_free_step(
            {0: nn.Linear(1, 1)},
            OPTIMIZERS["sgd"],
            StepSettings(0.1),
            delays={0: 1},
            device=torch.device("cpu"),
            prediction=predict_by_delay,
        )


def _predict_in_a_schedule_with_r(rank: int, size: int, schedule: Schedule) -> str:
    from synth.runtime.optimize import StepSettings, build_flush_free_step, predict_by_delay
    from synth.runtime.pipeline import Pipeline

    stages = {rank: build_stages(size)[rank]}
    pipeline = Pipeline(schedule, stages, group=group_here())
    with pytest.raises(SynthError) as error:
        pipeline.stepper = build_flush_free_step(
            stages,
            OptimizerSpec(),
            StepSettings(0.1),
            delays=pipeline.delays,
            device=torch.device("cpu"),
            prediction=predict_by_delay,
        )
    return str(error.value)


def _without_r_on_the_last_rank(schedule: Schedule) -> Schedule:
    *others, last = schedule.programs
    return replace(schedule, programs=(*others, tuple(op for op in last if op.kind != OpKind.R)))


@pytest.mark.parametrize("on_all_ranks", [True, False])
def test_weights_are_not_predicted_where_forwards_run_again(on_all_ranks: bool) -> None:
    schedule = generate("2bw:recompute,every=2", 2, 4)
    if not on_all_ranks:
        schedule = _without_r_on_the_last_rank(schedule)
    for said in RankThreads().run(_predict_in_a_schedule_with_r, 2, schedule):
        assert "leave the prediction out, or run a schedule without R" in said
