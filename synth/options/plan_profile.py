"""The profile of a plan: the one that is given, or the shipped one that the plan names."""

from collections.abc import Sequence
from itertools import islice

from synth.errors import Mismatch
from synth.option_names import named
from synth.options.links import read_links
from synth.options.profiles import with_speeds
from synth.profile import Profile
from synth.schedule.files.check_against_profile import differences, larger_rises
from synth.schedule.files.plan_file import Plan
from synth.units import format_bytes, shown

# Recorded by `synth solve` if it used the profile's links.
_OWN_LINKS = "as in the profile"

Facts = dict[str, str]


def costs_of(
    plan: Plan,
    given: Profile | str | None,
    link: Sequence[str] | None,
    verified: Facts,
    on_trust: Facts,
) -> Profile | None:
    """Derive the costs again from the plan's profile, if it is available, and return the profile.

    It is not returned where backwards take more in the plan than by the profile, as plans of an
    earlier synth say: bounds of other partitions would be of other costs.

    Args:
        plan: contains the costs to compare.
        given: a profile, its file or its name; None: the shipped one that the plan names, if there
            is one.
        link: links instead of the profile's; None: those that the plan was solved with.
        verified: gets the fact that the costs are the profile's.
        on_trust: gets the reason if that cannot be verified.

    Raises:
        SynthError: the profile given cannot be read.
        Mismatch: the plan is not of the profile, or was changed.
    """
    from synth.profiles import is_known

    if given is None and not is_known(plan.profile_name):
        on_trust["costs"] = (
            f"that the costs are those of profile {plan.profile_name}: give {named('§profile')} to "
            f"have them derived again"
        )
        return None
    profile = _profile(plan, given or plan.profile_name, link)
    found = list(islice(differences(plan, profile), 2))
    is_it = profile.fingerprint() == plan.profile_fingerprint
    if found and given is None and not is_it:
        on_trust["costs"] = (
            f"that the costs are those of its profile: the shipped one named {plan.profile_name} "
            f"is another; give {named('§profile')}"
        )
        return None
    if found:
        more = "" if len(found) == 1 else "; more differs"
        why = "the plan was changed" if is_it else "the plan is of another profile, or was changed"
        raise Mismatch(f"{found[0]}{more}: {why}; solve again, or give the profile that it is of")
    if not is_it and given is not None:
        raise Mismatch(
            f"profile_fingerprint is {shown(plan.profile_fingerprint)}, and that of profile "
            f"{profile.name} is {profile.fingerprint()}, whose costs are the same: the plan was "
            f"changed, or is of another version of the profile; give the profile that it is of"
        )
    if not is_it:
        on_trust["profile"] = (
            f"that it is of the shipped profile {profile.name}: costs are the same, and its "
            f"profile_fingerprint is another's"
        )
    larger_bytes = larger_rises(plan, profile)
    if larger_bytes > 0:
        on_trust["memory of backwards"] = (
            f"that they take what the plan says, up to {format_bytes(larger_bytes)} more than by "
            f"profile {profile.name}: an earlier synth made the plan, which runs in less memory "
            f"than it claims; solve again to use the rest"
        )
    verified["costs"] = (
        f"layers, workload, links and the costs of every stage are those of profile {profile.name}"
        + " but for the memory of backwards" * (larger_bytes > 0)
    )
    return None if larger_bytes > 0 else profile


def _profile(plan: Plan, given: Profile | str, link: Sequence[str] | None) -> Profile:
    """Return the profile with the given links, or with those that the plan was solved with."""
    from synth.profiles import load

    profile = given if isinstance(given, Profile) else load(given)
    noted = plan.arguments.get("link", _OWN_LINKS)
    if link is None and noted != _OWN_LINKS:
        link = noted.split("; ")
    if (speeds := plan.arguments.get("rank_speed")) is not None:
        profile = with_speeds(profile, [*map(float, speeds.split(","))], plan.num_ranks)
    return profile.replace(links=read_links(link, profile.links)) if link else profile
