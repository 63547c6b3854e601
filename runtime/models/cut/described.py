"""Says in words how a model was cut, and what goes from layer to layer."""

from collections.abc import Sequence

from torch import nn

from synth.units import counted, format_bytes

from .piece import Piece

_MOST_NAMES = 4


def cut_in_words(layers: Sequence[nn.Module]) -> str | None:
    """Return a line on the pieces of a whole model; None: the layers are no pieces."""
    pieces = [layer for layer in layers if isinstance(layer, Piece)]
    if not pieces:
        return None
    crossing: dict[tuple[str, ...], list[str]] = {}
    for piece in pieces[:-1]:
        crossing.setdefault(piece.returned, []).append(piece.name)
    travels = "; ".join(
        f"{' and '.join(shapes)} after {_listed(names, of=len(pieces) - 1)}"
        for shapes, names in crossing.items()
    )
    tables = {id(table): table for piece in pieces for table in piece.constants}
    held = sum(table.numel() * table.element_size() for table in tables.values())
    constants = f"; constants of {format_bytes(held)} are on each rank" if held else ""
    return (
        f"the whole model was cut into {len(pieces)} layers, with its loss and its gradients; "
        f"from layer to layer goes {travels}{constants}{_unused(pieces)}"
    )


def _unused(pieces: Sequence[Piece]) -> str:
    """Say which weights of the model are in no layer, such as those for images."""
    used = {
        each for piece in pieces for name in piece.state_dict() for each in piece.names_of(name)
    }
    left = [name for name in pieces[0].origin.names if name not in used]
    if not left:
        return ""
    count = counted(len(left), "weight")
    return f"; no layer has {count} that the forward does not use, such as {left[0]}"


def _listed(names: Sequence[str], of: int) -> str:
    if len(names) == of:
        return "each"
    shown = names if len(names) <= _MOST_NAMES else [*names[: _MOST_NAMES - 1], "…", names[-1]]
    return ", ".join(shown)
