"""The division of a model of transformers over processes, as its own tensor-parallel plan says.

The plan names matrices by patterns of the whole model, such as `model.layers.*.self_attn.q_proj`,
each with a style: by columns, by rows, by columns with the output gathered, or by rows with the
input split. Norms of this process's heads have a style of their own, whose gradients are summed.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial

from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from synth.errors import SynthError

from .cut.piece import Piece
from .summed_gradients import SummedGradients


def transformers_plan(piece: Piece, size: int) -> Mapping[str, ParallelStyle] | None:
    """Return the style of each matrix of a piece by name; None: the model has no plan.

    Raises:
        SynthError: so many processes cannot divide it equally, or a style is unknown.
    """
    origin = piece.origin
    of_base = getattr(origin.config, "base_model_tp_plan", None)
    if not of_base:
        return None
    base = getattr(origin.kind, "base_model_prefix", "")
    styles = {f"{base}.{name}": style for name, style in of_base.items()}
    styles |= getattr(origin.kind, "_tp_plan", None) or {}
    found = {}
    for name, module in piece.parts.named_modules(prefix="parts"):
        if name != "parts":
            pattern = re.sub(r"\.\d+(?=\.|$)", ".*", piece.original_name(name))
            if pattern in styles:
                found[name] = _style(pattern, styles[pattern], module, size)
    if any(isinstance(style, ColwiseParallel) and not _gathers(style) for style in found.values()):
        _check_heads(origin.config, size)
    return found


def _gathers(style: ColwiseParallel) -> bool:
    """True if the whole output is on each process, so that heads need not be divided."""
    return any(each.is_replicate() for each in style.output_layouts)


def _style(pattern: str, style: str, module: nn.Module, size: int) -> ParallelStyle:
    if style == "replicated_with_grad_allreduce":
        return SummedGradients()
    if style not in _WIDTHS or not isinstance(module, nn.Linear):
        raise SynthError(
            f"the model's own plan divides {pattern} in the style {style}, which synth does not "
            f"know; give --parallelize FILE.py:FUNCTION, which divides a layer over a mesh"
        )
    check_divides(size, f"{_WIDTHS[style]} of {pattern}", getattr(module, _WIDTHS[style]))
    return _STYLES[style]()


_WIDTHS = {
    "colwise": "out_features",
    "colwise_gather_output": "out_features",
    "rowwise": "in_features",
    "rowwise_split_input": "in_features",
}

_STYLES: Mapping[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "colwise_gather_output": partial(ColwiseParallel, output_layouts=Replicate()),
    "rowwise": RowwiseParallel,
    "rowwise_split_input": partial(RowwiseParallel, input_layouts=Replicate()),
}


def _check_heads(config: object, size: int) -> None:
    """Check that each process gets whole heads."""
    fields = {"num_attention_heads": "heads", "num_key_value_heads": "heads of keys and values"}
    for field, what in fields.items():
        count = getattr(config, field, None)
        if count is not None:
            check_divides(size, what, count)


def check_divides(size: int, what: str, count: int) -> None:
    """Refuse what so many processes of a rank cannot divide equally."""
    if count % size:
        raise SynthError(
            f"a layer has {count} {what}, which {size} processes of a rank cannot divide equally; "
            f"profile with a number of processes that divides it"
        )
