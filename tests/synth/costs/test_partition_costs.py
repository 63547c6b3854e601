"""The sum of layers to stages, against a simulation of single values."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.op_kinds import MEASURED, TIMELESS, OpKind
from synth.profile import Profile, Provenance
from synth.profile.layer_profile import Layer, LayerProfile, Timing
from synth.profile.workload import Workload

F, B, W, BW, STEP, R, *_ = OpKind


def random_layer(rng: random.Random) -> LayerProfile:
    kinds = MEASURED if rng.random() < 0.5 else (*MEASURED, R)
    rises = {kind: rng.randint(0, 40) for kind in kinds}
    return LayerProfile(
        time_us={kind: Timing.exactly(rng.randint(0, 500) / 10) for kind in kinds},
        parameter_bytes=rng.randint(0, 9),
        gradient_bytes=rng.randint(0, 9),
        optimizer_bytes=rng.randint(0, 9),
        output_bytes=rng.randint(0, 20),
        output_gradient_bytes=rng.choice((None, 0, rng.randint(0, 9))),
        saved_bytes=rng.randint(0, 30),
        saved_w_bytes=rng.randint(0, 30),
        rise_bytes=rises,
        inner_rise_bytes={
            kind: rng.randint(0, rises[kind]) for kind in rng.choice(([], [B, W, BW]))
        },
        input_until=rng.choice((F, B, W)),
        output_until=rng.choice((F, B, W)),
        gradient_until=rng.choice((B, W)),
    )


def profile_of(layers: list[LayerProfile]) -> Profile:
    return Profile(
        name="random",
        provenance=Provenance(source="made up", device="none", date="2024-01-01"),
        workload=Workload(model="none", micro_batch_size=1, sequence_length=1),
        layer_profiles={f"p{i}": layer for i, layer in enumerate(layers)},
        layers=tuple(Layer(name=f"l{i}", profile=f"p{i}") for i in range(len(layers))),
    )


class Walk:
    """Runs one stage's layers one by one, with the values that are alive and who holds each.

    The stage's own input, its output's gradient and, in the backward, its output belong to its
    neighbours' accounts and are left out.
    """

    def __init__(self, layers: list[LayerProfile]) -> None:
        self.layers = layers
        self.alive: dict[tuple[str, int], int] = {}
        self.holders: dict[tuple[str, int], set[int]] = {}
        self.after_f = self.after_b = 0

    def level(self) -> int:
        return sum(self.alive.values())

    def make(self, value: tuple[str, int], num_bytes: int, holders: set[int]) -> None:
        self.alive[value], self.holders[value] = num_bytes, holders

    def leave(self, value: tuple[str, int], layer: int) -> None:
        """A layer lets a value go; the last one that does frees it."""
        self.holders.get(value, set()).discard(layer)
        if value in self.alive and not self.holders[value]:
            del self.alive[value]

    def forward(self, kind: OpKind = F) -> int:
        peak = 0
        for i, layer in enumerate(self.layers):
            peak = max(peak, self.level() + layer.rise_bytes.get(kind, layer.rise_bytes[F]))
            self.make(("saved", i), layer.saved_bytes, {i})
            self.make(("act", i), layer.output_bytes, {i, i + 1})
            if layer.input_until == F:
                self.leave(("act", i - 1), i)
            if layer.output_until == F:
                self.leave(("act", i), i)
        self.alive.pop(("act", len(self.layers) - 1), None)
        self.after_f = self.level()
        return peak

    def light_forward(self) -> int:
        """F that keeps nothing: of each layer its input, which is the output of the one before."""
        outputs = [0, *(layer.output_bytes for layer in self.layers)]
        return max(outputs[i] + layer.rise_bytes[F] for i, layer in enumerate(self.layers))

    def backward(self, kind: OpKind) -> int:
        """B, W or BW: W follows B, and BW is both."""
        start, peak = self.level(), 0
        over = {B: (B,), W: (W,), BW: (B, W)}[kind]
        for i in reversed(range(len(self.layers))):
            layer = self.layers[i]
            is_inner = i < len(self.layers) - 1 and kind in layer.inner_rise_bytes
            rises = layer.inner_rise_bytes if is_inner else layer.rise_bytes
            peak = max(peak, self.level() - start + rises[kind])
            self.leave(("saved_w" if kind == W else "saved", i), i)
            if kind == B:
                self.make(("saved_w", i), layer.saved_w_bytes, {i})
            if i and kind != W:
                self.make(("grad", i - 1), self.layers[i - 1].returned_bytes, {i - 1})
            if layer.gradient_until in over:
                self.leave(("grad", i), i)
            if layer.output_until in over:
                self.leave(("act", i), i)
            if layer.input_until in over:
                self.leave(("act", i - 1), i)
        self.after_b = self.level()
        return peak


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 6))
def test_a_stage_s_bytes_are_those_of_a_walk_over_its_layers(seed: int, num_layers: int) -> None:
    rng = random.Random(seed)
    layers = [random_layer(rng) for _ in range(num_layers)]
    stage = partition_costs(profile_of(layers), [num_layers]).stages[0]
    walk, fused = Walk(layers), Walk(layers)
    assert stage.rise_bytes[F] == walk.forward()
    assert stage.saved_bytes == walk.after_f
    assert stage.rise_bytes[B] == walk.backward(B)
    assert stage.saved_w_bytes == walk.after_b
    assert stage.rise_bytes[W] == walk.backward(W)
    assert walk.after_b == 0
    assert stage.rise_bytes[R] == fused.forward(R)
    assert stage.light_rise_bytes == fused.light_forward() <= stage.rise_bytes[F]
    assert stage.rise_bytes[BW] == fused.backward(BW)
    assert fused.after_b == 0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9))
def test_a_cut_loses_no_time_but_rounding_and_no_static_byte(seed: int) -> None:
    rng = random.Random(seed)
    layers = [random_layer(rng) for _ in range(6)]
    costs = partition_costs(profile_of(layers), [1, 2, 3])
    for kind in (*MEASURED, R):
        total_us = sum(layer.time_us.get(kind, layer.time_us[F]).median_us for layer in layers)
        assert abs(sum(s.duration_us[kind] for s in costs.stages) - total_us) <= 1.5
    assert sum(s.static_bytes for s in costs.stages) == sum(x.static_bytes for x in layers)


def test_a_stage_of_one_layer_is_that_layer() -> None:
    layer = random_layer(random.Random(1))
    stage = partition_costs(profile_of([layer, layer]), [1, 1]).stages[1]
    as_f = {R: layer.rise_bytes[F], **dict.fromkeys(TIMELESS, 0)}
    assert stage.rise_bytes == as_f | layer.rise_bytes
    assert (stage.saved_bytes, stage.saved_w_bytes) == (layer.saved_bytes, layer.saved_w_bytes)
    assert stage.input_until == layer.input_until
    assert stage.output_until == layer.output_until
    assert stage.gradient_until == layer.gradient_until


@pytest.mark.parametrize("sizes", [[1, 1], [4], [3, 0], [2, 2], [-1, 4]])
def test_a_partition_that_does_not_cover_the_layers_is_refused(sizes: list[int]) -> None:
    layers = [random_layer(random.Random(i)) for i in range(3)]
    with pytest.raises(SynthError, match="the profile has 3; every stage needs at least one layer"):
        partition_costs(profile_of(layers), sizes)


def test_a_stage_s_gradient_is_that_of_its_layers() -> None:
    layers = [random_layer(random.Random(i)) for i in range(3)]
    costs = partition_costs(profile_of(layers), [1, 2])
    expected = [layers[0].gradient_bytes, layers[1].gradient_bytes + layers[2].gradient_bytes]
    assert [stage.gradient_bytes for stage in costs.stages] == expected
