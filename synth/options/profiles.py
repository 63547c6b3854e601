"""Finding a profile, and replacing its links."""

from collections.abc import Sequence

from synth.errors import SynthError
from synth.options.links import read_links
from synth.profile import Profile
from synth.profile.measurement_conditions import warn_of
from synth.system.messages import talk
from synth.units import counted


def with_speeds(profile: Profile, speeds: Sequence[float], num_ranks: int) -> Profile:
    """Return a profile whose ranks have these speeds; all 1 are as if none were known.

    Raises:
        SynthError: they are for another number of ranks.
    """
    if len(speeds) != num_ranks:
        raise SynthError(
            f"§rank_speed gives {counted(len(speeds), 'speed')} for "
            f"{counted(num_ranks, 'rank')}; give one per rank"
        )
    return profile.replace(rank_speeds=None if set(speeds) == {1} else tuple(speeds))


def load_profile(
    given: Profile | str, links: Sequence[str] | None = None, peak_flops: float | None = None
) -> Profile:
    """Read a profile file or a shipped profile, with other links or another peak if given.

    A profile that is there already only gets the other links and the other peak.

    Raises:
        SynthError: no profile, or links that are not understood.
    """
    from synth.profiles import load

    profile = given if isinstance(given, Profile) else load(given)
    warn_of(profile.provenance.conditions, f"profile {profile.name}")
    if profile.provenance.estimate is not None:
        talk(f"profile {profile.name}: {profile.provenance.estimate.words}")
    if peak_flops is not None:
        profile = profile.replace(peak_flops_per_s=peak_flops)
        unknown = next(
            (name for name, one in profile.layer_profiles.items() if one.forward_flops is None),
            None,
        )
        if unknown is not None:
            talk(
                f"profile {profile.name} lacks the FLOPs of layer {unknown}, so there is no MFU; "
                f"`synth profile MODEL` counts them, and a CSV has them in a column forward_GFLOP"
            )
    if links:
        return profile.replace(links=read_links(links, profile.links))
    if profile.links.are_free:
        talk("transfers take no time in this profile; §link 10us,25GB/s sets latency and bandwidth")
    return profile
