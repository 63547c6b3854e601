"""Waits of published programs beside those of the order of their ops."""

from dataclasses import replace

import pytest

from synth.costs.partition_costs import partition_costs
from synth.estimates.device import device_of
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import software_of
from synth.estimates.layout import Layout, Software
from synth.estimates.model_config import model_of
from synth.estimates.training_step import TrainingStep, pipeline_us
from synth.families import generate
from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import lower
from synth.schedule.simulate import simulate

LAYOUT = Layout(seq_len=2048, data=8)


def step(ranks: int, schedule: str = "1f1b", software: str = "megatron") -> TrainingStep:
    estimator = Estimator(model_of("llama3-8b"), device_of("a100"), LAYOUT, software_of(software))
    return TrainingStep(estimator, ranks, 8, schedule)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_optimizer_counts_once(ranks: int) -> None:
    given = step(ranks)
    profile = given.estimator.profile()
    outside = given.outside(profile)
    costs = partition_costs(profile, given.stage_sizes(len(profile.layers)))
    # The program of each rank ends with its STEP.
    line = simulate(lower(generate("1f1b", ranks, 8, costs=costs), costs))
    assert outside.step_us > 1000
    assert given.us() == pytest.approx(line.makespan_us + outside.data_us, rel=1e-4)


def test_late_validation_counts_the_period() -> None:
    profile = step(4).estimator.profile()
    costs = partition_costs(profile, step(4).stage_sizes(len(profile.layers)))
    for name in ("1f1b", "zb-2p"):
        line = simulate(lower(generate(name, 4, 8, costs=costs), costs))
        expected = line.makespan_us if name == "1f1b" else line.period_us
        assert pipeline_us(name, 4, 8, costs) == expected
        assert (expected < line.makespan_us) == (name == "zb-2p")


def test_waiting_costs_interleaved_1f1b_at_least_half_of_its_transfers() -> None:
    given = step(4, "interleaved:2")
    profile = given.estimator.profile()
    costs = partition_costs(profile, given.stage_sizes(len(profile.layers)))
    waits, overlaps = (
        pipeline_us("interleaved:2", 4, 8, costs, waits=wait) for wait in (True, False)
    )
    sent_us = min(costs.boundary_us(stage, 0, 1) for stage in range(7))
    # Of 8 micro-batches and 2 stages each rank has 16 pairs of F and BW, and waits in each.
    assert waits - overlaps > 16 * sent_us / 2
    one = pipeline_us("1f1b", 4, 8, costs := partition_costs(profile, [9, 8, 8, 9]), waits=True)
    assert one == pipeline_us("1f1b", 4, 8, costs)


def test_a_layer_with_experts_takes_at_least_its_launches() -> None:
    experts = Layout(seq_len=2048, tensor=4, expert=8, data=8)

    def passes_us(software: Software) -> float:
        estimator = Estimator(model_of("qwen3-235b-a22b"), device_of("h100"), experts, software)
        layer = estimator.profile().layer_profiles["moe_block"]
        return layer.time_us[OpKind.F].median_us + layer.time_us[OpKind.BW].median_us

    alone, launched = software_of("megatron-graphs"), software_of("megatron")
    kernels_us, longer_us = passes_us(alone), passes_us(launched)
    assert kernels_us < longer_us
    assert longer_us >= launched.host_us
    # A host that waits in each layer: a share of the kernels' time adds to that of the launches.
    waits_us = passes_us(launched.replace(shown_launches=0.25))
    assert waits_us == pytest.approx(longer_us + 0.25 * kernels_us, rel=1e-3)
    assert passes_us(alone.replace(shown_launches=0.25)) == pytest.approx(kernels_us)
    # Rows of Qwen3-30B-A3B on B200, to which the host's time was not fitted: 8.8 and 9.2 ms.
    assert launched.host_us == pytest.approx(9000, rel=0.08)


def test_keys_that_are_repeated_before_an_exchange_take_longer() -> None:
    layout = Layout(seq_len=65536, context=4, tensor=8)
    estimator = Estimator(
        model_of("llama3-405b"),
        device_of("h100"),
        layout,
        software_of("torchtitan"),
    )
    grouped = replace(estimator, software=estimator.software.replace(repeats_keys=False))
    both = [
        one.profile().layer_profiles["block"].time_us[OpKind.F].median_us
        for one in (estimator, grouped)
    ]
    assert both[0] > 1.1 * both[1]
