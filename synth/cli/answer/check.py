"""The answer of `synth check`: facts that it has verified of a plan, and claims taken on trust."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from synth.errors import Mismatch
from synth.options.links import read_links
from synth.plan.reprove.reproof import Reproof
from synth.profile import Profile
from synth.schedule.files.check_against_profile import differences
from synth.schedule.files.fingerprint import misfit, stored_fingerprint
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.schedule.simulate import Timeline
from synth.units import format_bytes_both, shown

# Recorded by `synth solve` if it used the profile's links.
_OWN_LINKS = "as in the profile"

Facts = dict[str, str]


def findings(plan: Plan, lowered: Lowered, timeline: Timeline) -> Facts:
    """Return the facts that a successful check of the schedule has verified."""
    num_ops, steady = sum(map(len, lowered.ops)), plan.claim.steady
    in_full = {}
    if steady is not None:
        in_full["steady state"] = f"{steady.micro_batch_us:.1f} µs of a micro-batch, simulated"
    return {
        "complete": f"{num_ops} ops; each of {plan.num_micro_batches} micro-batches passes each of "
        f"{len(plan.partition)} stages once",
        "ordered": "no op stands before one whose result it reads",
        "free of deadlock": f"{len(lowered.transfers)} transfers, in order on each link",
        "memory": _closest_call(plan),
        "as claimed": f"makespan {timeline.makespan_us} µs, period {timeline.period_us} µs, "
        "and every rank's peak, simulated from the costs in the file",
        **in_full,
    }


def _closest_call(plan: Plan) -> str:
    peaks, caps = plan.claim.peak_bytes, plan.caps_bytes
    if caps is None:
        rank = max(range(len(peaks)), key=lambda r: peaks[r])
        return (
            f"no memory limit; the highest peak is {format_bytes_both(peaks[rank])} on rank {rank}"
        )
    rank = min(range(len(peaks)), key=lambda r: caps[r] - peaks[r])
    return (
        f"every rank is within its memory limit; the closest is rank {rank} with "
        f"{format_bytes_both(peaks[rank])} of {format_bytes_both(caps[rank])}"
    )


def fingerprint_of(data: Mapping[str, Any], verified: Facts, on_trust: Facts) -> None:
    """Compare a file with the fingerprint in it, if it has one.

    Raises:
        Mismatch: it does not match; names the changed fields.
    """
    if stored_fingerprint(data) is None:
        on_trust["unchanged"] = (
            "the file is from before plans had a fingerprint: whether it was changed since it was "
            "written cannot be told"
        )
        return
    reason = misfit(data)
    if reason is not None:
        raise Mismatch(reason)
    verified["unchanged"] = "the file is as it was written: its fingerprint fits every field"


def costs_of(
    plan: Plan,
    given: str | None,
    link: Sequence[str] | None,
    verified: Facts,
    on_trust: Facts,
) -> Profile | None:
    """Derive the costs again from the plan's profile, if it is available, and return the profile.

    Args:
        plan: contains the costs to compare.
        given: a profile's file or name; None: the shipped one that the plan names, if there is one.
        link: links instead of the profile's; None: those that the plan was solved with.
        verified: gets the fact that the costs are the profile's.
        on_trust: gets the reason if that cannot be verified.

    Raises:
        SynthError: the profile given cannot be read.
        Mismatch: the plan is not of the profile, or was changed.
    """
    from synth.profiles import names

    if given is None and plan.profile_name not in names():
        on_trust["costs"] = (
            f"that the costs are those of profile {plan.profile_name}: give --profile to have them "
            f"derived again"
        )
        return None
    profile = _profile(plan, given or plan.profile_name, link)
    found = list(islice(differences(plan, profile), 2))
    is_it = profile.fingerprint() == plan.profile_fingerprint
    if found and given is None and not is_it:
        on_trust["costs"] = (
            f"that the costs are those of its profile: the shipped one named {plan.profile_name} "
            f"is another; give --profile"
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
    verified["costs"] = (
        f"layers, workload, links and the costs of every stage are those of profile {profile.name}"
    )
    return profile


def _profile(plan: Plan, name: str, link: Sequence[str] | None) -> Profile:
    """Return the profile with the given links, or with those that the plan was solved with."""
    from synth.profiles import find

    profile = Profile.load(find(name))
    noted = plan.arguments.get("link", _OWN_LINKS)
    if link is None and noted != _OWN_LINKS:
        link = noted.split("; ")
    return profile.replace(links=read_links(link, profile.links)) if link else profile


def raise_if_false(plan: Plan, proof: Reproof | None) -> None:
    """Refuse a plan whose bound was disproved.

    Raises:
        Mismatch: a schedule was found that is faster.
    """
    if proof is not None and proof.witness_us is not None:
        raise Mismatch(
            f"the claimed bound is false: lower_bound_us is {plan.claim.lower_bound_us}, and a "
            f"schedule of {proof.witness_us} µs was found; solve again"
        )


def how_the_bound_stands(
    plan: Plan, proof: Reproof | None, verified: Facts, on_trust: Facts
) -> None:
    """Say whether the lower bound is verified or taken on trust."""
    claim = plan.claim
    bound = f"the lower bound, {claim.lower_bound_us} µs of {claim.judged_by.words}"
    if proof is None:
        on_trust["bound"] = f"{bound} for {claim.bound_holds_for.words}; --prove proves it again"
        return
    if not proof.is_proven:
        why = "not proven again within the limit"
        if proof.is_refuted:
            why = "the certificate in the plan does not prove it; --all-provers leaves that aside"
        on_trust["bound"] = (
            f"{bound} for {claim.bound_holds_for.words}: {why}; "
            f"{proof.reached_us} µs was reached in {proof.seconds:.1f} s"
        )
        return
    verified["bound"] = (
        f"{bound}: proven again for {proof.holds_for}, in {proof.seconds:.1f} s, by "
        f"{proof.proven_from}"
    )
    if proof.on_trust is not None:
        on_trust["bound"] = proof.on_trust


def bound_json(plan: Plan, proof: Reproof | None) -> dict[str, Any]:
    """Render the outcome of --prove for scripts; nothing if it was not asked for."""
    if proof is None:
        return {}
    return {
        "bound": {
            "verdict": proof.verdict.value,
            "claimed_us": plan.claim.lower_bound_us,
            "reached_us": proof.reached_us,
            "holds_for": proof.holds_for,
            "proven_from": proof.proven_from if proof.is_proven else None,
            "certificate_is_refuted": proof.is_refuted,
            "seconds": round(proof.seconds, 3),
        }
    }
