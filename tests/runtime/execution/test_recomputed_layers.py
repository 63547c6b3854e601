"""Layers that a plan has B recompute: autograd's gradients, and memory as the plan counts it."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.costs.partition_costs import partition_costs
from synth.costs.recomputed_layers import recomputing
from synth.families import generate
from synth.op_kinds import OpKind
from synth.plan.recompute.choice import needs_bytes, solve_with
from synth.profile import Profile
from synth.profile.layer_profile import Timing
from synth.profile.links import Link, Links
from synth.profile.workload import Workload
from synth.runtime.execution.base.stage_protocol import ForwardInput
from synth.runtime.execution.stage.stage import Stage
from synth.runtime.models.layered_stage import LayeredStage, Randomness, layer_calls
from synth.runtime.profiling.meter import measure
from synth.runtime.profiling.profile_model import profile_layers, profile_model
from synth.schedule.files.plan_file import Plan
from synth.schedule.placements import placement
from synth.schedule.verify import ScheduleError, verify
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from tests.runtime.train_plans import train_plans
from tests.synth.plain import random_schedule

CPU = torch.device("cpu")
TINY = {"vocabulary_size": 256, "width": 32, "num_blocks": 6, "num_heads": 2, "context_length": 16}
LINKS = Links(host=Link(latency_us=10.0, bandwidth_bytes_per_s=5e9))
BYTES = ("output_bytes", "saved_w_bytes", "input_until", "output_until", "gradient_until")


def profiled(model: str = "gpt", **workload: Any) -> Profile:
    told = {"model": model, "arguments": TINY, "micro_batch_size": 2, "sequence_length": 16}
    made = Workload.model_validate({**told, **workload})
    return profile_model(made, CPU, warmup=0, iterations=1, links=LINKS)


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_derived_bytes_are_those_that_are_measured_of_recomputed_layers(
    model: str, autocast: str | None
) -> None:
    derived = recomputing(profiled(model, autocast=autocast), range(8))
    measured = profiled(model, autocast=autocast, recomputed_layers=("*",))
    for index in range(1, 8):  # of the first layer's input, the batch's, nothing is counted
        mine, true = derived.layer_profile(index), measured.layer_profile(index)
        assert mine.saved_bytes == true.saved_bytes == 0
        assert all(getattr(mine, name) == getattr(true, name) for name in BYTES)
        for kind, rise in true.rise_bytes.items():
            assert mine.rise_bytes[kind] >= rise
        rises = [mine.rise_bytes[OpKind.BW], true.rise_bytes[OpKind.BW]]
        assert rises[0] <= 1.002 * rises[1]


class Scaled(nn.Module):
    """Autograd keeps the numbers of its products in tensors of 8 bytes that no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.tanh(0.5 * self.inner(x) * 0.25)
        return x + y


def test_numbers_of_products_are_kept_by_recomputed_layers_too() -> None:
    x = torch.randn(2, 4, 8)
    layer = profile_layers([nn.Linear(8, 8), Scaled(), Loss()], x, x, warmup=0, iterations=1)
    kept = layer.layer_profiles["Scaled.1"].recompute_saved_bytes
    assert kept == recomputing(layer, (1,)).layer_profile(1).saved_bytes == 2 * 8
    stage = LayeredStage(
        list(layer_calls({0: Scaled()}, ["a"], autocast=None, recomputed=("*",)).values()),
        is_first=False,
        is_last=False,
    )
    inputs = [x.clone() for _ in range(5)]
    with measure(CPU) as measured:
        for microbatch, given in enumerate(inputs):
            stage.forward(microbatch, ForwardInput((given,)))
    assert measured.net_bytes == 5 * kept


def test_plans_with_layers_recomputed_hold_what_was_planned_and_learn_the_same(
    pool: Any, text: Path
) -> None:
    # Random orders of F, B, W and BW on two ranks of two stages, with R's and moves in them.
    profile, where, sizes = profiled(), placement("looped:2", 2), (2, 2, 2, 2)
    plans: list[Plan] = []
    draw = random.Random(1)
    while len(plans) < 10:
        layers = tuple(i for i in range(8) if draw.random() < 0.5) if plans else ()
        schedule = random_schedule(draw, where=where)
        if schedule.num_micro_batches != 4:
            continue
        try:
            verify(schedule, partition_costs(recomputing(profile, layers), sizes))
        except ScheduleError:
            continue
        plans.append(Plan.of(profile, sizes, schedule, recomputed_layers=layers))
    by_rank = pool.run(train_plans, 2, [plan.to_json() for plan in plans], text)
    by_plan = list(zip(*by_rank, strict=True))
    for plan, results in zip(plans, by_plan, strict=True):
        for result, predicted in zip(results, plan.claim.peak_bytes, strict=True):
            assert 0.95 * predicted < result.peak_bytes <= predicted
        losses = torch.tensor(results[0].losses)
        torch.testing.assert_close(losses, torch.tensor(by_plan[0][0].losses), rtol=1e-5, atol=0)


