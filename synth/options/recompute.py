"""Reading `--recompute`: stages, layers, or a keyword."""

from synth.errors import SynthError
from synth.options.ranges import MOST_DIGITS, read_ranges
from synth.options.values import word
from synth.units import shown

# Prefix of the layers that `--recompute` lists.
LAYERS = "layers:"


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
    layers = read_ranges(name.removeprefix(LAYERS), num_layers)
    if layers is None:
        raise SynthError(
            f"§recompute {shown(text)} is not understood; write layers from 0 to "
            f"{num_layers - 1}, such as {LAYERS}3-8 or {LAYERS}0,2,4, or {LAYERS}all"
        )
    return layers


def read_recompute(text: str, num_stages: int) -> tuple[int, ...] | None:
    """Read the stages that recompute: `none`, `all`, `0,1,2`; None for `auto`.

    Raises:
        SynthError: something is no stage, or layers are listed (`read_layers` reads these).
    """
    name = word(text)
    if name.startswith(LAYERS):
        raise SynthError(
            f"§recompute {shown(text)} lists layers, which `synth solve` takes; give none, all, "
            f"auto, or stages such as 0,1"
        )
    if name in ("auto", "none", "all"):
        return {"auto": None, "none": (), "all": tuple(range(num_stages))}[name]
    parts = [part.strip() for part in text.split(",")]
    short = all(part.isdecimal() and len(part) <= MOST_DIGITS for part in parts)
    if not short or max(map(int, parts)) >= num_stages:
        raise SynthError(
            f"§recompute {shown(text)} is not understood; write none, all, auto, or stages from 0 "
            f"to {num_stages - 1}, such as 0,1; or, with `synth solve`, layers such as {LAYERS}3-8"
        )
    return tuple(sorted({int(part) for part in parts}))
