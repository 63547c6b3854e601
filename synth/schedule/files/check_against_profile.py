"""Comparing a plan with the profile from which it was made, by deriving the costs again."""

from collections.abc import Iterator, Mapping
from typing import Any

from synth.costs.costs import Costs
from synth.costs.divided_vocabulary import divided_vocabulary
from synth.costs.layer_boundaries import BACKWARDS
from synth.costs.partition_costs import partition_costs
from synth.costs.recomputed_layers import recomputing
from synth.costs.stage_costs import StageCosts
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.schedule.files.plan_file import Plan


def differences(plan: Plan, profile: Profile) -> Iterator[str]:
    """Yield a description of each difference between a plan and the profile that it was made from.

    Fields that are absent from the plan, because its version is older, are not compared, nor FLOPs
    that the profile does not count, nor rises of backwards that are larger in the plan; see
    `larger_rises`.
    """
    try:
        profile = _divided(plan, profile)
    except SynthError as error:
        yield f"vocabulary: {error}"
        return
    names = [layer.name for layer in profile.layers]
    if len(plan.layers) != len(names):
        yield _difference("number of layers", len(plan.layers), len(names))
        return
    pairs = list(zip(plan.layers, names, strict=True))
    others = [number for number, (found, made) in enumerate(pairs) if found != made]
    if others:
        yield _difference(f"layer {others[0]}", *pairs[others[0]])
        return
    if plan.profile_name != profile.name:
        yield _difference("profile_name", plan.profile_name, profile.name)
    yield from _compared(
        "workload", plan.workload.model_dump(mode="json"), profile.workload.model_dump(mode="json")
    )
    if plan.flops is not None and profile.flops is not None:
        count = profile.flops.per_micro_batch
        if count != plan.flops.per_micro_batch:
            yield _difference("flops, per_micro_batch", plan.flops.per_micro_batch, count)
    if plan.device != profile.provenance.device:
        yield _difference("device", plan.device, profile.provenance.device)
    if plan.conditions is not None and plan.conditions != profile.provenance.conditions:
        yield _difference("conditions", plan.conditions, profile.provenance.conditions)
    try:
        derived = _derived(plan, profile)
    except SynthError as error:
        yield f"partition, recomputed layers: {error}"
        return
    stages = zip(plan.costs.stages, derived.stages, strict=True)
    for number, (found, made) in enumerate(stages):
        own = {kind: min(rise, made.rise_bytes[kind]) for kind, rise in _backwards(found)}
        lowered = found.model_copy(update={"rise_bytes": {**found.rise_bytes, **own}})
        yield from _compared(
            f"costs of stage {number}",
            lowered.model_dump(mode="json", exclude_unset=True),
            made.model_dump(mode="json"),
        )
    are_shared = plan.weights is None and plan.versions is None
    if are_shared:
        ties, from_profile = (
            {str(n): tie.model_dump(exclude_unset=True) for n, tie in enumerate(costs.ties)}
            for costs in (plan.costs, derived)
        )
        if len(ties) != len(from_profile) or any(_compared("", ties, from_profile)):
            yield _difference("costs, ties", [*ties.values()], [*from_profile.values()])
    yield from _compared(
        "links", plan.costs.links.model_dump(mode="json"), derived.links.model_dump(mode="json")
    )


def larger_rises(plan: Plan, profile: Profile) -> int:
    """Return by how many bytes the rise of a backward is larger in the plan, at most.

    It is in plans of earlier versions of synth, which counted boundaries between the layers of a
    stage, and their gradients, for longer than they are held. Such a plan runs in less memory than
    it claims.

    Args:
        profile: that the plan was made from, as far as `differences` tells.
    """
    derived = _derived(plan, _divided(plan, profile))
    return max(
        rise - made.rise_bytes[kind]
        for found, made in zip(plan.costs.stages, derived.stages, strict=True)
        for kind, rise in _backwards(found)
    )


def _divided(plan: Plan, profile: Profile) -> Profile:
    if plan.vocabulary is None:
        return profile
    return divided_vocabulary(profile, plan.num_ranks, plan.vocabulary)


def _derived(plan: Plan, profile: Profile) -> Costs:
    chosen = recomputing(profile, plan.recomputation)
    return partition_costs(chosen, plan.partition, plan.placement)


def _backwards(stage: StageCosts) -> list[tuple[OpKind, int]]:
    return [(kind, stage.rise_bytes[kind]) for kind in BACKWARDS]


def _compared(path: str, found: Mapping[str, Any], made: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences of entries of `found` from those of `made`."""
    for key, value in found.items():
        other = made.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            yield from _compared(f"{path}, {key}", value, other)
        elif value != other:
            yield _difference(f"{path}, {key}", value, other)


def _difference(path: str, found: object, made: object) -> str:
    return f"{path}: {_brief(found)} in the plan, {_brief(made)} by the profile"


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
