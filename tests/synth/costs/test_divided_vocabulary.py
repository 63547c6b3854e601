"""Embedding and head of a profile as parts, one for each rank."""

import pytest

from synth.costs.divided_vocabulary import divided_vocabulary
from synth.errors import SynthError
from synth.estimates.named import estimated
from synth.layer_times import LayerTimes
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.layer_profile import LayerProfile

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW
PROFILE = estimated("llama3-8b-h100-tp1")


def kind_of(profile: Profile, place: int) -> LayerProfile:
    return profile.layer_profiles[profile.layers[place].profile]


def us(layer: LayerProfile, *kinds: OpKind) -> float:
    return sum(layer.time_us[kind].median_us for kind in kinds)


@pytest.mark.parametrize("barriers", [1, 2])
@pytest.mark.parametrize("p", [2, 3, 8])
def test_each_rank_has_its_share_of_embedding_and_head(p: int, barriers: int) -> None:
    parts = divided_vocabulary(PROFILE, p, barriers)
    assert len(parts.layers) == len(PROFILE.layers) + 2 * (p - 1)
    embedding, head = kind_of(PROFILE, 0), kind_of(PROFILE, -1)
    for place in range(p):
        assert us(kind_of(parts, place), F) == pytest.approx(us(embedding, F) / p)
        for whole, part in ((embedding, kind_of(parts, place)), (head, kind_of(parts, -1 - place))):
            assert whole.static_bytes <= p * part.static_bytes < whole.static_bytes + 3 * p
    part = kind_of(parts, -1)
    if barriers == 2:
        assert us(part, F, BW) == pytest.approx(us(head, F, BW) / p)
    else:
        # S also multiplies by the weights, so that T is the gradient of the weights alone.
        assert us(part, F) == pytest.approx(us(head, F, B) / p)
        assert us(part, BW) == pytest.approx(us(head, W) / p)


@pytest.mark.parametrize(("barriers", "is_first"), [(1, True), (2, False)])
def test_a_part_hands_on_a_gradient_and_what_is_of_the_softmax(
    barriers: int, *, is_first: bool
) -> None:
    part = kind_of(divided_vocabulary(PROFILE, 4, barriers), -1)
    gradient = kind_of(PROFILE, -2).output_bytes
    softmax = 8 * PROFILE.workload.tokens
    found = (part.output_bytes, part.output_gradient_bytes)
    assert found == ((gradient, softmax) if is_first else (softmax, gradient))


def test_the_layer_behind_the_embedding_keeps_the_sum_of_its_parts() -> None:
    parts = divided_vocabulary(PROFILE, 4, 2)
    first, second = kind_of(parts, 4), kind_of(parts, 5)
    assert second == kind_of(PROFILE, 2) and second.input_until != F
    assert first.input_until == F
    assert first.saved_bytes - second.saved_bytes == kind_of(PROFILE, 0).output_bytes
    assert first.time_us == second.time_us


def test_a_model_without_an_embedding_and_a_head_cannot_be_divided() -> None:
    times = LayerTimes(
        name="block",
        count=8,
        forward_us=1,
        backward_us=2,
        parameter_bytes=1,
        saved_bytes=1,
        output_bytes=1,
    )
    with pytest.raises(SynthError, match=r"begins with an embedding .* has layers block"):
        divided_vocabulary(Profile.from_times("blocks", [times]), 2, 1)
    with pytest.raises(SynthError, match="32 layers between embedding and head, fewer than 33"):
        divided_vocabulary(PROFILE, 33, 1)


def test_tied_matrices_are_not_divided() -> None:
    tied = estimated("gemma3-27b-h100-tp2")
    assert tied.tied_parameters
    with pytest.raises(SynthError, match="share parameters"):
        divided_vocabulary(tied, 4, 1)
