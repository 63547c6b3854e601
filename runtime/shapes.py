"""What stages hand on to each other, found by passing one micro-batch through without autograd."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from synth.schedule.model import Placement

from .batch import Batch
from .boundary import Boundary
from .groups import Group
from .stage import Stage

_REMEMBERED = 64


class ShapeFinder:
    """Knows, or finds together with the other ranks, the boundaries of every micro-batch.

    Shapes are found once for each kind of input and then remembered; a rank that was given no
    inputs takes those of the step before.
    """

    def __init__(self, group: Group, placement: Placement, stages: Mapping[int, Stage]) -> None:
        self._group = group
        self._owners = [placement.rank_of(stage) for stage in range(placement.num_stages - 1)]
        self._stages = stages
        self._known: OrderedDict[Hashable, list[Boundary]] = OrderedDict()
        self._latest: list[Boundary] | None = None

    def of(self, batch: Batch, num_micro_batches: int) -> list[list[Boundary]]:
        """By micro-batch and stage; every rank calls this for the same mini-batch."""
        return [self._of_one(batch, j) for j in range(num_micro_batches)]

    def _of_one(self, batch: Batch, microbatch: int) -> list[Boundary]:
        signature = batch.signature(microbatch)
        if signature is None and self._latest is not None:
            return self._latest
        if signature not in self._known:
            self._known[signature] = self._find(batch, microbatch)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._latest = self._known[signature]
        return self._latest

    def _find(self, batch: Batch, microbatch: int) -> list[Boundary]:
        """Stage by stage, each on the rank that holds it."""
        found: list[Boundary] = []
        for number, owner in enumerate(self._owners):
            mine = None
            if owner == self._group.rank:
                mine = self._describe(self._stages[number], batch, microbatch, found)
            found.append(self._group.share(mine, owner))
        return found

    def _describe(
        self, stage: Stage, batch: Batch, microbatch: int, found: Sequence[Boundary]
    ) -> Boundary:
        entry = found[-1] if found else None
        trained = any(True for _ in stage.parameters()) or (entry is not None and entry.trained)
        keywords = batch.named(microbatch)
        arguments = batch.arguments(microbatch) if entry is None else ()
        return Boundary.of(_try_out(stage, arguments, entry, keywords), trained=trained)


def _try_out(
    stage: Stage,
    arguments: tuple[Any, ...],
    entry: Boundary | None,
    keywords: Mapping[str, Any],
) -> Any:
    """The stage's output: on the meta device if its module can, else of zeros where it is."""
    try:
        return _run(stage, arguments, entry, keywords, torch.device("meta"))
    except Exception:  # what makes tensors of its own, or has its own kernels, cannot
        return _run(stage, arguments, entry, keywords, stage.device)


def _run(
    stage: Stage,
    arguments: tuple[Any, ...],
    entry: Boundary | None,
    keywords: Mapping[str, Any],
    device: torch.device,
) -> Any:
    if entry is not None:
        arguments = entry.arguments([t.zero_() for t in entry.activations(device)])
    arguments, keywords = pytree.tree_map_only(
        Tensor, lambda t: _like(t, device), (arguments, dict(keywords))
    )
    with torch.no_grad(), torch.random.fork_rng(), _evaluating(stage.module):
        if device.type != "meta":
            return stage.module(*arguments, **keywords)
        kept = [*stage.module.named_parameters(), *stage.module.named_buffers()]
        states = {name: torch.empty_like(t, device=device) for name, t in kept}
        return torch.func.functional_call(stage.module, states, arguments, dict(keywords))


def _like(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor there; of one that is on the meta device only the shape is known."""
    if tensor.is_meta and device.type != "meta":
        return torch.zeros_like(tensor, device=device)
    return tensor.to(device)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Nothing learns from a trial: running statistics stay, each part's mode comes back."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
