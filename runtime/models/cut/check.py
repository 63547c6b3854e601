"""Compares the pieces of a model with the whole: its loss, and the gradients of all parameters."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from synth.errors import SynthError

from ...seeds import seeded
from ...state.module_state import unchanged
from ..other_inputs import Change, redrawn, turned
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
    """Check that the pieces have the loss, the gradients and the buffers of the whole model.

    Both get the same two micro-batches, one after the other, and draw the same random numbers. The
    micro-batches have values of the given one, but others than were recorded. If the model refuses
    those, such as lengths that are no longer sorted, they have its samples in another order, and if
    it refuses these, they are the given one.

    Returns:
        The largest difference of a gradient, as a share of its largest element.

    Raises:
        SynthError: they differ, or the loss is no number; names the parameter.
    """
    try:
        batches, whole = _first_that_run(model, call, (inputs, targets))
    except Exception as error:  # of the user's code, of any class
        raise SynthError(
            f"the whole model fails in a forward and backward on the CPU, so its pieces cannot be "
            f"compared with it: {type(error).__name__}: {error}; where it runs on another device "
            f"alone, such as flex attention, give check=False"
        ) from error
    versions = [table._version for piece in pieces for table in piece.constants]
    ours = _run(model, lambda given, wanted: chained(pieces, given, wanted), batches)
    if not all(bool(loss.isfinite()) for loss in whole.losses):
        raise SynthError(
            f"the loss of the whole model is {whole.losses[0].item()} and "
            f"{whole.losses[1].item()} on two micro-batches with values of the given one, so the "
            f"pieces cannot be compared with it: give inputs and targets with a finite loss"
        )
    if versions != [table._version for piece in pieces for table in piece.constants]:
        raise SynthError(
            "a layer changes a constant in place, such as a mask that it is given: make a new "
            "tensor instead"
        )
    worst = 0.0
    for expected, found in zip(whole.losses, ours.losses, strict=True):
        worst = max(worst, _difference("the loss", expected, found))
    kept = _kept_buffers(model, pieces)
    for name, buffer in whole.buffers.items():
        if name in kept or name in whole.moving:
            worst = max(worst, _difference(f"the buffer {name}", buffer, ours.buffers[name]))
    for name, gradient in whole.gradients.items():
        found_too = ours.gradients[name]
        worst = max(worst, _difference(f"the gradient of {name}", gradient, found_too))
    _check_counters(model, pieces, whole.counters)
    return worst


def _first_that_run(
    model: nn.Module, call: Callable[[Any, Any], Tensor], batch: Any
) -> tuple[list[Any], "_Results"]:
    """Return two micro-batches, the first ones of their kind that the model takes, and results."""
    others: list[tuple[Change, Change]] = [(redrawn(1), redrawn(2)), (turned, torch.clone)]
    for changes in others:
        batches = [pytree.tree_map_only(Tensor, change, batch) for change in changes]
        with suppress(Exception):  # of the user's code, of any class
            return batches, _run(model, call, batches)
    return [batch, batch], _run(model, call, [batch, batch])


def _check_counters(
    model: nn.Module, pieces: Sequence[Piece], counters: Sequence[tuple[str, str]]
) -> None:
    """Refuse numbers that code between the layers changes: pieces have those of the recording."""
    inside = {id(module) for piece in pieces for module in piece.modules()}
    for name, attribute in counters:
        if id(model.get_submodule(name)) not in inside:
            raise SynthError(
                f"the model's code outside of its layers changes the number "
                f"{name + '.' * bool(name)}{attribute} in each forward, and the layers would keep "
                f"that of their recording: count in a layer, or outside of the model; "
                f"check=False cuts it nevertheless"
            )


def _kept_buffers(model: nn.Module, pieces: Sequence[Piece]) -> set[str]:
    """Name the buffers that pieces or checkpoints have.

    Others serve code between the layers, such as a table of angles for the longest sequence so far.
    If each forward leaves the same there, its losses and gradients tell all.
    """
    held = {
        each
        for piece in pieces
        for name, _ in piece.named_buffers()
        for each in piece.names_of(name)
    }
    return held | model.state_dict().keys()


def chained(pieces: Sequence[Piece], inputs: Any, targets: Any) -> Tensor:
    """Run pieces one after the other, with copies of what goes between, as ranks do."""
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    for piece in pieces[:-1]:
        output = piece(*given)
        given = tuple(each.clone() for each in (output if isinstance(output, tuple) else (output,)))
    loss: Tensor = pieces[-1](*given, targets)
    return loss


class _Results(NamedTuple):
    """Losses, and the sums of gradients and the buffers after them; some differ each time.

    So do some attributes that are numbers, by module and name.
    """

    losses: list[Tensor]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]
    moving: set[str]
    counters: list[tuple[str, str]]


def _run(
    model: nn.Module, forward: Callable[[Any, Any], Tensor], batches: Sequence[Any]
) -> _Results:
    """Return the results, and leave the model as it was."""
    parameters = dict(model.named_parameters())
    before = {name: parameter.grad for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = None
    losses, states, numbers = [], [], []
    try:
        with unchanged(model), seeded(_SEED):
            for batch in batches:
                loss = forward(*pytree.tree_map_only(Tensor, torch.clone, batch))
                loss.backward()  # type: ignore[no-untyped-call]
                losses.append(loss.detach().clone())
                numbers.append(_numbers(model))
                states.append({name: b.detach().clone() for name, b in model.named_buffers()})
        gradients = {name: _dense(parameter.grad) for name, parameter in parameters.items()}
    finally:
        for name, parameter in parameters.items():
            parameter.grad = before[name]
    first, last = states
    moving = {name for name, b in last.items() if name not in first or _share(b, first[name]) > 0}
    counters = [at for at, number in numbers[1].items() if numbers[0].get(at, number) != number]
    return _Results(losses, gradients, last, moving, counters)


def _numbers(model: nn.Module) -> dict[tuple[str, str], int | float]:
    """Return the attributes of modules that are numbers, by the names of both."""
    return {
        (name, attribute): value
        for name, module in model.named_modules()
        for attribute, value in vars(module).items()
        if isinstance(value, int | float)
    }


def _dense(gradient: Tensor | None) -> Tensor | None:
    """Return a gradient that can be compared; that of an embedding may be sparse."""
    return gradient if gradient is None or not gradient.is_sparse else gradient.to_dense()


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
        share = _share(expected, found)
    if not share <= _TOLERANCE:  # also of no number
        raise SynthError(
            f"the pieces do not compute what the whole model does: {what} differs by {share:.1e} "
            f"of its largest element on inputs that were not recorded. Code outside of the layers "
            f"may depend on numbers in the inputs, on attributes that change from call to call, or "
            f"on what torch does not see: move it into a layer, cut at other places with --cut, or "
            f"return a list of layers"
        )
    return share


def _share(expected: Tensor, found: Tensor) -> float:
    if expected.shape != found.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    if not (expected.is_floating_point() or expected.is_complex()):
        expected, found = expected.double(), found.double()
    is_same = (expected == found) | (expected.isnan() & found.isnan())
    apart = float((expected - found).abs().masked_fill(is_same, 0.0).max())
    scale = float(expected.abs().nan_to_num(0.0, posinf=0.0).max())
    return apart / scale if scale else apart
