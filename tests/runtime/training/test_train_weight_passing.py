"""`synth run` under plans with weight passing: losses, memory, checkpoints under other plans."""

from pathlib import Path
from typing import Any

import pytest
import torch

from synth.errors import SynthError
from synth.families import generate
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profile.optimizer import OptimizerSpec
from synth.profile.workload import Workload
from synth.run_options.train_options import TrainOptions
from synth.runtime.checkpoint import CheckpointOptions
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.rank_result import RankResult
from synth.runtime.training.trainer import RankTrainer
from synth.runtime.world import World
from synth.schedule.files.plan_file import Plan
from tests.tied_model import TIED

CPU = torch.device("cpu")
TINY = {"vocabulary_size": 256, "width": 16, "num_blocks": 2, "num_heads": 2, "context_length": 16}
ADAM = OptimizerSpec.parse("adamw")
# Bytes that no plan counts: of a stage that is not at home, an element for each of its parameters;
# and the padding that makes a buffer divisible into shares of whole 64 bytes.
UNCOUNTED_BYTES = 1024


@pytest.fixture(scope="module")
def profile() -> Profile:
    workload = Workload(
        model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=16, optimizer=ADAM
    )
    return profile_model(workload, CPU, warmup=0, iterations=1)


@pytest.fixture
def options(tmp_path: Path) -> TrainOptions:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 60)
    return TrainOptions(data=text, steps=3)


def plan_of(
    profile: Profile, name: str, num_ranks: int = 2, recomputed_layers: tuple[int, ...] = ()
) -> Plan:
    schedule = generate(name, num_ranks, 2 * num_ranks)
    num_stages, num_layers = schedule.placement.num_stages, len(profile.layers)
    sizes = [num_layers // num_stages] * num_stages
    sizes[0] += num_layers - sum(sizes)
    profile = profile.replace(links=Links(host=Link()))
    return Plan.of(profile, tuple(sizes), schedule, recomputed_layers=recomputed_layers)


def train(rank: int, world_size: int, plan: str, options: TrainOptions) -> RankResult:
    loaded = Plan.from_json(plan)
    world = World(rank, world_size, CPU, "gloo", "here", 2)
    return RankTrainer(loaded, loaded.check()[0], options, world).train()


def run(pool: Any, plan: Plan, options: TrainOptions) -> list[RankResult]:
    found: list[RankResult] = pool.run(train, plan.num_ranks, plan.to_json(), options)
    return found


@pytest.mark.parametrize(
    "name",
    [
        "weipipe",
        "weipipe:wzb1",
        "weipipe:wzb2",
        "zero3:1",
        "zero2:1",
        "zero1:1",
        "mobius:2",
        "roundpipe:2",
    ],
)
def test_memory_is_that_of_the_plan(
    pool: Any, profile: Profile, options: TrainOptions, name: str
) -> None:
    plan = plan_of(profile, name)
    for rank, result in enumerate(run(pool, plan, options)):
        predicted = plan.claim.peak_bytes[rank]
        assert 0.9 * predicted < result.peak_bytes <= predicted + UNCOUNTED_BYTES


@pytest.mark.parametrize("name", ["weipipe", "zero3:1", "mobius:2"])
def test_recomputed_layers_hold_no_weights_between_their_forward_and_their_backward(
    pool: Any, profile: Profile, options: TrainOptions, name: str
) -> None:
    expected = run(pool, plan_of(profile, "1f1b"), options)[0].losses
    plan = plan_of(profile, name, recomputed_layers=(1, 2))
    for rank, result in enumerate(run(pool, plan, options)):
        assert result.losses == pytest.approx(expected, rel=1e-5)
        assert result.peak_bytes <= plan.claim.peak_bytes[rank] + UNCOUNTED_BYTES


SCALED = """
import torch
from torch import nn
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(16, 16), nn.Parameter(torch.ones(16, 16))
        self.shift = nn.Parameter(torch.zeros(64, 16, 16))
    def forward(self, x):
        return self.linear(x).tanh() * self.scale + self.shift.mean(0)
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 256)
    def forward(self, x, targets):
        return nn.functional.cross_entropy(self.linear(x).flatten(0, 1), targets.flatten())
def layers():
    return [nn.Embedding(256, 16), Scaled(), Scaled(), Head()]
"""


def test_gradients_that_b_computes_itself_count_until_w(
    pool: Any, options: TrainOptions, tmp_path: Path
) -> None:
    file = tmp_path / "scaled.py"
    file.write_text(SCALED)
    workload = Workload(
        model=f"{file}:layers", micro_batch_size=2, sequence_length=16, optimizer=ADAM
    )
    scaled = profile_model(workload, CPU, warmup=0, iterations=1)
    shares = scaled.layer_profiles.values()
    without = scaled.replace(
        layer_profiles={
            name: layer.replace(deferred_share=1.0) for name, layer in scaled.layer_profiles.items()
        }
    )
    assert min(layer.deferred_share for layer in shares) < 0.5
    plan, uncounted = plan_of(scaled, "weipipe:wzb2"), plan_of(without, "weipipe:wzb2")
    for rank, result in enumerate(run(pool, plan, options.replace(model=workload.model))):
        predicted = plan.claim.peak_bytes[rank]
        assert uncounted.claim.peak_bytes[rank] + UNCOUNTED_BYTES < result.peak_bytes
        assert 0.9 * predicted < result.peak_bytes <= predicted + UNCOUNTED_BYTES


def saving(options: TrainOptions, folder: Path, steps: int, **more: Any) -> TrainOptions:
    return options.replace(steps=steps, checkpoint=CheckpointOptions(folder=folder, **more))


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    files = sorted(folder.rglob("*.safetensors"))
    return {name: x for file in files for name, x in load_file(file).items()}


@pytest.mark.parametrize("name", ["zero3:1", "zero2:1", "zero1:1", "weipipe", "mobius:2"])
def test_twenty_steps_give_the_parameters_of_a_run_whose_weights_stay(
    pool: Any, profile: Profile, options: TrainOptions, tmp_path: Path, name: str
) -> None:
    stays = saving(options, tmp_path / "stays", 20)
    passing = saving(options, tmp_path / "passed", 20)
    expected = run(pool, plan_of(profile, "1f1b"), stays)[0].losses
    assert run(pool, plan_of(profile, name), passing)[0].losses == pytest.approx(expected, rel=1e-4)
    wanted, found = tensors_of(tmp_path / "stays"), tensors_of(tmp_path / "passed")
    # A flat part counts its steps once, under the name of its first parameter.
    assert all(key.endswith(".step") for key in wanted.keys() - found.keys())
    for key, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[key], rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("weipipe", "1f1b"),
        ("1f1b", "weipipe:wzb2"),
        ("zero3:1", "weipipe"),
        ("mobius:2", "1f1b"),
        ("1f1b", "mobius:2"),
        ("mobius:2", "zero3:1"),
        ("roundpipe:2", "1f1b"),
        ("mobius:2", "roundpipe:2"),
    ],
)
def test_a_checkpoint_of_one_plan_goes_on_under_another(
    pool: Any, profile: Profile, options: TrainOptions, tmp_path: Path, first: str, second: str
) -> None:
    whole = run(pool, plan_of(profile, "1f1b"), options.replace(steps=4))[0].losses
    half = saving(options, tmp_path / "saved", 2)
    begun = run(pool, plan_of(profile, first), half)[0].losses
    rest = saving(options, tmp_path / "saved", 4, resume=True)
    ended = run(pool, plan_of(profile, second), rest)[0].losses
    assert [*begun, *ended] == pytest.approx(whole, rel=1e-5)


