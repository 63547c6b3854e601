"""The partition: exact, even where ties allow, mindful of memory."""

import random
from itertools import combinations, pairwise

import pytest

from synth.costs import cut
from synth.errors import SynthError
from synth.kinds import OpKind
from synth.plan.partition import balance
from synth.profile import Layer, LayerProfile, Profile, Provenance, Timing, Workload


def profile_of(work_us: list[int], parameter_bytes: list[int] | None = None) -> Profile:
    """A chain of layers with so much work each, all of it in F."""
    zero = Timing.exactly(0)
    profiles = {}
    for i, work in enumerate(work_us):
        profiles[f"p{i}"] = LayerProfile(
            time_us={**dict.fromkeys(OpKind, zero), OpKind.F: Timing.exactly(work)},
            parameter_bytes=parameter_bytes[i] if parameter_bytes else 0,
            gradient_bytes=0,
            optimizer_bytes=0,
            output_bytes=0,
            saved_bytes=1,
            saved_w_bytes=0,
            rise_bytes={**dict.fromkeys(OpKind, 0), OpKind.F: 1},
        )
    return Profile(
        name="test",
        provenance=Provenance(source="invented", device="none", date="2024-01-01"),
        workload=Workload(model="none", micro_batch_size=1, sequence_length=1),
        layer_profiles=profiles,
        layers=tuple(Layer(name=f"l{i}", profile=f"p{i}") for i in range(len(work_us))),
    )


def all_partitions(num_layers: int, num_stages: int) -> list[tuple[int, ...]]:
    """Every way to cut."""
    found = []
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        edges = (0, *cuts, num_layers)
        found.append(tuple(b - a for a, b in pairwise(edges)))
    return found


def score(profile: Profile, sizes: tuple[int, ...]) -> tuple[int, int]:
    """Largest work, then the sum of squares."""
    works = [stage.work_us for stage in cut(profile, sizes).stages]
    return max(works), sum(work**2 for work in works)


def test_a_heavy_last_layer_gets_fewer_neighbours() -> None:
    assert balance(profile_of([1, 1, 1, 1, 1, 1, 3]), 3) == (3, 3, 1)


def test_ties_are_broken_towards_even_stages() -> None:
    # The layer of 9 sets the maximum; the four others could lie 1 + 3, 2 + 2 or 3 + 1.
    assert balance(profile_of([9, 1, 1, 1, 1]), 3) == (1, 2, 2)


@pytest.mark.parametrize("seed", range(5))
def test_balance_is_as_good_as_trying_every_cut(seed: int) -> None:
    rng = random.Random(seed)
    profile = profile_of([rng.randint(1, 9) for _ in range(9)])
    sizes = balance(profile, 4)
    assert score(profile, sizes) == min(score(profile, s) for s in all_partitions(9, 4))


def test_stages_that_exceed_the_cap_are_avoided() -> None:
    # By work alone (2, 2); but the first two layers weigh 20 together.
    profile = profile_of([1, 1, 1, 1], [10, 10, 1, 1])
    assert balance(profile, 2) == (2, 2)
    assert balance(profile, 2, caps_bytes=(17, 17)) == (1, 3)


def test_fewer_layers_than_stages_is_an_error_with_the_way_out() -> None:
    with pytest.raises(SynthError, match="1 to 2 ranks"):
        balance(profile_of([1, 1]), 3)
