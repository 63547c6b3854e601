"""A whole model as the layers of a pipeline."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import nn

from synth.errors import SynthError

from ...state.module_state import unchanged
from ..checks import check_has_sizes
from ..empty import has_empty_parameters
from .blocks import closed_modules, find_blocks, named_pieces
from .check import check_pieces
from .divide import make_pieces, parts_at_blocks, parts_at_names, without_unused
from .piece import Piece
from .recorder import record
from .steps import RecordedCall
from .structure import Structure
from .whole import as_traced, inside_peft, loss_call, of_language_models

# Ranks in one process share torch's generator of random numbers.
_one_at_a_time = Lock()


class CutModel(list[Piece]):
    """The layers of a whole model, in order; a `Pipeline` takes those of its rank."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(pieces)


def cut_model(
    model: nn.Module, inputs: Any, targets: Any, *, at: str | None = None, check: bool = True
) -> CutModel:
    """Cut a whole model into layers, of which a pipeline makes stages.

    The layers are for micro-batches of these shapes. They share their modules with the model.

    Args:
        model: on the CPU, called as `loss_call` says; its parameters may be without values
            (`empty_parameters`). Of a `PeftModel` it is the model inside.
        inputs: of one micro-batch, a tree of tensors.
        targets: of the same micro-batch.
        at: modules at which pieces begin, such as "embed | blocks.* | norm | head"; None: at the
            blocks, and after the last of them.
        check: compare the loss, the gradients and the buffers of the pieces with those of the
            whole, on two other micro-batches; False saves the time of these.

    Raises:
        SynthError: no blocks are found, the forward cannot be followed, or the pieces do not
            compute what the whole model does.
    """
    model = inside_peft(model)
    check_has_sizes(model, type(model).__name__)
    if check and has_empty_parameters(model):
        raise SynthError(
            "the parameters of the model have no values yet, so its pieces cannot be compared with "
            "it: give check=False, and load the weights into the pieces"
        )
    named = None if at is None else named_pieces(model, at)
    begins = find_blocks(model) if named is None else [n for names in named.values() for n in names]
    call = loss_call(model)
    closed, of_text = closed_modules(model, begins), of_language_models(model, inputs)
    with _one_at_a_time, _as_written(), unchanged(model), as_traced(inputs), of_text:
        recording = record(model, closed, call, inputs, targets)
    steps = without_unused(recording)
    if named is None:
        parts = parts_at_blocks(steps, begins, lambda step: _has_parameters(model, step))
    else:
        parts = parts_at_names(steps, named)
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    pieces = make_pieces(model, recording, parts, (Structure(given), Structure(targets)))
    if len(pieces) < 2:
        raise SynthError("the model was cut into one piece; name more modules with --cut")
    if check:
        with _one_at_a_time, _as_written():
            check_pieces(model, pieces, call, inputs, targets)
    return CutModel(pieces)


@contextmanager
def _as_written() -> Iterator[None]:
    """Within it nothing is compiled, such as flex attention, and torch's generator is a copy.

    What is watched cannot be compiled.
    """
    with torch.compiler.set_stance("force_eager"), torch.random.fork_rng(devices=[]):
        yield


def _has_parameters(model: nn.Module, step: RecordedCall) -> bool:
    if step.parameters:
        return True
    if step.module is None:
        return False
    return next(model.get_submodule(step.module).parameters(), None) is not None
