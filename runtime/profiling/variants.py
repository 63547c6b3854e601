"""Measuring a layer under policies of recomputation, as variants of its profile."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from synth.errors import SynthError
from synth.profile.layer_profile import LayerProfile, LayerVariant

from ..models.recompute_policies import PolicyFailed
from .layer_gradients import Gradients, are_alike, layer_gradients
from .sample import Sample


def measured_variants(
    name: str,
    sample: Sample,
    kept: LayerProfile,
    policies: Sequence[str],
    measure: Callable[[Sample], LayerProfile],
    tell: Callable[[str], None],
) -> dict[str, LayerVariant]:
    """Measure a layer under each policy that frees memory; those that do not are told.

    Args:
        kept: its profile where everything is kept.
        policies: by their names, or addresses of a user's functions.
        tell: called with a line per policy that is left out.

    Raises:
        PolicyFailed: the layer cannot be recomputed under a policy.
        SynthError: it has other gradients then.
    """
    call = sample.call
    if call is None or call.policy is not None or not policies:
        return {}
    found = {}
    for policy in policies:
        own = replace(call, policy=policy)
        try:
            # Both begin from the same state, which measuring changes.
            _check_alike(name, policy, layer_gradients(sample, call), layer_gradients(sample, own))
            profile = measure(sample.of(own))
        except (PolicyFailed, RuntimeError) as error:
            cause = error.cause if isinstance(error, PolicyFailed) else error
            raise PolicyFailed(policy, cause, f"layer {name!r}") from error
        if why := _why_not(profile, kept):
            tell(f"{name} under the policy {policy} is left out: {why}")
        else:
            found[policy] = profile.as_variant
    return found


def _why_not(profile: LayerProfile, kept: LayerProfile) -> str | None:
    """Say why a variant is of no use to a plan; None: it may be."""
    if profile.saved_bytes >= kept.saved_bytes:
        return "F keeps as much as without it"
    own = profile.deferred_share, profile.gradient_until
    if own != (kept.deferred_share, kept.gradient_until):
        return "B and W divide the weight gradients otherwise"
    return None


def _check_alike(name: str, policy: str, kept: Gradients, found: Gradients) -> None:
    """Compare gradients with and without a policy.

    PyTorch notices most changes in place of what a policy keeps, but not those of a view that has a
    version of its own, such as the output of a linear layer without bias.

    Raises:
        SynthError: they differ by more than rounding.
    """
    if not all(are_alike(kept[of], found[of]) for of in kept):
        raise SynthError(
            f"layer {name!r} has other gradients under the policy {policy} than without: it "
            f"changes a kept result in place (write `y = y + x` for `y += x`), or the policy "
            f"answers differently when F is repeated; change the layer, or leave the policy out"
        )