def test_gradients_of_several_mini_batches_add_up(
    pool: Any, profile: Profile, options: TrainOptions
) -> None:
    thrice = options.replace(accumulate=3)
    expected = run(pool, plan_of(profile, "1f1b"), thrice)[0].losses
    for name in ("weipipe", "zero3:1", "zero1:1", "mobius:2", "roundpipe:2"):
        found = run(pool, plan_of(profile, name), thrice)[0].losses
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["weipipe:wzb2", "zero3:1", "zero1:1", "mobius:2"])
def test_narrow_weights_have_wide_gradients_and_master_copies_at_home(
    pool: Any, profile: Profile, options: TrainOptions, name: str
) -> None:
    wide = OptimizerSpec.parse("adamw+master+float32-gradients")
    arguments = {**TINY, "width": 32}  # all parameters are of whole 64 bytes
    workload = profile.workload.replace(dtype="bfloat16", optimizer=wide, arguments=arguments)
    narrow = profile_model(workload, CPU, warmup=0, iterations=1)
    expected = run(pool, plan_of(narrow, "1f1b"), options)[0].losses
    plan = plan_of(narrow, name)
    for rank, result in enumerate(run(pool, plan, options)):
        assert result.losses == pytest.approx(expected, rel=1e-3)
        limit = plan.claim.peak_bytes[rank] + UNCOUNTED_BYTES
        assert result.peak_bytes <= limit


