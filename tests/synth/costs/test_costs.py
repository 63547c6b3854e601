"""Costs of stages and links: what is refused, the time of a ring, and what counts as equal."""

import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links, PairLink


def test_stage_costs_need_every_kind_of_op() -> None:
    whole = uniform_costs(1, forward_us=1, backward_input_us=1, backward_weight_us=1).stages[0]
    with pytest.raises(ValueError, match="need each of F, B, W, BW, STEP"):
        StageCosts.model_validate({**dict(whole), "duration_us": {OpKind.F: 1}})


def test_a_ring_takes_two_rounds_less_two_per_rank_at_the_pace_of_its_slowest_link() -> None:
    # 6000 bytes at 1 GB/s: among 2 ranks 2 rounds of 3000 bytes, 2 · (1 + 3) µs; among 3 ranks
    # 4 rounds of 2000 bytes, 4 · (1 + 2) µs. From 3 back to 0 it takes 10 µs more.
    slow = PairLink(source=3, target=0, latency_us=11, bandwidth_bytes_per_s=1e9)
    links = Links(default=Link(latency_us=1, bandwidth_bytes_per_s=1e9), pairs=(slow,))
    costs = uniform_costs(
        1,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        links=links,
        gradient_bytes=6000,
    )
    assert costs.reduction_us(0, (2,)) == 0
    assert costs.reduction_us(0, (0, 1)) == 8
    assert costs.reduction_us(0, (0, 1, 2)) == 12
    assert costs.reduction_us(0, (0, 1, 3)) == 4 * (11 + 2)
    assert costs.reduction_us(0, (0, 3)) == 2 * (11 + 3)


def test_what_costs_remember_is_not_part_of_them() -> None:
    costs = uniform_costs(2, forward_us=1, backward_input_us=1, backward_weight_us=1)
    fresh = costs.model_copy(deep=True)
    costs.table()
    costs.boundary_us(0, 0, 1)
    assert costs == fresh
    assert costs.replace(links=Links()) == fresh
    assert costs.model_dump_json() == fresh.model_dump_json()


def test_costs_that_were_asked_for_early_gradients_are_compared_as_before() -> None:
    def costs(early_bytes: int) -> Costs:
        made = uniform_costs(2, forward_us=1, backward_input_us=1, backward_weight_us=1)
        stages = [stage.replace(early_gradient_bytes=early_bytes) for stage in made.stages]
        return made.replace(stages=tuple(stages))

    for early_bytes in (0, 3):
        one, other = costs(early_bytes), costs(early_bytes)
        with_them = [each.with_early_gradients() for each in (one, other)]
        assert one == other and with_them[0] == with_them[1]
        assert (one == with_them[0]) == (early_bytes == 0)
