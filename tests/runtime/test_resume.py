"""Training goes on where a checkpoint left it, under whatever plan, as if it had never stopped."""

from pathlib import Path
from typing import Any

import pytest
import torch

from synth.families import generate
from synth.profile import Profile, Workload
from synth.runtime.checkpoint import CheckpointOptions
from synth.runtime.learning_rate import LearningRate
from synth.runtime.profile_model import profile_model
from synth.runtime.train_options import TrainOptions
from synth.runtime.trainer import RankTrainer
from synth.runtime.world import World
from synth.schedule.file import Plan

TINY = {"vocabulary_size": 256, "width": 16, "num_blocks": 4, "num_heads": 2, "context_length": 16}
CPU = torch.device("cpu")
ONE = ("1f1b", (6,))
TWO = ("zb-h1", (3, 3))
UNEVEN = ("1f1b", (2, 4))
FOUR = ("zb-h2", (1, 2, 2, 1))


@pytest.fixture(scope="module")
def profile() -> Profile:
    """Of six layers: an embedding, four blocks, a head."""
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=16)
    return profile_model(workload, CPU, warmup=0, iterations=1)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    return path


def make_plan(profile: Profile, schedule: str, sizes: tuple[int, ...], folder: Path) -> Path:
    path = folder / f"{schedule}-{sizes}.json"
    Plan.of(profile, sizes, generate(schedule, len(sizes), 4)).save(path)
    return path


def train(rank: int, world_size: int, plan_path: str, options: TrainOptions) -> list[float]:
    plan = Plan.load(Path(plan_path))
    world = World(rank, world_size, CPU, "gloo", "here", 2)
    return RankTrainer(plan, plan.check()[0], options, world).train().losses


def run(pool: Any, plan: Path, options: TrainOptions) -> list[float]:
    losses = pool.run(train, Plan.load(plan).num_ranks, str(plan), options)
    return list(losses[0])


def options_of(text: Path, folder: Path, steps: int, **changes: Any) -> TrainOptions:
    return TrainOptions(
        data=text,
        steps=steps,
        learning_rate=LearningRate(peak=3e-3, warmup_steps=2),
        checkpoint=CheckpointOptions(folder=folder, every=3, resume=steps > 3),
        **{"clip_norm": None, **changes},
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [(TWO, TWO), (TWO, UNEVEN), (UNEVEN, FOUR), (FOUR, TWO), (TWO, ONE), (ONE, TWO)],
    ids=lambda plan: f"{plan[0]}-{plan[1]}",
)
def test_a_run_resumed_under_any_plan_has_the_losses_of_one_that_never_stopped(
    profile: Profile,
    text: Path,
    tmp_path: Path,
    pool: Any,
    before: tuple[str, tuple[int, ...]],
    after: tuple[str, tuple[int, ...]],
) -> None:
    first, second = (make_plan(profile, *plan, tmp_path) for plan in (before, after))
    whole = options_of(text, tmp_path / "unused", 6).replace(checkpoint=None)
    stopped = run(pool, first, options_of(text, tmp_path / "saved", 3))
    resumed = run(pool, second, options_of(text, tmp_path / "saved", 6))

    assert stopped + resumed == run(pool, first, whole)
    assert len(resumed) == 3
