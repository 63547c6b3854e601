"""Layers of which B computes a part again: autograd's gradients, and memory as planned."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from synth.costs.partition_costs import partition_costs
from synth.costs.recomputation import FULL, Recomputation
from synth.costs.recomputed_layers import recomputing
from synth.errors import SynthError
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profile.workload import Workload
from synth.runtime.execution.base.stage_protocol import ForwardInput
from synth.runtime.models.layered_stage import LayeredStage, Randomness, layer_calls
from synth.runtime.models.recompute_policies import check_is_imported
from synth.runtime.profiling.profile_model import profile_layers, profile_model
from synth.schedule.files.plan_file import Plan
from synth.schedule.placements import placement
from synth.schedule.verify import ScheduleError, verify
from tests.runtime.train_plans import train_plans
from tests.synth.plain import random_schedule

CPU = torch.device("cpu")
TINY = {"vocabulary_size": 256, "width": 32, "num_blocks": 6, "num_heads": 2, "context_length": 16}
LINKS = Links(host=Link(latency_us=10.0, bandwidth_bytes_per_s=5e9))
MINE = f"{__file__}:keep_products"


def keep_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    """A user's policy: every matrix product is kept."""
    return op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


@cache
def profiled() -> Profile:
    workload = Workload(model="llama", arguments=TINY, micro_batch_size=2, sequence_length=16)
    options: Any = {"warmup": 0, "iterations": 1, "links": LINKS}
    return profile_model(workload, CPU, policies=("ops", MINE), **options)


def test_a_policy_holds_less_than_everything_and_more_than_the_input() -> None:
    block = profiled().layer_profiles["block.0"]
    assert 0 < block.variants["ops"].saved_bytes < block.variants[MINE].saved_bytes
    assert block.variants[MINE].saved_bytes < block.saved_bytes
    assert block.under("ops").saved_w_bytes == block.saved_w_bytes


def test_what_frees_nothing_is_left_out_and_told() -> None:
    told: list[str] = []
    layers = [nn.Linear(8, 8), Loss()]
    found = profile_layers(
        layers,
        torch.randn(4, 8),
        torch.randn(4, 8),
        policies=("selective",),
        tell=told.append,
        warmup=0,
        iterations=1,
    )
    assert not any(layer.variants for layer in found.layer_profiles.values())
    assert any(
        "Linear.0 under the policy selective is left out: F keeps as much" in line for line in told
    )


class Loss(nn.Module):
    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(x, targets)


class Attention(nn.Module):
    """A layer with attention, dropout, random numbers in both, and matrix products."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm, self.dropout = nn.LayerNorm(8), dropout

    def forward(self, x_BTD: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x_BTD)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        return x_BTD + F.dropout(self.out(y.transpose(1, 2).flatten(2)).relu(), self.dropout)


@pytest.mark.parametrize("policy", ["ops", "selective", MINE], ids=["ops", "selective", "mine"])
@pytest.mark.parametrize("fused", [True, False], ids=["BW", "B and W"])
def test_gradients_are_those_without(fused: bool, policy: str) -> None:
    found = []
    for chosen in ({}, {0: policy, 1: FULL, 2: policy}):
        torch.manual_seed(0)
        modules = {i: Attention() for i in range(3)}
        calls = layer_calls(
            modules,
            ["a", "b", "c"],
            autocast=None,
            recomputed=(),
            recomputed_layers=Recomputation(chosen),
        )
        stage = LayeredStage(
            list(calls.values()), is_first=True, is_last=False, randomness=Randomness(1, 1)
        )
        for microbatch in range(3):
            x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(microbatch))
            stage.forward(microbatch, ForwardInput((x,), fused=fused))
        for microbatch in (1, 0, 2):
            gradient = (torch.ones(2, 5, 8),)
            if fused:
                stage.backward(microbatch, gradient)
            else:
                stage.backward_input(microbatch, gradient)
                stage.backward_weight(microbatch)
        found.append([p.grad for module in modules.values() for p in module.parameters()])
    for mine, plain in zip(found[1], found[0], strict=True):
        assert mine is not None and plain is not None and torch.equal(mine, plain)


def test_the_attention_core_is_computed_again_where_its_kernel_keeps_the_scores() -> None:
    x = torch.randn(2, 64, 8)
    with sdpa_kernel(SDPBackend.MATH):
        found = profile_layers(
            [Attention(0.0), Loss()], x, x, policies=("selective",), warmup=0, iterations=1
        )
    kept = next(iter(found.layer_profiles.values()))
    scores = 2 * 2 * 64 * 64 * 4
    # Queries and keys are kept besides, as they are before they are scaled.
    assert kept.saved_bytes - kept.variants["selective"].saved_bytes > 0.9 * scores


@pytest.mark.slow
def test_plans_with_policies_hold_what_was_planned_and_learn_the_same(
    pool: Any, text: Path
) -> None:
    # Random orders of F, B, W and BW on two ranks of two stages, with R's and moves in them.
    profile, where, sizes = profiled(), placement("looped:2", 2), (2, 2, 2, 2)
    plans: list[Plan] = []
    draw = random.Random(1)
    while len(plans) < 5:
        drawn = {i: draw.choice(("ops", MINE, FULL, None)) for i in range(1, 7)}
        layers = Recomputation({i: how for i, how in drawn.items() if how and plans})
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


def backward_of(module: nn.Module, x: Tensor, policy: str) -> None:
    """F and B of a stage of one layer under a policy."""
    calls = layer_calls(
        {0: module},
        ["a"],
        autocast=None,
        recomputed=(),
        recomputed_layers=Recomputation({0: policy}),
    )
    stage = LayeredStage([calls[0]], is_first=True, is_last=False)
    stage.forward(0, ForwardInput((x,), fused=True))
    stage.backward(0, (torch.ones_like(x),))


class ChangedInPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.transpose(-1, -2)).sin_() @ x


@pytest.mark.parametrize("policy", ["ops", MINE])
def test_an_error_of_a_repetition_names_the_policy(policy: str) -> None:
    with pytest.raises(SynthError, match=f"a layer cannot be recomputed under the policy {policy}"):
        backward_of(ChangedInPlace(), torch.ones(4, 8, requires_grad=True), policy)


def test_a_layer_that_cannot_be_recomputed_under_a_policy_is_named() -> None:
    layers = [nn.Linear(8, 8), ChangedInPlace(), Loss()]
    x = torch.randn(4, 8)
    with pytest.raises(SynthError, match="1' cannot be recomputed under the policy ops: "):
        profile_layers(layers, x, x, policies=("ops",), warmup=0, iterations=1)


class ScaledInPlace(nn.Module):
    """Its product is a view with a version of its own, so that PyTorch does not notice."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(x).mul_(0.5)))
        return x + y


