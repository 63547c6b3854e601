"""FLOPs of a model and peak FLOP/s: what they are added up from, and what is refused."""

import json
from typing import Any

import pytest

from synth.costs.recomputed_layers import recomputing
from synth.errors import SynthError
from synth.families import generate
from synth.profile import Profile
from synth.profile.layer_times import LayerTimes
from synth.profile.model_flops import format_flops, parse_flops_per_s
from synth.profiles import find
from synth.schedule.files.check_against_profile import differences
from synth.schedule.files.plan_file import Plan


def layers(*forwards: int | None) -> list[LayerTimes]:
    return [
        LayerTimes(name=f"layer {i}", forward_us=1, backward_us=2, forward_flops=forward)
        for i, forward in enumerate(forwards)
    ]


@pytest.mark.parametrize(
    ("text", "per_s"),
    [
        ("989e12", 989e12),
        ("989TFLOPS", 989e12),
        ("989 TFLOP/s", 989e12),
        ("1.979PFLOPs", 1.979e15),
        ("1.5E+3", 1500),
        ("7GFLOPs/s", 7e9),
    ],
)
def test_rates_are_read_with_or_without_a_unit(text: str, per_s: float) -> None:
    assert parse_flops_per_s(text) == pytest.approx(per_s, rel=1e-12)


@pytest.mark.parametrize("text", ["", "0", "-1e12", "989TB", "989 T", "TFLOPS", "1e99", "nan"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SynthError, match="989TFLOPS"):
        parse_flops_per_s(text)


def test_operations_are_shown_in_the_unit_that_fits() -> None:
    assert [format_flops(n) for n in (51, 2.5e9, 1.2345e15)] == [
        "51 FLOP",
        "2.5 GFLOP",
        "1.234 PFLOP",
    ]


def test_backward_counts_twice_and_recomputation_not_at_all() -> None:
    profile = Profile.from_times("mine", layers(0, 10, 7), peak_flops_per_s=1e3)
    found = profile.flops
    assert found is not None and (found.per_micro_batch, found.peak_per_s) == (51, 1e3)
    assert recomputing(profile, [1, 2]).flops == found


@pytest.mark.parametrize("forwards", [(1, None), (0, 0), (None,)])
def test_without_the_flops_of_a_layer_there_are_none_of_the_model(forwards: Any) -> None:
    assert Profile.from_times("mine", layers(*forwards)).flops is None


def test_files_of_version_2_load_and_have_no_flops() -> None:
    data = json.loads(find("zb-1.5b-p8-m24").read_text())
    new = Profile.from_json(json.dumps(data))
    data["schema_version"] = 2
    del data["peak_flops_per_s"]
    for layer in data["layer_profiles"].values():
        del layer["forward_flops"]
    old = Profile.from_json(json.dumps(data))
    assert old.flops is None and new.flops is not None
    # A schedule does not depend on them.
    assert old.fingerprint() == new.fingerprint() == "b23bab678a11ffa2"


@pytest.mark.parametrize("value", [0, -1, "fast", 1e22])
def test_a_peak_that_is_no_rate_is_named(value: Any) -> None:
    data = json.loads(find("zb-1.5b-p8-m24").read_text())
    data["peak_flops_per_s"] = value
    with pytest.raises(SynthError, match="peak_flops_per_s"):
        Profile.from_json(json.dumps(data))


def test_a_plan_is_compared_in_flops_only_with_a_profile_that_has_them() -> None:
    counted, other, unknown = (
        Profile.from_times("two", layers(*forwards)) for forwards in ((5, 6), (5, 7), (None, None))
    )
    plan = Plan.of(counted, (1, 1), generate("1f1b", 2, 2))
    assert list(differences(plan, counted)) == list(differences(plan, unknown)) == []
    (found,) = differences(plan, other)
    assert found.startswith("flops, per_micro_batch: 33 in the plan, 36 by the profile")
