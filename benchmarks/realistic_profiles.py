"""Generated profiles of pipelines as they are in practice, one for each seed.

layers      uneven: each kind has its own times, and each layer differs by up to 20 %
ends        an embedding, which is fast and large, and a head as heavy as one to four layers
links       from nothing to 0.7 of a stage's forward
size        4 to 16 ranks, 8 to 64 micro-batches
memory      0.4 to 1.5 of the activations that 1F1B holds on equal numbers of layers
placement   linear, v, looped:2, wave:2, bidirectional in turn
"""

import random
from itertools import pairwise
from typing import NamedTuple

from synth.costs.partition_costs import partition_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.profile import Profile, Provenance
from synth.profile.layer_profile import Layer, LayerProfile, Timing
from synth.profile.links import Link, Links
from synth.profile.workload import Workload
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes

PLACEMENTS = ("linear", "v", "looped:2", "wave:2", "bidirectional")

# Placements with several stages per rank, of `case_of_several_stages` in turn.
_SEVERAL = ("v", "looped:2", "wave:2", "v", "looped:3", "v", "wave:2", "looped:2", "v", "wave:3")

_JITTER = 0.2


class RealisticCase(NamedTuple):
    """A pipeline to be planned: a profile on a placement, under a limit for all ranks alike."""

    seed: int
    profile: Profile
    placement: str
    num_ranks: int
    num_micro_batches: int
    limit_bytes: int

    @property
    def caps_bytes(self) -> tuple[int, ...]:
        """The limit of each rank."""
        return (self.limit_bytes,) * self.num_ranks


def realistic_case(seed: int, name: str | None = None) -> RealisticCase:
    """Generate the case of a seed; on a placement by name, or on the next one in turn."""
    rng = random.Random(seed)
    name = name or PLACEMENTS[seed % len(PLACEMENTS)]
    num_ranks = rng.choice([4, 4, 6, 8, 8, 12, 16])
    num_micro_batches = rng.choice([8, 12, 16, 24, 32, 48, 64])
    if name == "bidirectional":  # both copies have as many
        num_ranks += num_ranks % 2
        num_micro_batches += num_micro_batches % 2
    where = placement(name, num_ranks)
    num_stages = where.num_stages
    num_layers = max(num_stages * rng.randint(1, 3), 2 * num_ranks) + rng.choice([0, 2, 2, 3])
    profile = _profile(rng, seed, num_layers, num_ranks)
    share = rng.uniform(0.4, 1.5)
    limit = _limit_bytes(profile, where, num_micro_batches, share)
    return RealisticCase(seed, profile, name, num_ranks, num_micro_batches, limit)


def case_of_several_stages(number: int) -> RealisticCase:
    """Generate a case of 4 to 8 ranks, 8 to 24 micro-batches and 0.4 to 1.2 of 1F1B's memory."""
    seed, name = 1_000 + number, _SEVERAL[number % len(_SEVERAL)]
    rng = random.Random(seed)
    num_ranks, num_micro_batches = rng.choice([4, 4, 6, 8]), rng.choice([8, 12, 16, 24])
    where = placement(name, num_ranks)
    num_layers = max(where.num_stages * rng.randint(1, 3), 2 * num_ranks) + rng.choice([0, 2, 2, 3])
    profile = _profile(rng, seed, num_layers, num_ranks)
    limit = _limit_bytes(profile, where, num_micro_batches, rng.uniform(0.4, 1.2))
    return RealisticCase(seed, profile, name, num_ranks, num_micro_batches, limit)


def _profile(rng: random.Random, seed: int, num_layers: int, num_ranks: int) -> Profile:
    kinds = [_layer(rng, rng.uniform(0.8, 1.25)) for _ in range(rng.randint(1, 2))]
    ends = [_layer(rng, 0.1, statics=2.0), _layer(rng, rng.uniform(1, 4), statics=2.0)]
    inner = [_jittered(rng, rng.choice(kinds)) for _ in range(num_layers - 2)]
    layers = [ends[0], *inner, ends[1]]
    forward_us = sum(layer.time_us[OpKind.F].median_us for layer in layers) / num_ranks
    link_us = round(rng.choice([0, 0.02, 0.1, 0.3, 0.7]) * forward_us)
    return Profile(
        name=f"realistic {seed}",
        provenance=Provenance(source="generated", device="none", date="2024-01-01"),
        workload=Workload(model="none", micro_batch_size=1, sequence_length=1, runnable=False),
        links=Links(default=Link(latency_us=link_us)),
        layer_profiles={f"p{i}": layer for i, layer in enumerate(layers)},
        layers=tuple(Layer(name=f"l{i}", profile=f"p{i}") for i in range(num_layers)),
    )


def _layer(rng: random.Random, factor: float, statics: float = 1.0) -> LayerProfile:
    forward = round(factor * rng.randint(4000, 8000))
    backward, weight = round(forward * rng.uniform(0.9, 1.3)), round(forward * rng.uniform(0.5, 1))
    saved = round(factor * rng.randint(200, 400)) * 1_000_000
    return LayerProfile(
        time_us={kind: Timing.exactly(us) for kind, us in _times(forward, backward, weight)},
        parameter_bytes=(static := round(statics * 100_000_000)),
        gradient_bytes=static,
        optimizer_bytes=2 * static,
        output_bytes=16_000_000,
        saved_bytes=saved,
        saved_w_bytes=round(saved * rng.uniform(0.3, 0.9)),
        rise_bytes={k: (saved + 16_000_000) * (k == OpKind.F) for k, _ in _times(1, 1, 1)},
    )


def _times(forward: int, backward: int, weight: int) -> list[tuple[OpKind, int]]:
    us = (forward, backward, weight, backward + weight, 0)
    return list(zip((OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP), us, strict=True))


def _jittered(rng: random.Random, layer: LayerProfile) -> LayerProfile:
    """The layer with each of its times changed by up to 20 %."""
    us = [
        round(layer.time_us[kind].median_us * rng.uniform(1 - _JITTER, 1 + _JITTER))
        for kind in (OpKind.F, OpKind.B, OpKind.W)
    ]
    times = {kind: Timing.exactly(time) for kind, time in _times(*us)}
    return layer.model_copy(update={"time_us": times})


def _limit_bytes(profile: Profile, where: Placement, num_micro_batches: int, share: float) -> int:
    """The peak of 1F1B on nearly equal numbers of layers, with a share of its activations.

    Each further copy of the stages adds its static memory.
    """
    num_layers, num_ranks = len(profile.layers), where.num_ranks
    edges = [num_layers * rank // num_ranks for rank in range(num_ranks + 1)]
    costs = partition_costs(profile, [end - first for first, end in pairwise(edges)])
    peaks = peak_bytes(lower(generate("1f1b", num_ranks, num_micro_batches), costs))
    statics = [stage.static_bytes for stage in costs.stages]
    return max(
        len(where.ranks) * static + round(share * (peak - static))
        for static, peak in zip(statics, peaks, strict=True)
    )