class Dropped(nn.Module):
    """A layer that draws random numbers, counts in a buffer, and scales by its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.calls = nn.BatchNorm1d(8), 0
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y: Tensor = self.norm(F.dropout(self.down(F.gelu(self.up(x))), 0.5).transpose(1, 2))
        return x + self.calls * y.transpose(1, 2)


def test_a_layer_that_has_other_gradients_under_a_policy_is_refused() -> None:
    layers, x = [nn.Linear(8, 8), ScaledInPlace(), Loss()], torch.randn(2, 4, 8)
    with pytest.raises(SynthError, match="1' has other gradients under the policy ops than with"):
        profile_layers(layers, x, x, policies=("ops",), warmup=0, iterations=1)


def test_layers_that_draw_and_change_state_have_equal_gradients_under_policies() -> None:
    layers, x = [nn.Linear(8, 8), Dropped(), Loss()], torch.randn(2, 4, 8)
    state = {name: value.clone() for name, value in layers[1].state_dict().items()}
    profile_layers(layers, x, x, policies=("ops", MINE), warmup=0, iterations=1)
    assert all(torch.equal(value, state[name]) for name, value in layers[1].state_dict().items())


def says_a_word(context: Any, op: Any, *args: Any, **kwargs: Any) -> str:
    """A user's policy that returns something else than it should."""
    return "save"


def fails(context: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    """A user's policy with a fault."""
    raise KeyError(str(op))


@pytest.mark.parametrize(
    ("policy", "message"),
    [("says_a_word", "says_a_word returned a str; a policy"), ("fails", "fails failed: KeyError")],
)
def test_faults_of_a_policy_name_it(policy: str, message: str) -> None:
    layers, x = [nn.Linear(8, 8), ScaledInPlace(), Loss()], torch.randn(2, 4, 8)
    with pytest.raises(SynthError, match=message):
        profile_layers(layers, x, x, policies=(f"{__file__}:{policy}",), warmup=0, iterations=1)


def test_a_program_that_did_not_import_a_policy_does_not_get_its_code_run(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("raise AssertionError")
    check_is_imported([MINE, "ops", "tests.runtime.train_plans:train_plans"])
    for policy in (f"{tmp_path}/own.py:keep", "absent_package:keep"):
        with pytest.raises(SynthError, match="in your program to say that it may"):
            check_is_imported([MINE, policy])


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(SynthError, match="there is no policy 'some'; give selective, ops, or"):
        layer_calls(
            {0: nn.Linear(8, 8)},
            ["a"],
            autocast=None,
            recomputed=(),
            recomputed_layers=Recomputation({0: "some"}),
        )