def test_gradients_that_only_the_run_widens_take_the_memory_that_it_announces(
    pool: Any, profile: Profile, options: TrainOptions
) -> None:
    spec = OptimizerSpec.parse("adamw+master")
    arguments = {**TINY, "width": 32}  # all parameters are of whole 64 bytes
    workload = profile.workload.replace(dtype="bfloat16", optimizer=spec, arguments=arguments)
    plan = plan_of(profile_model(workload, CPU, warmup=0, iterations=1), "mobius:2")
    wide = options.replace(steps=2, optimizer=spec.replace(float32_gradients=True))
    for rank, result in enumerate(run(pool, plan, wide)):
        planned = plan.claim.peak_bytes[rank]
        assert planned + UNCOUNTED_BYTES < result.peak_bytes
        assert result.peak_bytes <= planned + result.extra_bytes + UNCOUNTED_BYTES


def test_the_only_step_of_a_run_counts_no_memory_of_the_host(
    pool: Any, profile: Profile, options: TrainOptions
) -> None:
    plan = plan_of(profile, "mobius:2")
    for rank, result in enumerate(run(pool, plan, options.replace(steps=1))):
        assert result.peak_bytes <= plan.claim.peak_bytes[rank] + UNCOUNTED_BYTES


@pytest.fixture(scope="module")
def tied_profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """Of a model whose embedding and head share a table; sizes are of whole 64 bytes."""
    file = tmp_path_factory.mktemp("model") / "tied.py"
    file.write_text(TIED)
    workload = Workload(
        model=f"{file}:layers", micro_batch_size=2, sequence_length=16, optimizer=ADAM
    )
    return profile_model(workload, CPU, warmup=0, iterations=1)


@pytest.mark.parametrize("name", ["weipipe", "zero3:1", "zero1:1", "mobius:2"])
def test_layers_that_share_a_parameter_train_as_where_weights_stay(
    pool: Any, tied_profile: Profile, options: TrainOptions, tmp_path: Path, name: str
) -> None:
    options = options.replace(model=tied_profile.workload.model)
    expected = run(pool, plan_of(tied_profile, "1f1b"), options.replace(steps=4))[0].losses
    plan = plan_of(tied_profile, name)
    begun = run(pool, plan, saving(options, tmp_path, 2))
    for rank, result in enumerate(begun):
        predicted = plan.claim.peak_bytes[rank]
        assert result.peak_bytes <= predicted + UNCOUNTED_BYTES
    # Both layers are in the checkpoint, which goes on where they are one parameter, and back.
    there = saving(options, tmp_path, 3, resume=True)
    losses = begun[0].losses + run(pool, plan_of(tied_profile, "1f1b"), there)[0].losses
    losses += run(pool, plan, saving(options, tmp_path, 4, resume=True))[0].losses
    assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "is_exact"),
    [("weipipe", True), ("zero3:1", False), ("zero1:1", False), ("mobius:2", True)],
)
def test_pipelines_side_by_side_train_as_those_whose_weights_stay(
    pool: Any,
    profile: Profile,
    options: TrainOptions,
    tmp_path: Path,
    name: str,
    is_exact: bool,
) -> None:
    stays = saving(options, tmp_path / "stays", 3).replace(data_parallel=2)
    passing = saving(options, tmp_path / "passed", 3).replace(data_parallel=2)
    expected = pool.run(train, 4, plan_of(profile, "1f1b").to_json(), stays)[0].losses
    plan = plan_of(profile, name)
    results = pool.run(train, 4, plan.to_json(), passing)
    assert results[0].losses == pytest.approx(expected, rel=1e-5)
    for process, result in enumerate(results):
        predicted = plan.claim.peak_bytes[process % 2]
        assert result.peak_bytes <= predicted + UNCOUNTED_BYTES
    wanted, found = tensors_of(tmp_path / "stays"), tensors_of(tmp_path / "passed")
    rtol, atol = (0.0, 0.0) if is_exact else (2e-3, 2e-5)
    for key in found:
        torch.testing.assert_close(found[key], wanted[key], rtol=rtol, atol=atol)


def refused(rank: int, world_size: int, plan: str, options: TrainOptions) -> str:
    with pytest.raises(SynthError) as caught:
        train(rank, world_size, plan, options)
    return str(caught.value)


def test_steps_that_are_validated_afterwards_are_refused(
    pool: Any, profile: Profile, options: TrainOptions
) -> None:
    late = options.replace(optimizer=ADAM.replace(post_validation=True))
    said = pool.run(refused, 2, plan_of(profile, "weipipe").to_json(), late)
    assert all("leave post-validation out of the optimizer" in text for text in said)
