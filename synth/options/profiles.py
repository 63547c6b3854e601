"""Finding a profile, and replacing its links."""

from collections.abc import Sequence

from synth.messages import talk, warn_of
from synth.options.links import read_links
from synth.profile import Profile


def load_profile(given: Profile | str, links: Sequence[str] | None = None) -> Profile:
    """Read a profile file or a shipped profile, with other links between ranks if given.

    A profile that is there already only gets the other links.

    Raises:
        SynthError: no profile, or links that are not understood.
    """
    from synth.profiles import find

    profile = given if isinstance(given, Profile) else Profile.load(find(given))
    warn_of(profile.provenance.conditions, f"profile {profile.name}")
    if links:
        return profile.replace(links=read_links(links, profile.links))
    if profile.links.are_free:
        talk(
            "transfers take no time in this profile; --link 10us,25GB/s sets latency and bandwidth"
        )
    return profile
