"""Checkpoints of shared, sharded, complex or low-precision parameters."""

from pathlib import Path
from typing import Any

import pytest
import torch

from synth.families import generate
from synth.profile import Profile
from synth.profile.workload import Workload
from synth.run_options.learning_rate import LearningRate
from synth.run_options.train_options import TrainOptions
from synth.runtime.checkpoint import CheckpointOptions
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.training.trainer import RankTrainer
from synth.runtime.world import World
from synth.schedule.files.plan_file import Plan
from tests.tied_model import TIED

CPU = torch.device("cpu")


def make_profile(folder: Path, **changes: Any) -> Profile:
    """A profile of four layers, whose first and last share their table."""
    (folder / "model.py").write_text(TIED)
    model = f"{folder / 'model.py'}:layers"
    told = {"model": model, "micro_batch_size": 2, "sequence_length": 16, **changes}
    return profile_model(Workload.model_validate(told), CPU, warmup=0, iterations=1)


def train(rank: int, world_size: int, plan: str, options: TrainOptions) -> list[float]:
    loaded = Plan.from_json(plan)
    world = World(rank, world_size, CPU, "gloo", "here", 2)
    return RankTrainer(loaded, loaded.check()[0], options, world).train().losses


def run(pool: Any, profile: Profile, family: str, folder: Path, steps: int, at: str) -> list[float]:
    """Up to a step, from the last checkpoint in a folder if there is one."""
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    plan = Plan.of(profile, (2, 2), generate(family, 2, 4))
    options = TrainOptions(
        data=text,
        steps=steps,
        learning_rate=LearningRate(peak=1e-2),
        clip_norm=0.5,
        model=profile.workload.model,
        checkpoint=CheckpointOptions(folder=folder / at, resume=True),
    )
    return list(pool.run(train, 2, plan.to_json(), options)[0])


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("zb-h1", {"optimizer": "adamw+post-validation"}),
        ("zb-h1", {"optimizer": "adamw+master", "dtype": "bfloat16"}),
        ("chimera", {"optimizer": "sgd:0.9"}),
    ],
    ids=["post-validation", "master weights", "two copies, SGD"],
)
def test_whatever_is_kept_of_the_weights_a_resumed_run_goes_on_as_before(
    tmp_path: Path, pool: Any, family: str, changes: dict[str, Any]
) -> None:
    profile = make_profile(tmp_path, **changes)
    whole = run(pool, profile, family, tmp_path, 6, "whole")
    stopped = run(pool, profile, family, tmp_path, 3, "stopped")
    assert stopped + run(pool, profile, family, tmp_path, 6, "stopped") == whole


def test_a_run_with_two_copies_goes_on_with_one(tmp_path: Path, pool: Any) -> None:
    profile = make_profile(tmp_path)
    whole = run(pool, profile, "zb-h1", tmp_path, 6, "whole")
    stopped = run(pool, profile, "chimera", tmp_path, 3, "stopped")
    resumed = run(pool, profile, "1f1b", tmp_path, 6, "stopped")
    torch.testing.assert_close(stopped + resumed, whole, rtol=1e-4, atol=0)
