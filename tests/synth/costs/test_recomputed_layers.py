"""Layers that B recomputes: their costs by hand, in the plan file, and derived again by check."""

import json

import pytest

from synth.costs.partition_costs import partition_costs
from synth.costs.recomputed_layers import recomputed, recomputing
from synth.errors import SynthError
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile import Profile, Provenance
from synth.profile.layer_profile import Layer, LayerProfile, Timing
from synth.profile.workload import Workload
from synth.schedule.files.check_against_profile import differences
from synth.schedule.files.plan_file import Plan


def layer(**changes: object) -> LayerProfile:
    """F keeps 40 bytes and hands on 6; B climbs 9 above that and leaves 25 for W."""
    times = {OpKind.F: 10, OpKind.B: 11, OpKind.W: 9, OpKind.BW: 19, OpKind.STEP: 1}
    rises = {OpKind.F: 50, OpKind.B: 9, OpKind.W: 3, OpKind.BW: 8, OpKind.STEP: 0}
    made = LayerProfile(
        time_us={kind: Timing.exactly(us) for kind, us in times.items()},
        parameter_bytes=100,
        gradient_bytes=100,
        optimizer_bytes=200,
        output_bytes=6,
        saved_bytes=40,
        saved_w_bytes=25,
        rise_bytes=rises,
    )
    return made.replace(**changes)


def profile(count: int = 4, *, patterns: tuple[str, ...] | None = None) -> Profile:
    return Profile(
        name="by hand",
        provenance=Provenance(source="invented", device="none", date="2024-01-01"),
        workload=Workload(
            model="none",
            micro_batch_size=1,
            sequence_length=1,
            recomputed_layers=patterns,
            runnable=False,
        ),
        layer_profiles={"l": layer()},
        layers=tuple(Layer(name=f"l{i}", profile="l") for i in range(count)),
    )


def test_a_recomputed_layer_keeps_its_input_and_climbs_as_far_as_forward_and_backward() -> None:
    again = recomputed(layer())
    assert again.saved_bytes == 0 and again.input_until == OpKind.B
    assert again.saved_w_bytes == 25
    assert again.time_us[OpKind.B].median_us == 10 + 11
    assert again.time_us[OpKind.BW].median_us == 10 + 19
    # Once rebuilt, 40 are there, and B climbs from them; the forward alone climbs to 50.
    assert again.rise_bytes[OpKind.B] == 50 == max(50, 40 + 9)
    assert recomputed(layer(saved_bytes=45)).rise_bytes[OpKind.B] == 45 + 9
    for kind in (OpKind.F, OpKind.W, OpKind.STEP):
        assert again.time_us[kind] == layer().time_us[kind]
        assert again.rise_bytes[kind] == layer().rise_bytes[kind]


def test_an_output_that_the_layer_saves_is_made_again_and_held_for_w() -> None:
    again = recomputed(layer(output_until=OpKind.W))
    assert again.output_until == OpKind.F
    assert again.saved_w_bytes == 25 + 6
    assert again.rise_bytes[OpKind.B] == 40 + 6 + 9


def test_a_measured_recomputation_counts_instead_of_the_forward() -> None:
    times = layer().time_us | {OpKind.R: Timing.exactly(7)}
    rises = layer().rise_bytes | {OpKind.R: 70}
    again = recomputed(layer(time_us=times, rise_bytes=rises))
    assert again.time_us[OpKind.B].median_us == 7 + 11
    assert again.rise_bytes[OpKind.B] == 70


def test_a_stage_keeps_what_its_other_layers_keep_and_the_inputs_of_those_recomputed() -> None:
    # Outputs of 6 bytes lie between the layers; each is kept for the B of the one behind it.
    plain, first, both = (
        partition_costs(recomputing(profile(2), layers), [2]).stages[0]
        for layers in ((), (0,), (0, 1))
    )
    assert plain.saved_bytes == 40 + 6 + 40
    assert first.saved_bytes == 6 + 40
    assert both.saved_bytes == 6
    assert [s.duration_us[OpKind.B] for s in (plain, first, both)] == [22, 32, 42]
    assert [s.duration_us[OpKind.F] for s in (plain, first, both)] == [20, 20, 20]
    # Both: layer 1 is rebuilt first (50). It leaves 25 for W and the gradient between the two (6),
    # and frees its input (6). Above these layer 0 is rebuilt.
    assert both.rise_bytes[OpKind.B] == max(50, 25 + 6 - 6 + 50)


def test_layers_that_were_profiled_as_recomputed_stay_as_they_are() -> None:
    made = profile(patterns=("l[01]",))
    assert recomputing(made, (0, 1)) == made
    assert recomputing(made, (1, 2)).layers[2] != made.layers[2]
    with pytest.raises(SynthError, match=r"layer 4 is to be recomputed.* has layers 0 to 3"):
        recomputing(made, (4,))


def plan(layers: tuple[int, ...]) -> Plan:
    schedule = generate("zb-h1", 2, 4)
    return Plan.of(profile(), (2, 2), schedule, recomputed_layers=layers)


def test_a_plan_file_says_which_layers_and_check_derives_their_costs_again() -> None:
    made = Plan.from_json(plan((0, 2, 3)).to_json())
    made.check()
    assert made.recomputed_layers == (0, 2, 3)
    assert not list(differences(made, profile()))
    changed = made.replace(recomputed_layers=(0, 1, 2))
    (first, *_) = differences(changed, profile())
    assert first.startswith("costs of stage")


def test_plans_without_them_read_as_before() -> None:
    data = json.loads(plan(()).to_json())
    assert "recomputed_layers" not in data
    data["schema_version"] = 3
    assert Plan.from_json(json.dumps(data)).recomputed_layers is None


@pytest.mark.parametrize("listed", [[4], [1, 1], [2, 1], [-1]])
def test_places_that_cannot_be_are_refused(listed: list[int]) -> None:
    data = json.loads(plan((0,)).to_json()) | {"recomputed_layers": listed}
    with pytest.raises(SynthError, match="recomputed_layers"):
        Plan.from_json(json.dumps(data))
