"""Profiles of invented layers, for tests of recomputation."""

import random
from collections.abc import Sequence

from synth.costs.partition_costs import partition_costs
from synth.op_kinds import OpKind
from synth.profile import Profile, Provenance
from synth.profile.layer_profile import VARIED, Layer, LayerProfile, LayerVariant, Timing
from synth.profile.workload import Workload
from synth.schedule.placements import placement
from synth.solver.problem import Problem

UNTIL = (OpKind.F, OpKind.B, OpKind.W)


def invented(profiles: Sequence[LayerProfile]) -> Profile:
    """A profile with these layers, equal ones sharing a name."""
    names = {id(profile): f"p{i}" for i, profile in enumerate(profiles)}
    return Profile(
        name="invented",
        provenance=Provenance(source="invented", device="none", date="2024-01-01"),
        workload=Workload(model="none", micro_batch_size=1, sequence_length=1, runnable=False),
        layer_profiles={names[id(profile)]: profile for profile in profiles},
        layers=tuple(
            Layer(name=f"l{i}", profile=names[id(profile)]) for i, profile in enumerate(profiles)
        ),
    )


def random_layer(draw: random.Random) -> LayerProfile:
    """Any figures at all."""
    times = (OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP)
    layer = LayerProfile(
        time_us={kind: Timing.exactly(draw.randint(1, 20)) for kind in times},
        parameter_bytes=draw.randint(0, 5),
        gradient_bytes=draw.randint(0, 5),
        optimizer_bytes=0,
        output_bytes=draw.randint(0, 9),
        output_gradient_bytes=draw.choice((None, 0, draw.randint(0, 9))),
        saved_bytes=draw.randint(0, 40),
        saved_w_bytes=draw.randint(0, 40),
        rise_bytes={kind: draw.randint(0, 60) for kind in times},
        input_until=draw.choice(UNTIL),
        output_until=draw.choice(UNTIL),
        gradient_until=draw.choice(UNTIL[1:]),
    )
    inner = {kind: layer.rise_bytes[kind] // 2 for kind in (OpKind.B, OpKind.W, OpKind.BW)}
    return layer.replace(inner_rise_bytes=inner)


def block(draw: random.Random) -> LayerProfile:
    """A layer as models have them: it keeps much more than it hands on."""
    forward_us, saved = draw.randint(4, 8), draw.randint(20, 40)
    times = {
        OpKind.F: forward_us,
        OpKind.B: forward_us + draw.randint(0, 2),
        OpKind.W: forward_us - 1,
        OpKind.BW: 2 * forward_us + 1,
        OpKind.STEP: 0,
    }
    output = draw.randint(1, 4)
    rises = {OpKind.F: saved + output, OpKind.B: output, OpKind.W: 0, OpKind.BW: output}
    return LayerProfile(
        time_us={kind: Timing.exactly(us) for kind, us in times.items()},
        parameter_bytes=0,
        gradient_bytes=0,
        optimizer_bytes=0,
        output_bytes=output,
        saved_bytes=saved,
        saved_w_bytes=saved // 2,
        rise_bytes={**rises, OpKind.STEP: 0},
    )


def with_variant(draw: random.Random, layer: LayerProfile, *policies: str) -> LayerProfile:
    """The layer with policies of recomputation, which cost and free anything at all."""
    variants = {
        policy: LayerVariant(
            time_us={
                kind: Timing.exactly(max(0, layer.time_us[kind].median_us + draw.randint(-2, 6)))
                for kind in VARIED
            },
            saved_bytes=draw.randint(0, layer.saved_bytes),
            saved_w_bytes=draw.randint(0, 40),
            rise_bytes={kind: draw.randint(0, 60) for kind in VARIED},
            input_until=draw.choice(UNTIL),
            output_until=draw.choice(UNTIL),
        )
        for policy in policies
    }
    return layer.replace(variants=variants)


def problem_of(
    profile: Profile, sizes: tuple[int, ...], count: int, cap_bytes: int, name: str = "linear"
) -> Problem:
    """The search of an order, and of the layers to recompute, under a cap for all ranks."""
    stages_per_rank = placement(name, 2).num_stages // 2
    ranks = len(sizes) // stages_per_rank
    where = placement(name, ranks)
    caps = (cap_bytes,) * ranks
    costs = partition_costs(profile, sizes)
    return Problem(costs, where, count, caps, partition=sizes, profile=profile)
