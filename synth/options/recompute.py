"""Reading `--recompute`: stages, layers, or a keyword."""

import re

from synth.errors import SynthError
from synth.options.keywords import word
from synth.units import shown

# Prefix of the layers that `--recompute` lists.
LAYERS = "layers:"

# Most digits of the number of a stage or a layer.
_MOST_DIGITS = 6


def read_layers(text: str, num_layers: int) -> tuple[int, ...]:
    """Read the layers that `--recompute` lists: `layers:3-8,10`, `layers:all`; else empty.

    Raises:
        SynthError: something is no layer.
    """
    name = word(text)
    if not name.startswith(LAYERS):
        return ()
    if name == f"{LAYERS}all":
        return tuple(range(num_layers))
    ranges = [_range(part) for part in name.removeprefix(LAYERS).split(",")]
    known = [one for one in ranges if one is not None and one.stop <= num_layers]
    if len(known) < len(ranges):
        raise SynthError(
            f"--recompute {shown(text)} is not understood; write layers from 0 to "
            f"{num_layers - 1}, such as {LAYERS}3-8 or {LAYERS}0,2,4, or {LAYERS}all"
        )
    return tuple(sorted({index for one in known for index in one}))


def _range(text: str) -> range | None:
    """`3-8`, both ends included, or `3`; None: neither."""
    match = re.fullmatch(
        rf"\s*(\d{{1,{_MOST_DIGITS}}})\s*(?:-\s*(\d{{1,{_MOST_DIGITS}}})\s*)?", text
    )
    if match is None:
        return None
    found = range(int(match[1]), int(match[2] or match[1]) + 1)
    return found if found else None


def read_recompute(text: str, num_stages: int) -> tuple[int, ...] | None:
    """Read the stages that recompute: `none`, `all`, `0,1,2`; None for `auto`.

    Raises:
        SynthError: something is no stage, or layers are listed (`read_layers` reads these).
    """
    name = word(text)
    if name.startswith(LAYERS):
        raise SynthError(
            f"--recompute {shown(text)} lists layers, which `synth solve` takes; give none, all, "
            f"auto, or stages such as 0,1"
        )
    if name in ("auto", "none", "all"):
        return {"auto": None, "none": (), "all": tuple(range(num_stages))}[name]
    parts = [part.strip() for part in text.split(",")]
    short = all(part.isdecimal() and len(part) <= _MOST_DIGITS for part in parts)
    if not short or max(map(int, parts)) >= num_stages:
        raise SynthError(
            f"--recompute {shown(text)} is not understood; write none, all, auto, or stages from 0 "
            f"to {num_stages - 1}, such as 0,1; of `synth solve` also layers, such as {LAYERS}3-8"
        )
    return tuple(sorted({int(part) for part in parts}))
