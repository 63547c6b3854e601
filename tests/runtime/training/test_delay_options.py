"""Corrections of late gradients that a run would not follow are refused in one sentence."""

from typing import Any

import pytest
import torch

from synth.errors import SynthError
from synth.families import generate
from synth.profile import Profile
from synth.profile.optimizer import OptimizerSpec
from synth.profile.workload import Workload
from synth.run_options.delay_options import DelayOptions
from synth.runtime.optimize import StepSettings, build_flush_free_step
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.training.delay_hooks import check_corrections
from synth.runtime.training.optimizer_headroom import extra_bytes
from synth.runtime.training.update_counts import UpdateCounts
from synth.schedule.files.plan_file import Plan

TINY = {"vocabulary_size": 64, "width": 8, "num_blocks": 2, "num_heads": 2, "context_length": 8}


@pytest.fixture(scope="module")
def profile() -> Profile:
    workload = Workload(model="gpt", arguments=TINY, micro_batch_size=1, sequence_length=8)
    return profile_model(workload, torch.device("cpu"), warmup=0, iterations=1)


@pytest.mark.parametrize(
    ("schedule", "optimizer", "options", "message"),
    [
        ("1f1b", "adamw", {"lr_rescheduling": 9}, "flushes the pipeline before each update"),
        (
            "pipedream",
            "sgd:0.9",
            {"async_nesterov": True, "weight_prediction": True},
            "both look ahead by the momentum; leave one of them out",
        ),
        ("pipedream", "adamw", {"async_nesterov": True}, "the optimizer is adamw; give"),
        ("pipedream", "sgd", {"async_nesterov": True}, "the optimizer is sgd; give"),
        ("pipedream", "sgd", {"weight_prediction": True}, "take adamw, or sgd with momentum"),
        ("2bw:recompute", "adamw", {"weight_prediction": True}, "runs forwards again"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    profile: Profile, schedule: str, optimizer: str, options: dict[str, Any], message: str
) -> None:
    plan = Plan.of(profile, (2, 2), generate(schedule, 2, 4))
    with pytest.raises(SynthError, match=message) as error:
        check_corrections(DelayOptions(**options), plan, OptimizerSpec.parse(optimizer))
    assert "\n" not in str(error.value)


def test_a_copy_of_the_weights_that_the_memory_limit_does_not_hold_is_refused(
    profile: Profile,
) -> None:
    plan = Plan.of(profile, (2, 2), generate("pipedream", 2, 4))
    stage = torch.nn.Linear(10, 10)
    needed = extra_bytes(plan, 0, {0: stage}, [stage], OptimizerSpec(), predicted=[stage])
    copy, direction = 4 * (100 + 10), 4 * 4 * 100
    assert needed == copy + direction
    peak = plan.claim.peak_bytes
    roomy = plan.replace(caps_bytes=tuple(n + needed for n in peak))
    assert extra_bytes(roomy, 0, {0: stage}, [stage], OptimizerSpec(), predicted=[stage]) == needed
    tight = plan.replace(caps_bytes=tuple(n + needed - 1 for n in peak))
    with pytest.raises(SynthError, match="or leave --weight-prediction out"):
        extra_bytes(tight, 0, {0: stage}, [stage], OptimizerSpec(), predicted=[stage])


def test_updates_are_counted_by_layer_and_a_stage_goes_on_from_its_least(profile: Profile) -> None:
    """A step of eight micro-batches: an update takes one of the first stage, two of the second."""
    counts = UpdateCounts(Plan.of(profile, (1, 3), generate("pipedream:1-2", 3, 8)))
    assert counts.after(2, counts.none) == (16, 8, 8, 8)
    steps = build_flush_free_step(
        {1: torch.nn.Linear(1, 1)},
        OptimizerSpec(),
        StepSettings(0.1),
        delays={1: 2},
        device=torch.device("cpu"),
    )
    counts.restore((16, 8, 5, 16), steps)
    assert steps.updates == {1: 5}
