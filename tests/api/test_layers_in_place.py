"""Profiles with a layer that changes its input in place: no stage that begins with it rebuilds."""

from typing import Any

import pytest

import synth
from synth.errors import SynthError
from synth.layer_times import LayerTimes
from synth.profile import Profile
from synth.schedule.recomputed_stages import recomputed

MB = 10**6
OPTIONS: dict[str, Any] = {
    **{"ranks": 4, "micro_batches": 6, "placement": "linear", "partition": "even"},
    **{"mem_limit": 18 * MB, "link": "0us,1000GB/s", "time_limit": 2},
}


def profile(*, in_place: bool) -> Profile:
    """Return four layers that save much; those after the first keep as much if recomputed."""
    times: dict[str, Any] = {
        "forward_us": 100,
        "backward_us": 200,
        "output_bytes": MB,
        "saved_bytes": 10 * MB,
    }
    layers = [LayerTimes(name="plain", **times), LayerTimes(name="block", count=3, **times)]
    made = Profile.from_times("mine", layers)
    if not in_place:
        return made
    kept = {
        name: layer if name == "plain" else layer.replace(recompute_saved_bytes=11 * MB)
        for name, layer in made.layer_profiles.items()
    }
    return made.replace(layer_profiles=kept)


def test_the_search_rebuilds_no_stage_where_a_layer_works_in_place() -> None:
    assert recomputed(synth.solve(profile(in_place=False), **OPTIONS).schedule())
    plan = synth.solve(profile(in_place=True), **OPTIONS)
    assert not recomputed(plan.schedule())
    assert synth.prove(plan, profile=profile(in_place=True)).holds_for


def test_a_named_stage_that_begins_with_it_is_refused() -> None:
    options = {**OPTIONS, "mem_limit": None}
    assert recomputed(synth.solve(profile(in_place=True), **options, recompute="0").schedule())
    with pytest.raises(SynthError, match="recompute 1 rebuilds a stage whose first layer, block"):
        synth.solve(profile(in_place=True), **options, recompute="1")
