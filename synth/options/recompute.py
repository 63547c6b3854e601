"""Reading `--recompute`: stages, layers with their policies, or a keyword."""

from collections.abc import Collection

from synth.costs.recomputation import FULL, Recomputation
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.options.ranges import MOST_DIGITS, read_ranges
from synth.options.values import word
from synth.plan.recompute.layers_in_place import (
    IN_PLACE,
    TARGETS_IN_PLACE,
    layers_in_place,
    ops_allowed_by,
)
from synth.profile import Profile
from synth.system.messages import talk
from synth.units import shown

# Prefix of the layers that `--recompute` lists.
LAYERS = "layers:"


def lists_layers(text: str) -> bool:
    """Return True if layers are listed, not stages."""
    return ":" in text


def read_layers(text: str, profile: Profile) -> Recomputation:
    """Read the layers that `--recompute` lists; empty if it lists none.

    `layers:3-8,10` or `layers:all` are recomputed whole, and `ops:3-8` under the policy `ops`, if
    the profile has measured it; semicolons separate several.

    Raises:
        SynthError: something is no layer, a policy is not measured, or a layer is listed twice, or
            changes its input in place.
    """
    found: dict[int, str] = {}
    for part in text.split(";") if lists_layers(text) else ():
        policy, _, listed = part.strip().rpartition(":")
        layers = _read_listed(text, listed, len(profile.layers))
        twice = sorted(found.keys() & set(layers))
        if twice:
            raise SynthError(f"§recompute {shown(text)} lists layer {twice[0]} twice; list it once")
        name = _read_policy(text, policy, profile)
        _check_layers(text, layers if name == FULL else (), profile)
        found |= dict.fromkeys(layers, name)
    return Recomputation(found)


def _read_policy(text: str, policy: str, profile: Profile) -> str:
    measured = dict.fromkeys(
        name for layer in profile.layer_profiles.values() for name in layer.variants
    )
    if f"{word(policy)}:" == LAYERS:
        return FULL
    if policy in measured:
        return policy
    raise SynthError(
        f"§recompute {shown(text)} is not understood; write layers such as {LAYERS}3-8, or ops:3-8 "
        f"with a policy that the profile has measured ({', '.join(measured) or 'it has none'})"
    )


def _read_listed(text: str, listed: str, num_layers: int) -> tuple[int, ...]:
    if word(listed) == "all":
        return tuple(range(num_layers))
    layers = read_ranges(listed, num_layers)
    if layers is None:
        raise SynthError(
            f"§recompute {shown(text)} is not understood; write layers from 0 to "
            f"{num_layers - 1}, such as {LAYERS}3-8 or {LAYERS}0,2,4, or {LAYERS}all"
        )
    return layers


def read_recompute(text: str, num_stages: int) -> tuple[int, ...] | None:
    """Read the stages that recompute: `none`, `all`, `0,1,2`; None for `auto`.

    Raises:
        SynthError: something is no stage, or layers are listed (`read_layers` reads these).
    """
    name = word(text)
    if lists_layers(name):
        raise SynthError(
            f"§recompute {shown(text)} lists layers, which `synth solve` takes; give none, all, "
            f"auto, or stages such as 0,1"
        )
    if name in ("auto", "none", "all"):
        return {"auto": None, "none": (), "all": tuple(range(num_stages))}[name]
    parts = [part.strip() for part in text.split(",")]
    short = all(part.isdecimal() and len(part) <= MOST_DIGITS for part in parts)
    if not short or max(map(int, parts)) >= num_stages:
        raise SynthError(
            f"§recompute {shown(text)} is not understood; write none, all, auto, or stages from 0 "
            f"to {num_stages - 1}, such as 0,1; or, with `synth solve`, layers such as {LAYERS}3-8"
        )
    return tuple(sorted({int(part) for part in parts}))


def _check_layers(text: str, layers: Collection[int], profile: Profile) -> None:
    """Refuse layers to be recomputed whole that change their input, or the targets, in place."""
    names = layers_in_place(profile)
    others = Recomputation([place for place in layers if place not in names])
    refused = [place for place in layers if place in names]
    if refused:
        first = refused[0]
        why = TARGETS_IN_PLACE if first + 1 == len(profile.layers) in names else IN_PLACE
        way_out = f", or list {others.written} alone" if others else ""
        raise SynthError(
            f"§recompute {shown(text)} lists layer {first}, {names[first]}, which {why}{way_out}"
        )


def tell_of_layers_in_place(choice: str, profile: Profile) -> None:
    """Say which stages the search does not recompute, if the profile has layers that work in place.

    Args:
        choice: what `--recompute` says.
    """
    places, count = layers_in_place(profile), len(profile.layers)
    if not places or word(choice) != "auto":
        return
    if count in places:
        talk(f"the last stage is not recomputed, as {places[count]} changes the targets in place")
    names = [name for at, name in places.items() if count not in places or at < count - 1]
    if not names:
        return
    more = f" and {len(names) - 1} more" * (len(names) > 1)
    if ops_allowed_by(profile, frozenset([OpKind.R])):
        talk(
            f"stages that begin with {names[0]}{more} are not recomputed, as the input is changed "
            f"in place"
        )
        return
    talk(
        f"stages are not recomputed, as {names[0]}{more} may come first in one and change"
        f"{'s' * (len(names) == 1)} the input in place; other layers are, within B"
    )
