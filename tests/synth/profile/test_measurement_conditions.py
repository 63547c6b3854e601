"""The conditions of a profile: which of them are warned of, and that plans carry them."""

import json
from pathlib import Path

import pytest

from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.layer_profile import Timing
from synth.profile.measurement_conditions import (
    BUSY_LOAD,
    BUSY_WAITING_SHARE,
    WIDE_SPREAD,
    Conditions,
    spread_of,
)
from synth.profiles import find
from synth.schedule.files.plan_file import Plan

QUIET = Conditions(
    load_start=BUSY_LOAD,
    load_end=BUSY_LOAD,
    waiting_share=BUSY_WAITING_SHARE,
    other_processes=0,
    spread=WIDE_SPREAD,
)


def profile_under(conditions: Conditions | None) -> Profile:
    profile = Profile.load(find("zb-1.5b-p8-m24"))
    return profile.replace(provenance=profile.provenance.replace(conditions=conditions))


def test_a_quiet_machine_is_not_warned_of() -> None:
    assert QUIET.warning("profile gpt") is None
    assert Conditions().warning("profile gpt") is None


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"load_start": 0.8}, "on a busy machine (load 0.8 per processor)"),
        ({"load_end": 0.8}, "on a busy machine (load 0.8 per processor)"),
        ({"waiting_share": 0.12}, "on a busy machine (12 % of the time without a processor)"),
        ({"other_processes": 1}, "on a busy machine (1 other process on the device)"),
        ({"other_processes": 2}, "on a busy machine (2 other processes on the device)"),
        ({"spread": 0.45}, "with samples far apart (p10 to p90 span 45 % of the median)"),
        (
            {"waiting_share": 0.12, "spread": 0.45},
            "(12 % of the time without a processor, p10 to p90 span 45 % of the median)",
        ),
    ],
)
def test_each_sign_of_a_busy_machine_is_named_in_one_line(
    changes: dict[str, float], part: str
) -> None:
    warning = QUIET.replace(**changes).warning("profile gpt")
    assert warning is not None
    assert warning.startswith("warning: profile gpt was measured ")
    assert part in warning
    assert warning.endswith("profile again on a quiet machine")
    assert "\n" not in warning


def test_long_ops_count_more_in_the_spread() -> None:
    layer = profile_under(None).layer_profile(0)
    steady = Timing(median_us=990, p10_us=980, p90_us=1000, n=20)
    wild = Timing(median_us=10, p10_us=0, p90_us=80, n=20)
    kinds = (OpKind.F, OpKind.B, OpKind.W, OpKind.BW)
    times = dict.fromkeys(kinds, steady) | {OpKind.W: wild}
    long = layer.replace(time_us=layer.time_us | times)
    assert spread_of([long]) == pytest.approx((3 * 20 + 80) / (3 * 990 + 10), abs=1e-4)


def test_published_values_have_no_spread() -> None:
    profile = profile_under(None)
    assert spread_of(profile.layer_profiles.values()) == 0


def test_a_plan_carries_the_conditions_of_its_profile(tmp_path: Path) -> None:
    profile = profile_under(QUIET.replace(load_start=1.7))
    Plan.of(profile, [6] * 4, generate("zb-h1", 4, 8)).save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").conditions == profile.provenance.conditions


def test_the_conditions_do_not_make_it_another_profile() -> None:
    assert profile_under(QUIET).fingerprint() == profile_under(None).fingerprint()


def test_files_of_before_have_none_and_stay_as_they_are(tmp_path: Path) -> None:
    profile = profile_under(None)
    Plan.of(profile, [6] * 4, generate("zb-h1", 4, 8)).save(tmp_path / "plan.json")
    assert "conditions" not in json.loads((tmp_path / "plan.json").read_text())
    assert "conditions" not in json.loads(profile.to_json())["provenance"]
