"""Training resumes from a checkpoint under any plan as if it had never stopped."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from synth.families import generate
from synth.profile import Profile
from synth.profile.optimizer import OptimizerSpec
from synth.profile.workload import Workload
from synth.run_options.delay_options import DelayOptions
from synth.run_options.learning_rate import LearningRate
from synth.run_options.train_options import TrainOptions
from synth.runtime.checkpoint import CheckpointFolder, CheckpointOptions
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.rank_result import RankResult
from synth.runtime.training.trainer import RankTrainer
from synth.runtime.world import World
from synth.schedule.files.plan_file import Plan

TINY = {"vocabulary_size": 256, "width": 16, "num_blocks": 4, "num_heads": 2, "context_length": 16}
CPU = torch.device("cpu")
ONE = ("1f1b", (6,))
TWO = ("zb-h1", (3, 3))
UNEVEN = ("1f1b", (2, 4))
FOUR = ("zb-h2", (1, 2, 2, 1))
STASHING = ("pipedream", (3, 3))


@pytest.fixture(scope="module")
def profile() -> Profile:
    """A profile of six layers: an embedding, four blocks, a head."""
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=2, sequence_length=16)
    return profile_model(workload, CPU, warmup=0, iterations=1)


def make_plan(profile: Profile, schedule: str, sizes: tuple[int, ...], folder: Path) -> Path:
    path = folder / f"{schedule}-{sizes}.json"
    Plan.of(profile, sizes, generate(schedule, len(sizes), 4)).save(path)
    return path


def train_to_result(
    rank: int, world_size: int, plan_path: str, options: TrainOptions
) -> RankResult:
    plan = Plan.load(Path(plan_path))
    world = World(rank, world_size, CPU, "gloo", "here", 2)
    return RankTrainer(plan, plan.check()[0], options, world).train()


def train(rank: int, world_size: int, plan_path: str, options: TrainOptions) -> list[float]:
    return train_to_result(rank, world_size, plan_path, options).losses


def run(pool: Any, plan: Path, options: TrainOptions) -> list[float]:
    losses = pool.run(train, Plan.load(plan).num_ranks, str(plan), options)
    return list(losses[0])


def options_of(text: Path, folder: Path, steps: int, **changes: Any) -> TrainOptions:
    return TrainOptions(
        data=text,
        steps=steps,
        learning_rate=LearningRate(peak=3e-3, warmup_steps=2),
        **{
            "checkpoint": CheckpointOptions(folder=folder, every=3, resume=steps > 3),
            "clip_norm": 0.5,
            **changes,
        },
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
    # Clipped at every step. The norm's sums over ranks are of float64: their order matters not.
    whole = options_of(text, tmp_path / "unused", 6).replace(checkpoint=None)
    stopped = run(pool, first, options_of(text, tmp_path / "saved", 3))
    resumed = run(pool, second, options_of(text, tmp_path / "saved", 6))

    assert stopped + resumed == run(pool, first, whole)
    assert len(resumed) == 3


def test_a_plan_without_a_flush_resumes_where_its_pipeline_was_empty(
    profile: Profile, text: Path, tmp_path: Path, pool: Any
) -> None:
    plan, flushing = (make_plan(profile, *each, tmp_path) for each in (STASHING, TWO))
    whole = run(pool, plan, options_of(text, tmp_path / "unused", 6).replace(checkpoint=None))
    stopped = run(pool, plan, options_of(text, tmp_path / "saved", 3))
    assert stopped + run(pool, plan, options_of(text, tmp_path / "saved", 6)) == whole
    run(pool, plan, options_of(text, tmp_path / "other", 3))
    assert len(run(pool, flushing, options_of(text, tmp_path / "other", 6))) == 3


@pytest.mark.parametrize(
    ("schedule", "optimizer", "delay"),
    [
        # Its first stage has a delay of 2, so that the rate depends on the number of updates.
        ("delayed-update", "adamw", {"lr_rescheduling": 30}),
        ("delayed-update", "sgd:0.9", {"lr_rescheduling": 30, "async_nesterov": True}),
        ("pipedream", "adamw", {"weight_prediction": True}),
    ],
    ids=["rate", "nesterov", "prediction"],
)
def test_corrections_of_late_gradients_go_on_from_a_checkpoint(
    profile: Profile,
    text: Path,
    tmp_path: Path,
    pool: Any,
    schedule: str,
    optimizer: str,
    delay: dict[str, Any],
) -> None:
    plan = make_plan(profile, schedule, (3, 3), tmp_path)
    changes = {"optimizer": OptimizerSpec.parse(optimizer), "delay": DelayOptions(**delay)}
    whole = options_of(text, tmp_path, 6, **changes).replace(checkpoint=None)
    expected = run(pool, plan, whole)
    assert expected != run(pool, plan, whole.replace(delay=DelayOptions()))
    saved = tmp_path / "saved"
    stopped = run(pool, plan, options_of(text, saved, 3, **changes))
    assert stopped + run(pool, plan, options_of(text, saved, 6, **changes)) == expected
    for step in (3, 6):  # four micro-batches, and so four updates, a step
        state = json.loads((saved / f"step-{step}" / "training.json").read_text())
        assert state["updates"] == [4 * step] * 6


def test_stages_on_several_ranks_go_on_with_their_own_numbers_of_updates(
    profile: Profile, text: Path, tmp_path: Path, pool: Any
) -> None:
    plan = tmp_path / "plan.json"
    Plan.of(profile, (2, 4), generate("pipedream:1-2", 3, 4)).save(plan)
    # The first stage admits three micro-batches before a backward, and has a delay of 2.
    changes = {"delay": DelayOptions(lr_rescheduling=30, weight_prediction=True)}
    whole = run(pool, plan, options_of(text, tmp_path, 6, **changes).replace(checkpoint=None))
    saved = tmp_path / "saved"
    stopped = run(pool, plan, options_of(text, saved, 3, **changes))
    assert stopped + run(pool, plan, options_of(text, saved, 6, **changes)) == whole
    state = json.loads((saved / "step-6" / "training.json").read_text())
    # Of the four micro-batches an update of the second stage takes one from each of its ranks.
    assert state["updates"] == [6 * 4] * 2 + [6 * 2] * 4


@pytest.mark.parametrize("late", ["", "+post-validation"])
def test_float32_gradients_of_bfloat16_parameters_resume_with_the_same_bits(
    text: Path, tmp_path: Path, pool: Any, late: str
) -> None:
    workload = Workload(
        model="gpt",
        arguments=TINY,
        micro_batch_size=2,
        sequence_length=16,
        dtype="bfloat16",
        optimizer=OptimizerSpec.parse(f"adamw+master+float32-gradients{late}"),
    )
    plan = make_plan(profile_model(workload, CPU, warmup=0, iterations=1), *TWO, tmp_path)
    saved = tmp_path / "saved"
    stopped = run(pool, plan, options_of(text, saved, 3))
    resumed = run(pool, plan, options_of(text, saved, 6))
    whole = run(pool, plan, options_of(text, tmp_path / "whole", 6, checkpoint=None))
    assert stopped + resumed == whole
    assert len(resumed) == 3


def test_accumulating_two_halves_is_the_step_of_the_whole(
    profile: Profile, text: Path, tmp_path: Path, pool: Any
) -> None:
    halves, whole = tmp_path / "halves.json", tmp_path / "whole.json"
    Plan.of(profile, (3, 3), generate("zb-h1", 2, 2)).save(halves)
    Plan.of(profile, (3, 3), generate("zb-h1", 2, 4)).save(whole)
    options = options_of(text, tmp_path, 4).replace(checkpoint=None)
    accumulated = run(pool, halves, options.replace(accumulate=2))
    torch.testing.assert_close(accumulated, run(pool, whole, options), rtol=1e-5, atol=0)


def test_a_run_that_accumulates_resumes_at_its_data_position(
    profile: Profile, text: Path, tmp_path: Path, pool: Any
) -> None:
    plan = make_plan(profile, *TWO, tmp_path)
    whole, stopped, resumed = (
        options_of(text, tmp_path / "saved", steps, accumulate=2) for steps in (6, 3, 6)
    )
    before = run(pool, plan, whole.replace(checkpoint=None))
    assert run(pool, plan, stopped) + run(pool, plan, resumed) == before


def test_data_that_ends_ends_training_with_a_checkpoint_and_says_so(
    profile: Profile, text: Path, tmp_path: Path, pool: Any
) -> None:
    options = options_of(text, tmp_path / "saved", 1000, epochs=1)
    results = pool.run(train_to_result, 2, str(make_plan(profile, *TWO, tmp_path)), options)
    sequences = (len(text.read_text()) - 1) // 16
    steps = sequences // 8
    assert all(len(result.losses) == steps for result in results)
    remark = f"the data ended after {steps} of 1000 steps (1 epoch(s) of {sequences} sequences)"
    assert results[0].remark == remark
    assert CheckpointFolder(tmp_path / "saved").steps()[-1] == steps


def test_epochs_alone_say_how_many_steps_there_are_and_how_the_learning_rate_falls(
    profile: Profile, text: Path, tmp_path: Path, pool: Any
) -> None:
    plan = str(make_plan(profile, *TWO, tmp_path))
    falling = LearningRate(peak=3e-3, decay="linear")
    by_data, by_both, by_steps = (
        pool.run(
            train_to_result,
            2,
            plan,
            TrainOptions(data=text, learning_rate=falling, epochs=2, steps=steps),
        )[0]
        for steps in (None, 10**6, 10)
    )
    sequences = (len(text.read_text()) - 1) // 16
    num_steps = 2 * sequences // 8
    assert len(by_data.losses) == num_steps > 20
    assert by_data.remark == (
        f"the data ended after {num_steps} steps (2 epoch(s) of {sequences} sequences)"
    )
    assert by_both.losses == by_data.losses
    assert (len(by_steps.losses), by_steps.remark) == (10, None)
    assert by_steps.losses[0] == by_data.losses[0]
    assert by_steps.losses[-1] != by_data.losses[9]  # the rate fell faster


def warning_of(rank: int, world_size: int, plan_path: str, options: TrainOptions) -> str | None:
    plan = Plan.load(Path(plan_path))
    world = World(rank, world_size, CPU, "gloo", "here", 2)
    return RankTrainer(plan, plan.check()[0], options, world).warning


def test_a_warm_up_longer_than_the_run_is_told(
    profile: Profile, text: Path, tmp_path: Path, pool: Any
) -> None:
    plan = str(make_plan(profile, *ONE, tmp_path))
    for warmup_steps in (4, 8):
        rate = LearningRate(peak=1e-2, warmup_steps=warmup_steps)
        options = TrainOptions(data=text, steps=4, learning_rate=rate)
        [told] = pool.run(warning_of, 1, plan, options)
        assert (told is None) == (warmup_steps == 4)
    assert "rises for 8 steps, this run has 4: it ends at 0.005 and never reaches" in told


@pytest.mark.parametrize("epochs", [None, 2])
def test_a_finished_run_that_is_resumed_has_nothing_left_to_do(
    profile: Profile, text: Path, tmp_path: Path, pool: Any, epochs: int | None
) -> None:
    plan = str(make_plan(profile, *TWO, tmp_path))
    text.write_text(text.read_text()[: 16 * 16 + 1])  # two steps' sequences
    options = options_of(text, tmp_path / "saved", 4, epochs=epochs)
    if epochs is not None:
        options = options.replace(steps=None)
    first, again = (pool.run(train_to_result, 2, plan, options)[0] for _ in range(2))
    assert (len(first.losses), first.first_step) == (4, 0)
    assert (again.losses, again.first_step) == ([], 4)
    assert again.remark == "nothing is left to do: the checkpoint holds all 4 steps of this run"


def test_a_rank_whose_data_ends_before_the_others_ends_them_all(
    profile: Profile, text: Path, tmp_path: Path, pool: Any
) -> None:
    shorter = tmp_path / "shorter.txt"
    shorter.write_text(text.read_text()[:500])
    options = options_of(text, tmp_path / "saved", 1000, epochs=1)
    plan = make_plan(profile, *TWO, tmp_path)
    results = pool.run(train_on_own_data, 2, str(plan), options, [str(text), str(shorter)])
    assert [len(result.losses) for result in results] == [(499 // 16) // 8] * 2
    assert all("the data ended after 3 of 1000 steps" in result.remark for result in results)


def train_on_own_data(
    rank: int, world_size: int, plan_path: str, options: TrainOptions, data: list[str]
) -> RankResult:
    own = options.replace(data=Path(data[rank]))
    return train_to_result(rank, world_size, plan_path, own)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 5}, "made with seed 0, this run has 5.*--seed 0"),
        ({"steps": 2}, "already holds 3 steps, this run has only 2"),
        ({"steps": None, "epochs": 1}, "already holds 3 steps, this run has only 1"),
    ],
    ids=["another seed", "fewer steps", "fewer epochs"],
)
def test_what_would_not_go_on_as_before_is_refused(
    profile: Profile,
    text: Path,
    tmp_path: Path,
    pool: Any,
    changes: dict[str, Any],
    message: str,
) -> None:
    plan = make_plan(profile, *ONE, tmp_path)
    text.write_text(text.read_text()[: 16 * 8 + 1])  # one step's sequences
    run(pool, plan, options_of(text, tmp_path / "saved", 3))
    again = options_of(text, tmp_path / "saved", 6).replace(**changes)
    with pytest.raises(AssertionError, match=message):
        run(pool, plan, again)


def test_checkpoints_are_not_mixed_with_those_of_another_run(
    profile: Profile, text: Path, tmp_path: Path, pool: Any
) -> None:
    plan = make_plan(profile, *ONE, tmp_path)
    options = options_of(text, tmp_path / "saved", 3)
    run(pool, plan, options)
    with pytest.raises(AssertionError, match="holds a checkpoint of step 3; --resume continues"):
        run(pool, plan, options)
