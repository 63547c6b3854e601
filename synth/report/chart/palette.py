"""Colours of op kinds that eyes with any colour vision tell apart, lightened copies included.

The colours were searched for: the smallest distance between two of them, as CIE Lab 1976 and under
simulated protanopia, deuteranopia and tritanopia (Machado et al. 2009), is 17.9. The lightened ones
count, which mark a rank's further stages.
"""

from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Lowered

COLOURS = {
    OpKind.F: "#197cff",
    OpKind.B: "#8be1d1",
    OpKind.W: "#f5cb19",
    OpKind.BW: "#681949",
    OpKind.R: "#7880c3",
    OpKind.STEP: "#ee5319",
}

# On dark paper: a kind that would have less than three times the contrast there (WCAG 2, 1.4.11) is
# lighter. The smallest distance between two of these is 13.0.
DARK_COLOURS = {**COLOURS, OpKind.BW: "#c74f69"}

# Share of white, in linear light, in the colours of a rank's last stage copy.
LIGHTEST = 0.3

# The moves of saved activations, which are drawn apart from the ops.
MOVED_COLOURS = {OpKind.OFFLOAD: "#8a6fb0", OpKind.RELOAD: "#b9a3d6"}

# The contrast of white on a colour, by WCAG 2, from which on white is read more easily than black.
_WHITE_FROM = 4.5


def lightened(colour: str, share: float) -> str:
    """Mix white into a colour, in linear light; 1 is the share `LIGHTEST`."""
    white = LIGHTEST * share
    mixed = (_encoded(light * (1 - white) + white) for light in _linear(colour))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def is_dark(colour: str) -> bool:
    """Return True if white letters are read more easily on a colour than black ones."""
    return contrast("#ffffff", colour) > _WHITE_FROM


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours by WCAG 2, from 1 to 21."""
    less, more = sorted((_luminance(one), _luminance(other)))
    return (more + 0.05) / (less + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = _linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(colour: str) -> list[float]:
    """Return red, green and blue of `#rrggbb` in linear light (sRGB, IEC 61966-2-1)."""
    values = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in values]


def _encoded(light: float) -> int:
    x = 12.92 * light if light <= 0.0031308 else 1.055 * light ** (1 / 2.4) - 0.055
    return round(255 * x)


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
