"""Defaults for placement, partition and recomputation of `synth solve`.

Each is `auto`, except in requests for one placement in one partition. There a default must not
cause an error:

    --hint        the placement of the hint; of a file its partition too
    --target      linear, even and none: what is proven of memory is of one partition, without R
    --solver milp linear, even and none: a cross-check of one problem
    --recompute 0,1, or a partition that no other placement has stages for: linear
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from synth.errors import SynthError
from synth.families import family_layout, family_placement
from synth.options.arguments.solve import SolveArguments
from synth.options.values import AUTO, EVEN, NONE, Hint, Partition, word
from synth.plan.choose.candidates import placements_to_try
from synth.plan.runtimes import Allowed
from synth.profile import Profile
from synth.schedule.files.plan_file import Plan

LINEAR = "linear"

# Seconds per layer of the model to make the menus of recomputed layers on a placement. They are
# made if they take at most this share of the time limit, for about this many placements.
_S_PER_LAYER = 1e-3
_LAYERS_SHARE = 0.2
_PLACEMENTS = 9

# Values of --recompute that hold on every placement.
FOR_ALL = ("none", "all", "auto")


@dataclass(frozen=True)
class SolveChoices:
    """Placement, partition and recomputation to use; `placement_is_given`: by the user."""

    placement: str
    partition: Partition
    recompute: str
    placement_is_given: bool


def choices(given: SolveArguments, profile: Profile, recompute: str | None) -> SolveChoices:
    """Fill in the options that were not given.

    Args:
        profile: the profile that they name.
        recompute: the stages that recompute, as on the command line; None: not given.
    """
    placement, partition, num_ranks = given.placement, given.partition, given.pipeline.ranks
    fallback = SolveChoices(AUTO, AUTO, AUTO, placement is not None)
    if given.is_for_one:
        fallback = SolveChoices(LINEAR, EVEN, NONE, True)
    elif given.hint is not None:
        fallback = _of_hint(given.hint, num_ranks, profile, is_placed=placement is not None)
    elif not _is_for_several(num_ranks, len(profile.layers), partition, recompute):
        fallback = SolveChoices(LINEAR, AUTO, AUTO, True)
    return SolveChoices(
        placement or fallback.placement,
        partition or fallback.partition,
        recompute or fallback.recompute,
        fallback.placement_is_given,
    )


def _is_for_several(
    num_ranks: int, num_layers: int, partition: Partition | None, recompute: str | None
) -> bool:
    """True if the partition and the stages given can hold on several placements."""
    if recompute is not None and word(recompute) not in FOR_ALL:
        return False
    if partition is None or isinstance(partition, str):
        return True
    every = placements_to_try(num_ranks, num_layers).values()
    return any(where.num_stages == len(partition) for where in every)


def _of_hint(hint: Hint, num_ranks: int, profile: Profile, *, is_placed: bool) -> SolveChoices:
    """Return the placement of a hint, and of a file also its partition; else linear and even.

    Wrong hints are refused by `read_hint`.
    """
    found = SolveChoices(LINEAR, EVEN, AUTO, True)
    try:
        if isinstance(hint, str) and not Path(hint).exists():
            family_placement(hint, num_ranks)
            return SolveChoices(family_layout(hint), EVEN, AUTO, True)
        plan = hint if isinstance(hint, Plan) else Plan.load(Path(str(hint)))
    except SynthError:
        return found
    is_cut_alike = sum(plan.partition) == len(profile.layers) and not is_placed
    sizes: Partition = plan.partition if is_cut_alike else EVEN
    for name, where in placements_to_try(num_ranks, len(profile.layers)).items():
        if where == plan.placed:
            return SolveChoices(name, sizes, AUTO, True)
    return found


def chooses_layers(chosen: SolveChoices, allowed: Allowed, num_layers: int, limit_s: float) -> bool:
    """Return True if single layers to recompute are chosen, not only whole stages.

    Args:
        allowed: the rules of a runtime are few, so they need no time.
        limit_s: the time limit; for models of many layers it must be long enough.
    """
    names = [chosen.placement]
    is_asked = word(chosen.recompute) == AUTO
    return is_asked and has_time_for_layers(names, allowed, num_layers, limit_s)


def has_time_for_layers(
    names: Sequence[str], allowed: Allowed, num_layers: int, limit_s: float
) -> bool:
    """Return True if there is time to choose single layers in a search on any of the placements.

    Args:
        names: of the placements, or auto; the other arguments are those of `chooses_layers`.
        allowed: the rules of a runtime are few, so they need no time.
    """
    num_placements = _PLACEMENTS if AUTO in map(word, names) else 1
    takes_s = num_placements * num_layers * _S_PER_LAYER
    return allowed.layer_menu is not None or takes_s <= _LAYERS_SHARE * limit_s
