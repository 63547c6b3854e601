"""Several mini-batches in one optimizer step take no more memory than one."""

from pathlib import Path
from typing import Any

import pytest

from synth.families import generate
from synth.profile.workload import Workload
from synth.run_options.delay_options import DelayOptions
from synth.run_options.train_options import TrainOptions
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.training.trainer import RankTrainer
from synth.runtime.world import World
from synth.schedule.files.plan_file import Plan

# The rest is token ids: a plan counts those that the first layer saves, a part of the mini-batch.
LEAST_SHARE = 0.99


def peaks(rank: int, world_size: int, plan_path: str, options: TrainOptions) -> tuple[int, int]:
    """Measured and predicted bytes of a rank, what the plan does not count included."""
    import torch

    plan = Plan.load(Path(plan_path))
    world = World(rank, world_size, torch.device("cpu"), "gloo", "here", 2)
    result = RankTrainer(plan, plan.check()[0], options, world).train()
    return result.peak_bytes, plan.claim.peak_bytes[rank] + result.extra_bytes


@pytest.mark.parametrize("name", ["pipedream", "2bw", "paci"])
def test_versions_take_the_memory_that_is_planned(pool: Any, tmp_path: Path, name: str) -> None:
    plan, options = _plan(tmp_path, name)
    for measured, predicted in pool.run(peaks, 2, str(plan), options):
        assert LEAST_SHARE * predicted < measured <= predicted


@pytest.mark.parametrize("name", ["pipedream:2-1", "pipedream:1-2"])
def test_stages_on_several_ranks_take_the_memory_that_is_planned(
    pool: Any, tmp_path: Path, name: str
) -> None:
    plan, options = _plan(tmp_path, name, num_ranks=3)
    found = pool.run(peaks, 3, str(plan), options)
    for measured, predicted in found:
        assert LEAST_SHARE * predicted < measured <= predicted
    assert pool.run(peaks, 3, str(plan), options) == found


def test_predicted_weights_take_the_memory_that_is_announced(pool: Any, tmp_path: Path) -> None:
    plan, options = _plan(tmp_path, "pipedream")
    predicting = options.replace(delay=DelayOptions(weight_prediction=True))
    without = pool.run(peaks, 2, str(plan), options)
    found = pool.run(peaks, 2, str(plan), predicting)
    for measured, predicted in found:
        assert measured <= predicted
    # Only the first stage has a delay.
    assert found[0][1] > without[0][1] and found[1][1] == without[1][1]


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_memory_is_as_planned_however_many_mini_batches_add_up(
    pool: Any, tmp_path: Path, name: str
) -> None:
    plan, options = _plan(tmp_path, name)
    once = pool.run(peaks, 2, str(plan), options)
    thrice = pool.run(peaks, 2, str(plan), options.replace(accumulate=3))
    for (measured, predicted), (accumulated, _) in zip(once, thrice, strict=True):
        assert measured <= predicted
        assert accumulated <= predicted
        assert accumulated == measured


def _plan(tmp_path: Path, name: str, num_ranks: int = 2) -> tuple[Path, TrainOptions]:
    import torch

    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    arguments = {"vocabulary_size": 256, "width": 16, "num_blocks": 2, "num_heads": 2}
    workload = Workload(
        model="gpt",
        arguments={**arguments, "context_length": 16},
        micro_batch_size=2,
        sequence_length=16,
    )
    profile = profile_model(workload, torch.device("cpu"), warmup=0, iterations=1)
    plan = tmp_path / "plan.json"
    Plan.of(profile, (2, 2), generate(name, num_ranks, 4)).save(plan)
    return plan, TrainOptions(data=text, steps=3)
