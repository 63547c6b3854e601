"""Families made to measure: limits, caps, buffers, unequal stages."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.solver.suites import v_shaped
from synth.costs.costs import Costs, uniform_costs
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import generate
from synth.families._lib.activations import activation_bytes, peak_activation_bytes
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.profiles import find
from synth.schedule.model import Buffering
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import verify

F, B, W = OpKind.F, OpKind.B, OpKind.W


def published(name: str) -> Costs:
    profile = Profile.load(find(name))
    num_ranks = int(name.split("-")[2][1:])
    return partition_costs(profile, [len(profile.layers) // num_ranks] * num_ranks)


@st.composite
def unequal_costs(draw: st.DrawFn, num_stages: int) -> Costs:
    """Stages with times and bytes of their own, B freeing or adding, links with a latency."""
    numbers = st.integers(1, 60)
    stages = []
    for _ in range(num_stages):
        one = uniform_costs(
            1,
            forward_us=draw(numbers),
            backward_input_us=draw(numbers),
            backward_weight_us=draw(numbers),
            saved_bytes=draw(numbers),
            saved_w_bytes=draw(numbers),
        )
        stages.append(one.stages[0])
    latency_us = draw(st.sampled_from([0, 7]))
    return Costs(stages=tuple(stages), links=Links(default=Link(latency_us=latency_us)))


@given(data=st.data(), p=st.integers(1, 6), m=st.integers(1, 14))
@settings(max_examples=60, deadline=None)
def test_the_greedy_keeps_its_limit_on_unequal_stages(data: st.DataObject, p: int, m: int) -> None:
    costs = data.draw(unequal_costs(p))
    for name, times in (("zb-1p", 1), ("zb-2p", 2)):
        schedule = generate(name, p, m, costs=costs)
        # Nothing is sent here that has a size: what is kept is all the memory there is.
        peaks = peak_bytes(verify(schedule, costs)[0])
        for rank, peak in enumerate(peaks):
            assert peak == peak_activation_bytes(costs, schedule.programs[rank])
            assert peak <= times * p * max(activation_bytes(costs, rank).values())


@given(
    data=st.data(),
    name=st.sampled_from(["v-min", "v-half", "zb-v"]),
    d=st.integers(1, 5),
    m=st.integers(1, 12),
)
@settings(max_examples=60, deadline=None)
def test_the_v_schedules_keep_their_share_on_unequal_stages(
    data: st.DataObject, name: str, d: int, m: int
) -> None:
    costs = data.draw(unequal_costs(2 * d))
    micro_batches = {"v-min": (d + 4) // 3, "v-half": (d + 2) // 2, "zb-v": d}[name]
    schedule = generate(name, d, m, costs=costs)
    for rank, peak in enumerate(peak_bytes(verify(schedule, costs)[0])):
        most = [max(activation_bytes(costs, stage).values()) for stage in (rank, 2 * d - 1 - rank)]
        assert peak <= 2 * micro_batches * max(most)


@given(
    data=st.data(),
    name=st.sampled_from(["v-min", "v-half", "zb-v"]),
    d=st.integers(1, 5),
    m=st.integers(1, 12),
    share=st.floats(0.6, 1.1),
)
@settings(max_examples=60, deadline=None)
def test_within_caps_the_v_schedules_fit_or_are_what_they_are_without(
    data: st.DataObject, name: str, d: int, m: int, share: float
) -> None:
    costs = holding_more(data.draw(unequal_costs(2 * d)), data.draw(st.integers(0, 40)))
    alone = generate(name, d, m, costs=costs)
    free_bytes = peak_bytes(verify(alone, costs)[0])
    caps = [int(share * free) for free in free_bytes]
    capped = generate(name, d, m, costs=costs, caps_bytes=caps)
    peaks = peak_bytes(verify(capped, costs)[0])
    does_fit = all(peak <= cap for peak, cap in zip(peaks, caps, strict=True))
    assert capped.programs == alone.programs or (does_fit and share < 1)


def holding_more(costs: Costs, num_bytes: int) -> Costs:
    """Stages with parameters, boundary tensors, and ops that need room while they run."""
    stages = [
        stage.replace(
            static_bytes=7 * num_bytes,
            output_bytes=num_bytes,
            rise_bytes={kind: rise + num_bytes for kind, rise in stage.rise_bytes.items()},
        )
        for stage in costs.stages
    ]
    return costs.replace(stages=tuple(stages))


def v_min_within(cap: int | None, more_bytes: int = 0) -> tuple[int, int]:
    """The highest peak and the period; F:B:W = 3:4:2, 8 ranks."""
    costs = holding_more(v_shaped.stages(16, (90, 120, 60), v_shaped.MEMORIES[0]), more_bytes)
    caps = None if cap is None else [cap] * 8
    lowered, line = verify(generate("v-min", 8, 32, costs=costs, caps_bytes=caps), costs)
    return max(peak_bytes(lowered)), line.period_us


def test_v_min_fits_unequal_times_within_the_memory_that_it_is_drawn_with() -> None:
    assert v_min_within(None) == (16, 25642)
    assert v_min_within(16) == (16, 25642)
    assert v_min_within(14) == (14, 26104)
    for cap in (13, 1):  # less than the drawn order keeps
        assert v_min_within(cap) == (16, 25642)


def test_v_min_fits_where_more_than_what_is_kept_is_held() -> None:
    """With parameters, boundary tensors and workspace of ops besides the saved activations."""
    assert v_min_within(None, 10) == (236, 25642)
    for cap in (235, 226, 216):
        assert v_min_within(cap, 10) == (216, 26044)


def test_zb_limit_takes_off_what_it_kept_and_not_its_limit() -> None:
    """10 bytes a micro-batch and 9 on top: within 98, what is kept goes from 90 to 80."""
    costs = uniform_costs(
        12,
        forward_us=10,
        backward_input_us=10,
        backward_weight_us=10,
        saved_bytes=10,
        saved_w_bytes=10,
    )
    rising = {kind: 19 if kind == F else rise for kind, rise in costs.stages[0].rise_bytes.items()}
    costs = costs.replace(stages=tuple(one.replace(rise_bytes=rising) for one in costs.stages))
    schedule = generate("zb-limit", 12, 24, costs=costs, caps_bytes=[98] * 12)
    assert max(peak_bytes(verify(schedule, costs)[0])) == 89


def test_kept_bytes_are_values_and_the_boundaries_that_layers_hold() -> None:
    costs = uniform_costs(
        3,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        saved_bytes=100,
        saved_w_bytes=60,
        output_bytes=7,
    )
    holding = costs.stages[1].model_copy(
        update={"input_until": W, "output_until": B, "gradient_until": W}
    )
    costs = Costs(stages=(costs.stages[0], holding, costs.stages[2]))
    assert activation_bytes(costs, 0) == {F: 100, B: 60}
    assert activation_bytes(costs, 1) == {F: 100 + 7 + 7, B: 60 + 7 + 7}  # its input stays, and …
    # … its output goes with B, which brings the gradient that W wants.


@pytest.mark.parametrize(
    ("share", "rate"), [(1.0, 0.1397), (1.2, 0.0774), (1.5, 0.0303), (2.0, 0.0)]
)
def test_caps_between_published_ones_are_made_use_of(share: float, rate: float) -> None:
    costs = published("zb-14.6b-p16-m48")
    at_1f1b = max(peak_bytes(verify(generate("1f1b", 16, 48), costs)[0]))
    caps = [int(share * at_1f1b)] * 16
    schedule = generate("zb-limit", 16, 48, costs=costs, caps_bytes=caps)
    _, line = verify(schedule, costs, caps)
    assert round(line.bubble_rate(line.period_us), 4) <= rate


def test_caps_below_one_micro_batch_are_refused() -> None:
    costs = published("zb-1.5b-p8-m24")
    one = costs.stages[0].static_bytes + costs.stages[0].saved_bytes
    with pytest.raises(
        SynthError, match=r"cannot run F of stage 0 within [\d.]+ GB .* room for one micro-"
    ):
        generate("zb-limit", 8, 24, costs=costs, caps_bytes=[one - 1] * 8)


def test_zb_2p_waits_for_room_in_buffers_with_the_default_ones() -> None:
    # 6.2B, published .0029. Neighbours differ in what they run next by more than one op.
    costs = published("zb-6.2b-p8-m24")
    schedule = generate("zb-2p", 8, 24, costs=costs)
    tight = verify(replace(schedule, buffering=Buffering()), costs)[1]
    assert schedule.buffering != Buffering()
    assert round(tight.bubble_rate(tight.period_us), 4) == 0.0335


def test_the_greedy_reads_the_times_of_every_stage() -> None:
    costs = uniform_costs(4, forward_us=30, backward_input_us=40, backward_weight_us=20)
    stages = []
    for stage, tenths in zip(costs.stages, (10, 13, 8, 12), strict=True):
        times = {kind: us * tenths // 10 for kind, us in stage.duration_us.items()}
        stages.append(stage.model_copy(update={"duration_us": times}))
    costs = Costs(stages=tuple(stages))
    measured, equal = (
        verify(schedule, costs)[1].period_us
        for schedule in (generate("zb-1p", 4, 12, costs=costs), generate("zb-1p", 4, 12))
    )
    assert measured < equal
