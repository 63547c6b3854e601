"""Profiles with a layer that changes its input in place: no stage that begins with it rebuilds."""

import re
from itertools import accumulate
from typing import Any

import pytest

import synth
from synth.errors import SynthError
from synth.layer_times import LayerTimes
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.layer_tensors import LayerTensors, ReturnedTensor, TakenTensor
from synth.schedule.recomputed_stages import recomputed

MB = 10**6
OPTIONS: dict[str, Any] = {
    **{"ranks": 4, "micro_batches": 6, "placement": "linear", "partition": "even"},
    **{"mem_limit": 18 * MB, "link": "0us,1000GB/s", "time_limit": 0.1},
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


def known_in_place() -> Profile:
    """Return the layers where the last alone changes its input, as the profile says."""
    made = profile(in_place=False)
    taken = TakenTensor(num_bytes=MB, until=OpKind.F, is_changed=True)
    returned = ReturnedTensor(memory=0, num_bytes=MB, gradient_bytes=MB, gradient_until=OpKind.B)
    changing = made.layer_profiles["block"].replace(
        recompute_saved_bytes=11 * MB,
        tensors=LayerTensors(taken=(taken,), made=(), returned=(returned,)),
    )
    listed = [one.replace(profile="changing") if at == 3 else one
              for at, one in enumerate(made.layers)]  # fmt: skip
    return made.replace(
        layer_profiles={**made.layer_profiles, "changing": changing}, layers=tuple(listed)
    )


def test_other_stages_are_rebuilt_where_it_is_known_which_layers_work_in_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = synth.solve(known_in_place(), **OPTIONS)
    stages = recomputed(plan.schedule())
    assert stages and 3 not in stages
    assert "stages that begin with block.2 are not recomputed" in capsys.readouterr().err
    assert synth.prove(plan, profile=known_in_place()).holds_for
    moved = synth.solve(known_in_place(), **{**OPTIONS, "ranks": 2, "partition": "auto"})
    begins = [0, *accumulate(moved.partition)]
    assert 3 not in {begins[stage] for stage in recomputed(moved.schedule())}


def targets_in_place() -> Profile:
    """Return the layers where the last alone changes what it is given beside its input."""
    made = known_in_place()
    last = made.layer_profiles["changing"]
    assert last.tensors is not None
    taken = (last.tensors.taken[0].replace(is_changed=False),)
    changing = last.replace(tensors=last.tensors.replace(taken=taken, changes_given=True))
    return made.replace(layer_profiles={**made.layer_profiles, "changing": changing})


def test_no_stage_is_rebuilt_whose_last_layer_changes_the_targets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ranks: dict[str, Any] = {**OPTIONS, "ranks": 2}
    plan = synth.solve(targets_in_place(), **{**ranks, "mem_limit": 24 * MB})
    told = "the last stage is not recomputed, as block.2 changes the targets in place\n"
    assert capsys.readouterr().err == told
    assert 1 not in recomputed(plan.schedule())
    given = synth.solve(targets_in_place(), **{**ranks, "mem_limit": 24 * MB, "recompute": "0"})
    assert recomputed(given.schedule()) == [0]
    assert synth.prove(plan, profile=targets_in_place()).holds_for
    everywhere = {**ranks, "mem_limit": None, "recompute": "all"}
    assert recomputed(synth.solve(profile(in_place=False), **everywhere).schedule()) == [0, 1]
    refused = r"stage 1, whose last layer, block\.2, changes the targets in place"
    with pytest.raises(SynthError, match=refused):
        synth.solve(targets_in_place(), **everywhere)
    options: dict[str, Any] = {"ranks": 2, "micro_batches": 6, "placement": None}
    found = synth.compare(targets_in_place(), only=["gpipe:recompute"], **options)
    assert re.search(refused, found.refusals[0].reason)


def test_a_named_stage_that_begins_with_it_is_refused() -> None:
    options = {**OPTIONS, "mem_limit": None}
    assert recomputed(synth.solve(profile(in_place=True), **options, recompute="0").schedule())
    refused = r"rebuild stage 1, whose first layer, block.0, .*, or give"
    with pytest.raises(SynthError, match=rf"{refused} auto$"):
        synth.solve(profile(in_place=True), **options, recompute="1")
    with pytest.raises(SynthError, match=rf"{refused} stages 0 alone, or auto$"):
        synth.solve(profile(in_place=True), **options, recompute="all")


def test_listed_layers_that_work_in_place_are_refused() -> None:
    options = {**OPTIONS, "mem_limit": None}
    refused = r"lists layer 1, block.0, which .*profile again"
    with pytest.raises(SynthError, match=rf"{refused}, or list layers:0 alone$"):
        synth.solve(profile(in_place=True), **options, recompute="layers:all")
    with pytest.raises(SynthError, match=rf"{refused}$"):
        synth.solve(profile(in_place=True), **options, recompute="layers:1-3")
    plan = synth.solve(profile(in_place=True), **options, recompute="layers:0")
    assert plan.recomputed_layers == (0,)


@pytest.mark.parametrize("in_place", [True, False])
def test_the_search_says_that_it_rebuilds_no_stages(
    capsys: pytest.CaptureFixture[str], *, in_place: bool
) -> None:
    synth.solve(profile(in_place=in_place), **OPTIONS)
    said = "stages are not recomputed, as block.0 and 2 more may come first in one and change the"
    assert (said in capsys.readouterr().err) == in_place


def test_published_schedules_that_rebuild_such_a_stage_are_refused() -> None:
    options: dict[str, Any] = {"ranks": 4, "micro_batches": 6, "time_limit": 5}
    only = ("1f1b", "1f1b:recompute")
    for in_place in (True, False):
        found = synth.compare(profile(in_place=in_place), only=only, placement=None, **options)
        reasons = [refusal.reason for refusal in found.refusals if refusal.name == only[1]]
        assert len(reasons) == in_place
        assert all("it rebuilds stage 1, whose first layer, block.0, cha" in r for r in reasons)


@pytest.mark.slow
def test_searches_of_comparisons_rebuild_no_such_stage() -> None:
    options = {**OPTIONS, "recompute": "auto", "only": "1f1b", "time_limit": 0.5}
    for in_place in (True, False):
        found = synth.compare(profile(in_place=in_place), **options)
        rows = [entry for entry in found.entries if entry.name.startswith("solved")]
        assert any(recomputed(row.schedule) for row in rows) != in_place


def test_a_stage_named_for_a_comparison_is_refused() -> None:
    options = {**OPTIONS, "only": "1f1b", "recompute": "1"}
    for in_place in (True, False):
        found = synth.compare(profile(in_place=in_place), **options)
        refused = [refusal.reason for refusal in found.refusals if "solved" in refusal.name]
        assert len(refused) == in_place
        assert all("rebuild stage 1, whose first layer, block.0, changes" in r for r in refused)
