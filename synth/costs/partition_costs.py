"""Costs of the stages of a partition: the sums of their layers' times and bytes, and peaks."""

import math
from collections.abc import Sequence

from synth.costs.boundary_memory import LayerBoundary
from synth.costs.costs import Costs
from synth.costs.layer_boundaries import (
    BACKWARDS,
    StageEnds,
    StageLayers,
    first_layers,
    own_change,
)
from synth.costs.stage_costs import StageCosts
from synth.costs.stage_ties import StageTie
from synth.errors import SynthError
from synth.op_kinds import MEASURED, OpKind
from synth.profile import Profile
from synth.profile.layer_profile import LayerProfile
from synth.profile.layer_tensors import SharedMemory
from synth.profile.tied_parameters import GradientSum


def partition_costs(
    profile: Profile, sizes: Sequence[int], ranks: Sequence[Sequence[int]] | None = None
) -> Costs:
    """Add up layers to stages; `sizes[s]` is the number of layers of stage s.

    A stage counts tied parameters once. The ties say which of them several stages count. On ranks
    of unequal speed, the ops of a stage take the time that its rank needs.

    Args:
        ranks: [copy][stage] → rank, which only ranks of unequal speed need.

    Raises:
        SynthError: the sizes are not positive or do not add up to the number of layers; ranks
            differ in speed and it is not known which has which stage, or copies of one do.
    """
    if sum(sizes) != len(profile.layers) or min(sizes) < 1:
        raise SynthError(
            f"partition {list(sizes)} covers {sum(sizes)} layers, the profile has "
            f"{len(profile.layers)}; every stage needs at least one layer and all must be used"
        )
    stages, first = [], 0
    for size in sizes:
        layers = profile.stage_layers(first, first + size)
        sums = profile.gradient_sums(first, first + size)
        shared = profile.shared_inputs(first)
        stages.append(stage_costs(layers, sums, shared, is_first=first == 0))
        first += size
    costs = Costs(stages=tuple(stages), links=profile.links, ties=stage_ties(profile, sizes))
    if profile.rank_speeds is None:
        return costs
    return at_speeds(costs, stage_speeds(profile.rank_speeds, ranks))


def at_speeds(costs: Costs, speeds: Sequence[float]) -> Costs:
    """The costs of stages on ranks of other speeds; `speeds[s]` is that of the rank of stage s."""
    stages = [stage.at(speed) for stage, speed in zip(costs.stages, speeds, strict=True)]
    # All stages of a tie on a rank have its speed; the fastest one's updates are the shortest.
    ties = tuple(
        tie.replace(step_us=math.floor(tie.step_us / max(speeds[s] for s in tie.stages)))
        for tie in costs.ties
    )
    return costs.replace(stages=tuple(stages), ties=ties)


def stage_speeds(
    speeds: Sequence[float], ranks: Sequence[Sequence[int]] | None
) -> tuple[float, ...]:
    """Return the speed of each stage: that of its rank.

    Args:
        ranks: [copy][stage] → rank; None: not known.

    Raises:
        SynthError: it is not known which rank has which stage; there are more or fewer ranks than
            speeds; or copies of a stage are on ranks that differ in speed.
    """
    if ranks is None:
        raise SynthError(
            "the ranks of this profile differ in speed, which is supported where each stage stays "
            "on one rank of a pipeline: take synth solve, compare or frontier with a placement "
            "such as linear, looped:2 or v"
        )
    num_ranks = 1 + max(map(max, ranks))
    if num_ranks != len(speeds):
        raise SynthError(
            f"the profile has the speeds of {len(speeds)} ranks, and there are {num_ranks}; give "
            f"one speed per rank"
        )
    of_copies = [{speeds[rank] for rank in on} for on in zip(*ranks, strict=True)]
    for stage, found in enumerate(of_copies):
        if len(found) > 1:
            raise SynthError(
                f"stage {stage} has copies on ranks of speed {min(found):g} and {max(found):g}; "
                f"where ranks differ in speed take a placement with one copy, such as linear or v"
            )
    return tuple(min(found) for found in of_copies)


def stage_ties(profile: Profile, sizes: Sequence[int]) -> tuple[StageTie, ...]:
    """The tied parameters that several stages of a partition have."""
    if not profile.tied_parameters:
        return ()
    stage_of = [stage for stage, size in enumerate(sizes) for _ in range(size)]
    found = []
    for tied, places in zip(profile.tied_parameters, profile.tied_places, strict=True):
        having = tuple(sorted({stage_of[place] for place in places}))
        if len(having) > 1:
            step_us = math.floor(tied.step_us)
            found.append(
                StageTie(
                    stages=having,
                    static_bytes=tied.static_bytes,
                    step_us=step_us,
                    reduce_us=math.floor(tied.reduce_us),
                    trained=tied.gradient_bytes > 0,
                )
            )
    return tuple(found)


