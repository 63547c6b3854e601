"""Planned peaks where layers pass tensors on, share memory or work in place, against rehearsals."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import planned_peaks_models as models
from benchmarks.planned_peaks import differences, plan_of, profiled
from synth.costs.partition_costs import partition_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.profile.whole_step import WholeStep
from synth.runtime.profiling.profile_model import profile_layers
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import lower
from synth.schedule.ops import Value, ValueKind

# The loss and the numbers that a few ops of torch make.
SCALARS_BYTES = 1024
# Copies of running statistics, which a recomputed norm begins from.
STATE_PERCENT = 0.1


def whole_step(make: Any, batch: tuple[Tensor, Tensor]) -> WholeStep:
    torch.manual_seed(0)
    steps: list[WholeStep] = []
    profile_layers(make(), *batch, warmup=0, iterations=1, on_whole_step=steps.append)
    return steps[0]


def test_a_profile_says_which_tensors_are_passed_on_and_which_are_changed() -> None:
    made = [models.Embedding(lambda x: [torch.tanh(x)]), models.Cross(), models.Head()]
    cross = profile_layers(made, *models.batch(0), warmup=0, iterations=1).layer_profile(1).tensors
    assert cross is not None and not cross.changes_input
    assert [one.until for one in cross.taken] == [OpKind.B, OpKind.W]
    assert [one.memory for one in cross.returned] == [2, 1]
    changing = [models.Embedding(), models.AddInPlace(), models.Head()]
    found = profile_layers(changing, *models.batch(0), warmup=0, iterations=1)
    assert found.changed_inputs == {1}
    assert found.layer_profile(0).tensors is None


def test_a_profile_says_which_outputs_are_sent_as_copies() -> None:
    made = [models.Embedding(lambda x: [torch.tanh(x)]), models.Halves(), models.Head()]
    profile = profile_layers(made, *models.batch(0), warmup=0, iterations=1)
    halves = profile.layer_profile(1).boundary_tensors
    assert [one.is_copied for one in halves.returned] == [True, True]
    first, _ = partition_costs(profile, [2, 1]).stages
    both_bytes = 2 * 4 * models.N * models.T * models.D
    assert (first.output_until, first.output_bytes) == (OpKind.F, both_bytes)
    assert first.saved_bytes >= both_bytes + profile.layer_profile(1).saved_bytes


def test_what_passes_a_view_on_leaves_it_one() -> None:
    def rise(*between: nn.Module) -> int:
        layers = [models.Embedding(), nn.Linear(64, 64), *between, nn.ReLU(True), models.Head()]
        profile = profile_layers(layers, *models.batch(0), warmup=0, iterations=1)
        return profile.layer_profile(len(layers) - 2).rise_bytes[OpKind.BW]

    assert rise() == rise(nn.Identity()) > rise(nn.LayerNorm(64))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mask_passed_on", "relu_in_place", "add_in_place"])
def test_the_peaks_of_a_whole_step_are_the_planned_ones(name: str) -> None:
    batch = models.images(0) if name == "relu_in_place" else models.batch(0)
    for peak in whole_step(getattr(models, name), batch).peaks:
        assert peak.planned_bytes == pytest.approx(peak.measured_bytes, abs=SCALARS_BYTES)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b, 4 ranks", "zb-v", "layers again"])
@pytest.mark.parametrize("name", ["encoder_output", "mask_passed_on", "relu_in_place"])
def test_no_rank_exceeds_its_planned_peak_by_which_little_is_planned_too_much(
    name: str, schedule: str
) -> None:
    profile = profiled(name)
    for off in differences(name, profile, plan_of(profile, schedule, 2)):
        assert -STATE_PERCENT <= off <= 3


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b, 4 ranks", "zb-v"])
@pytest.mark.parametrize("name", ["halves", "views_in_place", "channels_last"])
def test_no_rank_exceeds_its_planned_peak_where_outputs_are_views(name: str, schedule: str) -> None:
    profile = profiled(name)
    assert min(differences(name, profile, plan_of(profile, schedule, 2))) >= 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["zb-v", "dualpipe-v", "1f1b"])
def test_no_rank_exceeds_its_planned_peak_where_its_stages_hand_on_parts_of_one_memory(
    family: str,
) -> None:
    profile = profiled("unbound")
    made = generate(family, 2, 4)
    sizes = [3, 2, 2, 2] if made.placement.num_stages == 4 else [5, 4]
    found = list(differences("unbound", profile, Plan.of(profile, sizes, made)))
    assert min(found) >= -STATE_PERCENT and max(found) <= 5


@pytest.mark.slow
def test_moves_leave_what_is_a_part_of_a_stage_s_input() -> None:
    links = Links(host=Link(latency_us=10.0, bandwidth_bytes_per_s=5e9))
    profile = profiled("encoder_output").replace(links=links)
    sizes = [2, 2, 2, 3]
    costs = partition_costs(profile, sizes)
    durations_us = {OpKind.F: 1000, OpKind.B: 1000, OpKind.W: 1000, OpKind.BW: 2000}
    timed = [
        stage.replace(duration_us={**stage.duration_us, **durations_us}) for stage in costs.stages
    ]
    schedule = generate("pipeoffload:2,half", 2, 16, costs=costs.replace(stages=tuple(timed)))
    plan = Plan.of(profile, sizes, schedule)
    assert schedule.offloads and all(stage.parts_bytes for stage in costs.stages[1:-1])
    assert min(differences("encoder_output", profile, plan)) >= 0


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b, 4 ranks", "zb-h1", "zb-v"])
@pytest.mark.parametrize(
    "name", ["rotary_tables", "turned", "channels_last", "histories", "prefixes"]
)
def test_planned_peaks_are_those_of_what_is_held_sent_and_asked_for(
    name: str, schedule: str
) -> None:
    profile = profiled(name)
    for off in differences(name, profile, plan_of(profile, schedule, 2)):
        assert -STATE_PERCENT <= off <= 6


def test_layers_of_one_class_are_measured_apart_if_they_change_a_view() -> None:
    relus = [nn.ReLU(True), nn.Linear(64, 64), nn.ReLU(True)]
    layers = [models.Embedding(), nn.LayerNorm(64), *relus, models.Head()]
    profile = profile_layers(layers, *models.batch(0), warmup=0, iterations=1)
    assert profile.layers[2].profile != profile.layers[4].profile


def test_a_profile_says_whose_gradients_are_one_and_who_asks_for_none() -> None:
    made = [models.Embedding(lambda x: [torch.tanh(x)]), models.Apart(), models.Head()]
    apart = profile_layers(made, *models.batch(0), warmup=0, iterations=1).layer_profile(1)
    one_bytes = 4 * models.N * models.T * models.D
    assert apart.boundary_tensors.shared_gradient_bytes == one_bytes
    tables = [models.Embedding(lambda x: [x.detach().cos()]), models.Cross(), models.Head()]
    first = profile_layers(tables, *models.batch(0), warmup=0, iterations=1).layer_profile(0)
    assert [one.gradient_bytes for one in first.boundary_tensors.returned] == [one_bytes, 0]


def test_a_gradient_that_is_a_part_of_larger_memory_counts_with_all_of_it() -> None:
    *layers, head = models.prefixes()
    made = [*layers[:2], head]
    profile = profile_layers(made, *models.batch(0), warmup=0, iterations=1)
    prefix_bytes = 4 * models.N * models.T * models.D
    assert profile.layer_profile(1).boundary_tensors.shared_gradient_bytes == -prefix_bytes
    # The rank that makes the gradient holds all of that memory, and its neighbour does not.
    costs = partition_costs(profile, [1, 2])
    lowered = lower(generate("gpipe", 2, 1), costs)
    gradient = Value(ValueKind.GRAD, 0, 0)
    both = lowered.effects.own_bytes_of(gradient), lowered.effects.bytes_of(gradient)
    assert both == (2 * prefix_bytes, prefix_bytes)


def test_a_profile_whose_layers_do_not_fit_is_refused() -> None:
    made = [models.Embedding(lambda x: [torch.tanh(x)]), models.Cross(), models.Apart()]
    profile = profile_layers([*made, models.Head()], *models.batch(0), warmup=0, iterations=1)
    cross = profile.layer_profiles[profile.layers[1].profile]
    assert cross.tensors is not None
    fewer = cross.replace(tensors=cross.tensors.replace(taken=cross.tensors.taken[:1], returned=()))
    kinds = {**profile.layer_profiles, profile.layers[1].profile: fewer}
    with pytest.raises(ValueError, match=r"takes 1 tensor of \d+ bytes, and layer .* returns 2"):
        profile.replace(layer_profiles=kinds)
