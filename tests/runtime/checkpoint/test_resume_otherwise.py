"""A resumed run detects other data or another optimizer, and accepts them if asked to."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from synth.families import generate
from synth.profile import Profile
from synth.profile.optimizer import OptimizerSpec
from synth.profile.workload import Workload
from synth.run_options.train_options import TrainOptions
from synth.runtime.checkpoint import CheckpointOptions
from synth.runtime.checkpoint.fingerprint import fingerprint
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.training.trainer import RankTrainer
from synth.runtime.world import World
from synth.schedule.files.plan_file import Plan

TINY = {"vocabulary_size": 256, "width": 16, "num_blocks": 2, "num_heads": 2, "context_length": 16}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def profile() -> Profile:
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=16)
    return profile_model(workload, CPU, warmup=0, iterations=1)


@pytest.fixture
def saved(profile: Profile, tmp_path: Path, pool: Any) -> TrainOptions:
    """The options of a run that has taken two of four steps, with adamw."""
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    first = options_of(text, tmp_path / "saved").replace(steps=2)
    run(pool, profile, first)
    return options_of(text, tmp_path / "saved", resume=True)


def options_of(text: Path, folder: Path, **saved: Any) -> TrainOptions:
    return TrainOptions(data=text, steps=4, checkpoint=CheckpointOptions(folder=folder, **saved))


def train(rank: int, world_size: int, plan: str, options: TrainOptions) -> list[float]:
    loaded = Plan.from_json(plan)
    world = World(rank, world_size, CPU, "gloo", "here", 2)
    return RankTrainer(loaded, loaded.check()[0], options, world).train().losses


def run(pool: Any, profile: Profile, options: TrainOptions) -> list[float]:
    plan = Plan.of(profile, (2, 2), generate("zb-h1", 2, 4))
    return list(pool.run(train, 2, plan.to_json(), options)[0])


def ignoring(options: TrainOptions, **which: bool) -> TrainOptions:
    assert options.checkpoint is not None
    return options.replace(checkpoint=options.checkpoint.replace(**which))


@pytest.mark.parametrize("change", ["one letter", "one letter more"])
def test_other_data_is_refused_unless_that_is_to_be_ignored(
    profile: Profile, saved: TrainOptions, pool: Any, change: str
) -> None:
    path = saved.data
    assert path is not None
    text = path.read_text()
    path.write_text(f"{text[:-1]}!" if change == "one letter" else f"{text}!")
    with pytest.raises(
        AssertionError, match=r"trained on other data \(1800 tokens, fing.*--ignore-data"
    ):
        run(pool, profile, saved)
    with pytest.raises(AssertionError, match="trained on other data"):
        run(pool, profile, ignoring(saved, ignore_optimizer=True))
    assert len(run(pool, profile, ignoring(saved, ignore_data=True))) == 2


def test_the_same_ids_in_another_file_are_the_same_data(
    profile: Profile, saved: TrainOptions, pool: Any, tmp_path: Path
) -> None:
    assert saved.data is not None
    ids = np.frombuffer(saved.data.read_bytes(), dtype=np.uint8)
    np.save(tmp_path / "ids.npy", ids.astype(np.int64))
    assert len(run(pool, profile, saved.replace(data=tmp_path / "ids.npy"))) == 2


@pytest.mark.parametrize("other", ["sgd", "sgd:0.9", "adamw+master"])
def test_another_optimizer_is_refused_unless_that_is_to_be_ignored(
    profile: Profile, saved: TrainOptions, pool: Any, other: str
) -> None:
    changed = saved.replace(optimizer=OptimizerSpec.parse(other))
    written = other.replace("+", ".")
    message = f"made with optimizer adamw, this run has {written}; give --optimizer adamw, or --ign"
    with pytest.raises(AssertionError, match=message):
        run(pool, profile, changed)
    whole = run(pool, profile, saved.replace(checkpoint=None))
    after = run(pool, profile, ignoring(changed, ignore_optimizer=True))
    assert (
        after[0] == whole[2]
    )  # of the checkpoint's parameters, before this optimizer's first step
    assert (after[1] == whole[3]) == (other == "adamw+master")  # which changes no float32 model


def test_post_validation_may_begin_and_end_with_a_checkpoint(
    profile: Profile, saved: TrainOptions, pool: Any
) -> None:
    late = saved.replace(optimizer=OptimizerSpec.parse("adamw+post-validation"))
    whole = run(pool, profile, saved.replace(checkpoint=None))
    assert run(pool, profile, late) == whole[2:]


def test_what_goes_on_with_another_optimizer_is_saved_as_its_own(
    profile: Profile, saved: TrainOptions, pool: Any
) -> None:
    changed = saved.replace(optimizer=OptimizerSpec.parse("sgd:0.9"), steps=3)
    run(pool, profile, ignoring(changed, ignore_optimizer=True))
    assert len(run(pool, profile, changed.replace(steps=4))) == 1


def test_the_fingerprint_of_large_data_sees_its_ends_and_its_length() -> None:
    tokens = torch.arange(9_000_000, dtype=torch.int32)
    before = fingerprint(tokens)
    assert fingerprint(tokens.long()) == before
    assert fingerprint(tokens[:-1]) != before
    for place in (0, 65_535, -1, -65_536):
        changed = tokens.clone()
        changed[place] += 1
        assert fingerprint(changed) != before


def test_any_change_of_small_data_changes_its_fingerprint() -> None:
    tokens = torch.zeros(200_000, dtype=torch.uint8)
    before = fingerprint(tokens)
    for place in range(0, 200_000, 9_999):
        changed = tokens.clone()
        changed[place] = 1
        assert fingerprint(changed) != before