def stage_costs(
    layers: list[LayerProfile],
    sums: Sequence[GradientSum] = (),
    shared: Sequence[SharedMemory] = (),
    *,
    is_first: bool,
) -> StageCosts:
    """Add up the layers of one stage.

    Args:
        layers: the layers; tied parameters count for the first of them only.
        sums: the sums of gradients of tied parameters.
        shared: of what the first layer takes; see `Profile.shared_inputs`.
        is_first: True if it is the first stage, which holds no input.
    """
    runs, boundaries = first_layers(layers, shared)
    ends = runs[-1].ends(is_first=is_first)
    durations = {
        kind: round(sum(layer.time_us[kind].median_us for layer in layers)) for kind in MEASURED
    }
    durations[OpKind.R] = round(sum(layer.recompute_us for layer in layers))
    forward_rises = [layer.rise_bytes[OpKind.F] for layer in layers]
    again_rises = [layer.recompute_rise_bytes for layer in layers]
    return StageCosts(
        duration_us=durations,
        static_bytes=sum(layer.static_bytes for layer in layers),
        output_bytes=layers[-1].output_bytes,
        output_gradient_bytes=layers[-1].output_gradient_bytes,
        sent_bytes=None if ends.sent_bytes == layers[-1].output_bytes else ends.sent_bytes,
        saved_bytes=sum(layer.saved_bytes for layer in layers)
        + sum(boundary.saved_bytes for boundary in boundaries)
        + ends.saved_bytes,
        saved_w_bytes=sum(layer.saved_w_bytes for layer in layers)
        + sum(boundary.saved_w_bytes for boundary in boundaries)
        + ends.saved_w_bytes,
        rise_bytes={
            OpKind.F: _forward_rise(layers, boundaries, forward_rises),
            OpKind.R: _forward_rise(layers, boundaries, again_rises),
            **{kind: _backward_rise(layers, boundaries, ends, kind, sums) for kind in BACKWARDS},
            OpKind.STEP: sum(layer.rise_bytes[OpKind.STEP] for layer in layers),
        },
        input_until=ends.input_until,
        output_until=ends.output_until,
        gradient_until=layers[-1].gradient_until,
        gradient_bytes=sum(layer.gradient_bytes for layer in layers),
        parameter_bytes=sum(layer.parameter_bytes for layer in layers),
        light_rise_bytes=_light_rise(runs, forward_rises),
        early_gradient_bytes=sum(layer.early_gradient_bytes for layer in layers),
        hidden_us=math.floor(sum(layer.hidden_us for layer in layers)),
        reduce_us=round(sum(layer.reduce_us for layer in layers)),
        parts_bytes=ends.parts_bytes,
        shared_gradient_bytes=layers[0].boundary_tensors.shared_gradient_bytes,
    )


def _light_rise(runs: list[StageLayers], rises: list[int]) -> int:
    """The highest level of an F that saves nothing: a layer's input plus the layer's rise.

    The layer's rise was measured with saving, so this is a bound.
    """
    inputs = [0, *(run.open_bytes for run in runs[:-1])]
    return max(map(sum, zip(inputs, rises, strict=True)))


def _forward_rise(
    layers: list[LayerProfile], boundaries: list[LayerBoundary], rises: list[int]
) -> int:
    """The highest level of F, or R, above its start: layers run first to last.

    Args:
        boundaries: between each layer and the next one.
        rises: by layer, the rise during its op.
    """
    level = rise = 0
    gone = [0, *(boundary.gone_bytes for boundary in boundaries)]
    for layer, gone_bytes, own_rise in zip(layers, gone, rises, strict=True):
        rise = max(rise, level + own_rise)
        level += layer.saved_bytes + layer.boundary_tensors.made_bytes - gone_bytes
    return rise


def _backward_rise(
    layers: list[LayerProfile],
    boundaries: list[LayerBoundary],
    ends: StageEnds,
    kind: OpKind,
    sums: Sequence[GradientSum],
) -> int:
    """The highest level of B, W or BW above its start: layers run last to first.

    Gradients of tied parameters are added up one parameter after the other. In W a sum grows in
    place. In BW a new sum is made beside the old one and what is added to it.

    Args:
        boundaries: between each layer and the next one.
        sums: the sums of gradients of tied parameters, which B leaves to W.
    """
    level = rise = 0
    for i, layer in reversed(list(enumerate(layers))):
        # A gradient that is that of several tensors is not freed with the first of them.
        is_freed = i < len(boundaries) and not layers[i + 1].boundary_tensors.shared_gradients
        own_rise = layer.inner_rise(kind) if is_freed else layer.rise_bytes[kind]
        if i == 0 and kind != OpKind.W:
            own_rise += layer.boundary_tensors.unused_bytes
        if kind != OpKind.B:
            own_rise += sum(one.num_bytes for one in sums if one.exists_at(i))
        if kind == OpKind.BW:
            own_rise += max((one.largest_bytes for one in sums if one.grows_at(i)), default=0)
        rise = max(rise, level + own_rise)
        level += own_change(layer, kind) + ends.kept(i, kind)
        if i > 0:
            level += boundaries[i - 1].by_next[kind]
        if i < len(boundaries):
            level += boundaries[i].by_previous[kind]
        if kind == OpKind.B:
            level += sum(boundary.by_earlier.get(i, 0) for boundary in boundaries)
    return rise
