"""Compares the pieces of a model with the whole: its loss, and the gradients of all parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from synth.errors import SynthError

from ...seeds import seeded
from ...state.module_state import unchanged
from .piece import Piece

_SEED = 0
_TOLERANCE = 1e-5


def check_pieces(
    model: nn.Module,
    pieces: Sequence[Piece],
    call: Callable[[Any, Any], Tensor],
    inputs: Any,
    targets: Any,
) -> float:
    """Check that the pieces have the loss and the gradients of the whole model.

    Both get the same micro-batch, another one than was recorded, and draw the same random numbers.

    Returns:
        The largest difference of a gradient, as a share of its largest element.

    Raises:
        SynthError: they differ; names the parameter.
    """
    inputs, targets = pytree.tree_map_only(Tensor, _rolled, (inputs, targets))
    whole = _run(model, lambda: call(_copied(inputs), _copied(targets)))
    ours = _run(model, lambda: _chained(pieces, _copied(inputs), _copied(targets)))
    worst = _difference("the loss", whole[0], ours[0])
    for (name, expected), found in zip(whole[1].items(), ours[1].values(), strict=True):
        worst = max(worst, _difference(f"the gradient of {name}", expected, found))
    return worst


def _chained(pieces: Sequence[Piece], inputs: Any, targets: Any) -> Tensor:
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    for piece in pieces[:-1]:
        output = piece(*given)
        given = output if isinstance(output, tuple) else (output,)
    loss: Tensor = pieces[-1](*given, targets)
    return loss


def _run(
    model: nn.Module, forward: Callable[[], Tensor]
) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Return the loss and the gradients, and leave the model as it was."""
    parameters = dict(model.named_parameters())
    before = {name: parameter.grad for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = None
    with unchanged(model), seeded(_SEED):
        loss = forward()
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        parameter.grad = before[name]
    return loss.detach(), gradients


def _difference(what: str, expected: Tensor | None, found: Tensor | None) -> float:
    """Return the largest difference as a share of the largest element.

    Raises:
        SynthError: it is more than rounding.
    """
    if expected is None or found is None:
        # Nothing reaches it, or zeros do.
        only = next((tensor for tensor in (expected, found) if tensor is not None), None)
        share = float(only is not None and bool(only.any()))
    else:
        scale = float(expected.abs().max()) if expected.numel() else 0.0
        apart = float((expected - found).abs().nan_to_num(0.0).max()) if expected.numel() else 0.0
        share = apart / scale if scale else apart
    if share > _TOLERANCE:
        raise SynthError(
            f"the pieces do not compute what the whole model does: {what} differs by {share:.1e} "
            f"of its largest element on inputs that were not recorded; code outside of the layers "
            f"depends on numbers in the inputs, or on what torch does not see: cut at other places "
            f"with --cut, or return a list of layers"
        )
    return share


def _rolled(tensor: Tensor) -> Tensor:
    """Return other inputs with the same values."""
    dims = tuple(dim for dim in range(tensor.dim()) if tensor.shape[dim] > 1)
    return tensor.roll((1,) * len(dims), dims) if dims else tensor


def _copied(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, torch.clone, tree)
