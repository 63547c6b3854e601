"""Layers called in their own way: dropout that no partition changes, autocast, recomputation."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.families import generate
from synth.profile import Profile
from synth.profile.workload import Workload
from synth.run_options.train_options import TrainOptions
from synth.runtime.execution.base.stage_protocol import ForwardInput
from synth.runtime.models.layered_stage import LayeredStage, Randomness, layer_calls
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.rank_result import RankResult
from synth.runtime.training.trainer import RankTrainer
from synth.runtime.world import World
from synth.schedule.files.plan_file import Plan
from tests.runtime.gradients import gradient_of

CPU = torch.device("cpu")
MODEL = """
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 64), nn.Linear(64, 16)
        self.drop = nn.Dropout(DROPOUT)
    def forward(self, x):
        return self.outer(self.drop(nn.functional.gelu(self.inner(x))))
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(16, 256)
    def forward(self, x, targets):
        return nn.functional.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())
def layers():
    return [nn.Embedding(256, 16), Block(), Block(), Head()]
"""


def make_profile(folder: Path, dropout: float, **workload: Any) -> Profile:
    model = folder / "model.py"
    model.write_text(MODEL.replace("DROPOUT", str(dropout)))
    told = {"model": f"{model}:layers", "micro_batch_size": 2, "sequence_length": 16, **workload}
    return profile_model(Workload.model_validate(told), CPU, warmup=0, iterations=1)


def train(rank: int, world_size: int, plan: str, options: TrainOptions) -> RankResult:
    loaded = Plan.from_json(plan)
    world = World(rank, world_size, CPU, "gloo", "here", 2)
    options = options.replace(model=loaded.workload.model)
    return RankTrainer(loaded, loaded.check()[0], options, world).train()


def run(
    pool: Any, profile: Profile, sizes: tuple[int, ...], options: TrainOptions, m: int = 4
) -> list[RankResult]:
    plan = Plan.of(profile, sizes, generate("zb-h1", len(sizes), m))
    return list(pool.run(train, len(sizes), plan.to_json(), options))


def test_dropout_is_the_same_under_any_partition_and_cut_of_the_batch(
    tmp_path: Path, text: Path, pool: Any
) -> None:
    profile = make_profile(tmp_path, 0.5)
    options = TrainOptions(data=text, steps=4, clip_norm=None)
    losses = run(pool, profile, (2, 2), options)[0].losses
    assert run(pool, profile, (1, 3), options)[0].losses == losses
    assert run(pool, profile, (4,), options)[0].losses == losses
    in_halves = run(pool, profile, (2, 2), options.replace(accumulate=2), m=2)[0].losses
    torch.testing.assert_close(in_halves, losses, rtol=1e-5, atol=0)

    (tmp_path / "dry").mkdir()
    without = run(pool, make_profile(tmp_path / "dry", 0.0), (4,), options)[0].losses
    assert without != losses


@pytest.mark.parametrize(
    "workload",
    [{"autocast": "bfloat16"}, {"recomputed_layers": ("Block.1",)}, {}],
    ids=["autocast", "one block recomputed", "neither"],
)
def test_what_was_profiled_is_what_runs_to_the_byte(
    tmp_path: Path, text: Path, pool: Any, workload: dict[str, Any]
) -> None:
    profile = make_profile(tmp_path, 0.1, **workload)
    plan = Plan.of(profile, (2, 2), generate("zb-h1", 2, 4))
    results = pool.run(train, 2, plan.to_json(), TrainOptions(data=text, steps=3))
    for result, predicted in zip(results, plan.claim.peak_bytes, strict=True):
        assert 0.9 * predicted < result.peak_bytes <= predicted


def test_a_recomputed_layer_alone_keeps_only_its_input(tmp_path: Path) -> None:
    profile = make_profile(tmp_path, 0.1, recomputed_layers=("Block.1",))
    recomputed, plain = profile.layer_profile(1), profile.layer_profile(2)
    assert recomputed.saved_bytes == 0 < plain.saved_bytes
    assert profile.layers[1].profile != profile.layers[2].profile


def test_autocast_halves_what_a_block_hands_on(tmp_path: Path) -> None:
    plain = make_profile(tmp_path, 0.1)
    halved = make_profile(tmp_path, 0.1, autocast="bfloat16")
    assert 2 * halved.layer_profile(1).output_bytes == plain.layer_profile(1).output_bytes


class Dropped(nn.Module):
    """A layer with random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.linear(x), 0.5)


class DroppedLater(Dropped):
    """A layer that draws no random numbers at its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) if self.calls % 3 != 1 else self.linear(x)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", [Dropped, DroppedLater])
@pytest.mark.parametrize("randomness", [Randomness(1, 1), None], ids=["seeded", "unseeded"])
def test_a_recomputed_layer_draws_the_same_numbers_again(
    fused: bool, kind: type[Dropped], randomness: Randomness | None
) -> None:
    torch.manual_seed(0)
    layer, x = kind(), torch.randn(4, 8)
    gradients, later = [], []
    for patterns in ((), ("drop*",)):
        layer.zero_grad()
        calls = layer_calls({0: layer}, ["dropped"], autocast=None, recomputed=patterns)
        stage = LayeredStage(
            list(calls.values()), is_first=True, is_last=False, randomness=randomness
        )
        torch.manual_seed(5)
        for microbatch in range(3):
            stage.forward(microbatch, ForwardInput((x,), fused=fused))
        for microbatch in (1, 0, 2):
            torch.manual_seed(99)  # nothing may depend on the generator's state
            gradient = (torch.ones(4, 8),)
            if fused:
                stage.backward(microbatch, gradient)
            else:
                stage.backward_input(microbatch, gradient)
                stage.backward_weight(microbatch)
        gradients.append(gradient_of(layer.linear.weight))
        later.append(torch.rand(2))
    assert torch.equal(*gradients)
    assert randomness or torch.equal(*later)


def test_what_a_schedule_rebuilds_has_the_dropout_of_its_forward() -> None:
    torch.manual_seed(0)
    layer, x = Dropped(), torch.randn(4, 8)
    calls = list(layer_calls({0: layer}, ["dropped"], autocast=None, recomputed=()).values())
    stage = LayeredStage(calls, is_first=True, is_last=False, randomness=Randomness(1, 1))
    (plain,) = stage.forward(0, ForwardInput((x,)))
    (light,) = stage.forward_light(1, ForwardInput((x,)))
    (again,) = stage.forward(0, ForwardInput((x,)))
    assert torch.equal(plain, again)
    assert not torch.equal(plain, light)

    rebuilt: list[Tensor] = []
    layer.register_forward_hook(lambda module, given, output: rebuilt.append(output.detach()))
    stage.rebuild(1, ForwardInput((x,)))
    assert torch.equal(rebuilt[0], light)


def test_a_pattern_that_fits_no_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SynthError, match=r"no layer fits 'blok.*there are Embedding\.0, Block"):
        make_profile(tmp_path, 0.1, recomputed_layers=("blok.*",))
