"""Shades of stages: the further stages of a rank are drawn lighter than its first."""

from synth.schedule.lowering.lower import Lowered


def stage_places(lowered: Lowered) -> dict[tuple[int, int], int]:
    """Return the place of each (stage, replica) among those of its rank."""
    return {
        pair: place for held in lowered.schedule.placement.held for place, pair in enumerate(held)
    }


def most_stages(lowered: Lowered) -> int:
    """Return the largest number of stages that a rank holds."""
    return max(map(len, lowered.schedule.placement.held))


def stage_shades(lowered: Lowered) -> list[list[float]]:
    """Return the share of each stage copy's place among those of its rank, [replica][stage]."""
    placement = lowered.schedule.placement
    shades = [[0.0] * placement.num_stages for _ in placement.ranks]
    for (stage, replica), place in stage_places(lowered).items():
        shades[replica][stage] = place / max(1, most_stages(lowered) - 1)
    return shades
