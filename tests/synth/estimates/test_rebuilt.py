"""The estimator of an estimated profile, made again from the profile alone."""

from pathlib import Path
from typing import Any

import pytest

import synth
from synth.estimates.factors import software_of
from synth.estimates.rebuilt import estimator_of
from synth.profile import Profile
from synth.profiles import load


@pytest.mark.parametrize(
    "options",
    [
        {"tp": 2},
        {"tp": 8, "dtype": "fp8", "recompute": "full"},
        {"software": "torchtitan", "sharding": "fsdp", "dp": 8},
        {"calibration": "none", "software": "llm-foundry", "micro_batch_size": 2},
    ],
    ids=str,
)
def test_an_estimate_computes_the_same_profile_again(
    options: dict[str, Any], tmp_path: Path
) -> None:
    profile = synth.estimate("llama3-8b", "h100", seq_len=4096, **options)
    path = tmp_path / "profile.json"
    profile.save(path)
    found = estimator_of(Profile.load(path))
    assert found is not None
    again = found.profile()
    assert again.layer_profiles.keys() == profile.layer_profiles.keys()
    for kind, layer in profile.layer_profiles.items():
        for op, time in layer.time_us.items():
            other = again.layer_profiles[kind].time_us[op].median_us
            assert other == pytest.approx(time.median_us, rel=1e-3, abs=0.01)


def test_the_program_is_the_one_with_these_times() -> None:
    found = estimator_of(load("llama3-8b-h100-tp1"))
    assert found is not None and found.software == software_of("megatron")


def test_measured_and_changed_profiles_have_no_estimator() -> None:
    assert estimator_of(load("zb-1.5b-p8-m24")) is None
    profile = load("llama3-8b-h100-tp1")
    block = profile.layer_profiles["block"]
    slower = {
        op: time.replace(
            median_us=2 * time.median_us, p10_us=2 * time.p10_us, p90_us=2 * time.p90_us
        )
        for op, time in block.time_us.items()
    }
    kinds = {**profile.layer_profiles, "block": block.replace(time_us=slower)}
    assert estimator_of(profile.replace(layer_profiles=kinds)) is None
