"""What `synth profile` prints of the layers that it measured."""

from synth.cli.answer.profile import profile_summary, whole_step_lines
from synth.profile import Profile
from synth.profile.tied_parameters import TiedParameters
from synth.profile.whole_step import HeldPeak, Turns, WholeStep
from synth.profiles import find
from tests.cli.conftest import NAME

BEGINNING = "share of the weight gradients that waits for W: "


def deferring(shares: dict[str, float], gradient_bytes: int) -> Profile:
    """A profile in which W computes these shares of the weight gradients of some layers."""
    profile = Profile.load(find(NAME))
    layers = {
        name: layer.replace(deferred_share=shares.get(name, 1.0), gradient_bytes=gradient_bytes)
        for name, layer in profile.layer_profiles.items()
    }
    return profile.replace(layer_profiles=layers)


def shares_said(profile: Profile) -> list[str]:
    lines = profile_summary(profile).splitlines()
    return [line.removeprefix(BEGINNING) for line in lines if line.startswith(BEGINNING)]


def test_layers_whose_weight_gradients_b_computes_are_named_with_the_share_left_for_w() -> None:
    first, second, *_ = Profile.load(find(NAME)).layer_profiles
    shares = {first: 0.123, second: 0.949}
    assert shares_said(deferring(shares, 8)) == [f"{first} 12.3%, {second} 94.9%"]


def test_norms_and_biases_alone_and_layers_without_gradients_are_not_worth_a_line() -> None:
    name = next(iter(Profile.load(find(NAME)).layer_profiles))
    assert shares_said(deferring({name: 0.95}, 8)) == []
    assert shares_said(deferring({name: 0.0}, 0)) == []


def test_layers_that_share_parameters_are_named() -> None:
    profile = Profile.load(find(NAME))
    names = tuple(layer.name for layer in profile.layers[1:4])
    tied = TiedParameters(layers=names, parameter_bytes=0, gradient_bytes=0, optimizer_bytes=0)
    two = tied.replace(layers=names[:2])
    lines = profile_summary(profile.replace(tied_parameters=(tied, two))).splitlines()
    assert f"{names[0]} shares 0 B of parameters with 2 other layers" in lines
    assert f"{names[0]} shares 0 B of parameters with {names[1]}" in lines


def test_a_whole_step_is_compared_with_its_parts() -> None:
    peaks = [
        HeldPeak(micro_batches=1, planned_bytes=1000, measured_bytes=990),
        HeldPeak(micro_batches=2, planned_bytes=2000, measured_bytes=2004),
    ]
    step = WholeStep(layers=("a", "b"), parts_us=2000, whole_us=2050, peaks=tuple(peaks))
    assert whole_step_lines(step) == [
        "whole step of 2 layers: F + B + W take 2.050 ms, the sum of its parts is 2.000 ms (+2.5%)",
        "peak of its memory: 1 held 990 B, planned 1 kB (-1.0%); "
        "2 held 2.004 kB, planned 2 kB (+0.2%)",
    ]
    assert whole_step_lines(step.replace(layers=("a",), peaks=()))[0].startswith(
        "whole step of 1 layer: "
    )
    in_turns = whole_step_lines(step.replace(turns=Turns(parts_us=1000, whole_us=1010)))[0]
    assert in_turns.endswith("is 2.000 ms (+2.5%; +1.0% in turns)")