def test_a_cap_that_only_single_layers_recomputed_keep_is_trained_under(
    pool: Any, text: Path
) -> None:
    measured, sizes = profiled(), (4, 4)
    layers = {
        name: layer.replace(time_us=dict.fromkeys(layer.time_us, Timing.exactly(1000)))
        for name, layer in measured.layer_profiles.items()
    }
    profile = measured.replace(layer_profiles=layers)
    free = Problem(
        partition_costs(profile, sizes), placement("linear", 2), 4, None, partition=sizes
    )
    with_layers = replace(free, profile=profile)
    # Between what one micro-batch needs at least with single layers recomputed, and with stages.
    cap = (max(needs_bytes(with_layers, None)) + 4 * max(needs_bytes(free, None))) // 5
    caps = (cap, cap)
    options = SolveOptions(0.05, workers=1, deterministic=True)
    assert solve_with(replace(free, caps_bytes=caps), None, options).schedule is None
    found = solve_with(replace(with_layers, caps_bytes=caps), None, options)
    assert found.schedule is not None and found.problem.recomputed_layers
    tight = Plan.of(
        profile,
        sizes,
        found.schedule,
        caps_bytes=caps,
        recomputed_layers=found.problem.recomputed_layers,
    )
    plans = [tight, Plan.of(profile, sizes, generate("1f1b", 2, 4))]
    by_rank = pool.run(train_plans, 2, [plan.to_json() for plan in plans], text)
    (mine, plain), *_ = by_rank
    assert mine.losses == plain.losses
    for results, predicted in zip(by_rank, tight.claim.peak_bytes, strict=True):
        assert 0.95 * predicted < results[0].peak_bytes <= predicted <= cap


class Loss(nn.Module):
    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(x, targets)


class Normed(nn.Module):
    """A layer with running statistics, random numbers and an output that it saves."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(nn.functional.dropout(self.norm(self.linear(x)), 0.3))


@pytest.mark.parametrize("fused", [True, False], ids=["BW", "B and W"])
def test_gradients_and_running_statistics_are_those_without(fused: bool) -> None:
    found = []
    for chosen in ((), (0, 2)):
        torch.manual_seed(0)
        modules = {i: Normed() for i in range(3)}
        calls = layer_calls(
            modules, ["a", "b", "c"], autocast=None, recomputed=(), recomputed_layers=chosen
        )
        listed = list(calls.values())
        own = Randomness(1, 1)
        stage = LayeredStage(listed, is_first=True, is_last=False, randomness=own)
        for microbatch in range(3):
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(microbatch))
            stage.forward(microbatch, ForwardInput((x,), fused=fused))
        for microbatch in (1, 0, 2):
            gradient = (torch.ones(4, 8),)
            if fused:
                stage.backward(microbatch, gradient)
            else:
                stage.backward_input(microbatch, gradient)
                stage.backward_weight(microbatch)
        grads = [p.grad for module in modules.values() for p in module.parameters()]
        buffers = [b.clone() for module in modules.values() for b in module.buffers()]
        found.append((grads, buffers))
    for mine, plain in zip(found[1][0], found[0][0], strict=True):
        assert mine is not None and plain is not None and torch.equal(mine, plain)
    assert all(map(torch.equal, found[1][1], found[0][1]))
    assert any(buffer.abs().sum() for buffer in found[0][1])


def test_r_of_a_whole_stage_changes_running_statistics_once() -> None:
    after = []
    for rebuilt in (False, True):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(8)
        stage = Stage([norm], is_first=True, is_last=False)
        x = torch.randn(4, 8)
        if rebuilt:
            stage.forward_light(0, ForwardInput((x,), fused=True))
            stage.rebuild(0, ForwardInput((x,), fused=True))
        else:
            stage.forward(0, ForwardInput((x,), fused=True))
        stage.backward(0, (torch.ones(4, 8),))
        after.append((norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.weight))
    for mine, plain in zip(*after, strict=True):
        assert mine is not None and plain is not None and torch.equal(mine, plain)
    grads = [norm[3].grad for norm in after if norm[3] is not None]
    assert len(grads) == 2 and grads[0] is not None and torch.equal(*grads)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_rebuilt", [True, False], ids=["R", "recomputed layer"])
def test_running_statistics_change_once_though_the_first_forward_was_in_eval_mode(
    is_rebuilt: bool,
) -> None:
    norm = nn.BatchNorm1d(8)
    chosen = () if is_rebuilt else (0,)
    (call,) = layer_calls(
        {0: norm}, ["a"], autocast=None, recomputed=(), recomputed_layers=chosen
    ).values()
    stage = LayeredStage([call], is_first=True, is_last=False)
    for microbatch, is_training in enumerate((False, True, True)):
        norm.train(is_training)
        given = ForwardInput((torch.randn(4, 8),), fused=True)
        if is_rebuilt:
            stage.forward_light(microbatch, given)
            stage.rebuild(microbatch, given)
        else:
            stage.forward(microbatch, given)
        stage.backward(microbatch, (torch.ones(4, 8),))
    assert norm.num_batches_tracked == 2
