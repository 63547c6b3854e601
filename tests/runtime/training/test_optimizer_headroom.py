"""Memory of an optimizer that the plan was not made for, with weight passing."""

import pytest
import torch

from synth.errors import SynthError
from synth.families import generate
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profile.optimizer import OptimizerSpec
from synth.profile.workload import Workload
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.training.building import build_stages
from synth.runtime.training.optimizer_headroom import extra_bytes
from synth.schedule.files.plan_file import Plan

CPU = torch.device("cpu")
NARROW, WIDE = map(OptimizerSpec.parse, ("adamw+master", "adamw+master+float32-gradients"))
ARGUMENTS = {"vocabulary_size": 64, "width": 32, "num_blocks": 2, "num_heads": 2}


def profiled(spec: OptimizerSpec) -> Profile:
    workload = Workload(
        model="gpt",
        arguments={**ARGUMENTS, "context_length": 16},
        micro_batch_size=1,
        sequence_length=8,
        dtype="bfloat16",
        optimizer=spec,
    )
    profile = profile_model(workload, CPU, warmup=0, iterations=1)
    return profile.replace(links=Links(host=Link()))


@pytest.fixture(scope="module")
def profiles() -> tuple[Profile, Profile]:
    return profiled(NARROW), profiled(WIDE)


@pytest.mark.parametrize("name", ["mobius:2", "weipipe", "zero1:1"])
def test_sums_of_gradients_in_float32_count_as_in_a_plan_that_is_made_for_them(
    profiles: tuple[Profile, Profile], name: str
) -> None:
    schedule = generate(name, 2, 4)
    sizes = (1,) * 4 if schedule.placement.num_stages == 4 else (2, 2)
    plan, wanted = (Plan.of(profile, sizes, schedule) for profile in profiles)
    for rank in range(2):
        stages = {n: s.module for n, s in build_stages(plan, rank, CPU, seed=0).stages.items()}
        grown = wanted.claim.peak_bytes[rank] - plan.claim.peak_bytes[rank]
        extra = extra_bytes(plan, rank, stages, (), WIDE)
        largest = max(p.numel() for module in stages.values() for p in module.parameters())
        assert 0 < grown <= extra <= grown + 4 * largest
        assert extra_bytes(plan, rank, stages, (), NARROW) == 0


def test_sums_in_float32_that_the_memory_limit_does_not_hold_are_refused(
    profiles: tuple[Profile, Profile],
) -> None:
    plan = Plan.of(profiles[0], (1,) * 4, generate("mobius:2", 2, 4))
    stages = {n: s.module for n, s in build_stages(plan, 0, CPU, seed=0).stages.items()}
    extra = extra_bytes(plan, 0, stages, (), WIDE)
    peaks = plan.claim.peak_bytes
    roomy = plan.replace(caps_bytes=tuple(peak + extra for peak in peaks))
    assert extra_bytes(roomy, 0, stages, (), WIDE) == extra
    tight = plan.replace(caps_bytes=tuple(peak + extra - 1 for peak in peaks))
    with pytest.raises(
        SynthError, match=r"rank 0 needs .* with the optimizer adamw\+master\+float"
    ):
        extra_bytes(tight, 0, stages, (), WIDE)
