"""The sizes of saved activations that move to another rank, so that it can allocate buffers.

The owner of a stage knows the sizes once it has saved the activations, but the other rank needs
them earlier. Therefore a forward of each kind is run once, with its graph, and its rank sends the
sizes.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Lowered

from ...batch import Batch
from ...state.module_state import unchanged
from ..base.boundary import Boundary
from ..base.stage_protocol import ForwardInput
from ..base.step_table import SavedSizes, Shapes
from ..transport.rank_group import RankGroup
from .stage import Stage

Sizes = tuple[int, ...]


class _HostedMicroBatch(NamedTuple):
    """A micro-batch of a stage whose saved activations move to another rank."""

    stage: int
    microbatch: int
    owner: int
    fused: bool


class SizeFinder:
    """Finds, together with the other ranks, the sizes of activations that move between ranks."""

    def __init__(self, group: RankGroup, lowered: Lowered, stages: Mapping[int, Stage]) -> None:
        self._group = group
        self._stages = stages
        self._hosted = _hosted(lowered)
        self._known: dict[Hashable, Sizes] = {}
        self._last: tuple[Shapes | None, SavedSizes] = (None, {})

    def of(self, batch: Batch, shapes: Shapes, kinds: Sequence[Hashable]) -> SavedSizes:
        """Return the sizes by stage and micro-batch; every rank calls this for the same mini-batch.

        Args:
            batch: this rank's part of it.
            shapes: boundaries by micro-batch and stage; the same object as before if they are the
                same.
            kinds: by micro-batch, the properties that shapes depend on.

        Raises:
            SynthError: on all ranks, if a stage's trial fails.
        """
        if self._hosted and self._last[0] is not shapes:
            self._last = (
                shapes,
                {
                    (each.stage, each.microbatch): self._sizes(each, batch, shapes, kinds)
                    for each in self._hosted
                },
            )
        return self._last[1]

    def _sizes(
        self, hosted: _HostedMicroBatch, batch: Batch, shapes: Shapes, kinds: Sequence[Hashable]
    ) -> Sizes:
        key = hosted.stage, hosted.fused, kinds[hosted.microbatch]
        if key not in self._known:
            entry = shapes[hosted.microbatch][hosted.stage - 1] if hosted.stage else None
            self._known[key] = self._group.agree(hosted.owner, self._trial(hosted, batch, entry))
        return self._known[key]

    def _trial(
        self, hosted: _HostedMicroBatch, batch: Batch, entry: Boundary | None
    ) -> Callable[[], Sizes]:
        def find() -> Sizes:
            try:
                return _try_out(self._stages[hosted.stage], hosted, batch, entry)
            except torch.OutOfMemoryError as error:
                raise SynthError(
                    f"stage {hosted.stage}, whose saved activations move, does not fit on the "
                    f"device beside this rank, to find their sizes: {error}"
                ) from error
            except Exception as error:
                raise SynthError(
                    f"stage {hosted.stage} cannot be run on what it is given: "
                    f"{type(error).__name__}: {error}"
                ) from error

        return find


def _hosted(lowered: Lowered) -> list[_HostedMicroBatch]:
    """All micro-batches whose activations move to other ranks, in the same order on every rank."""
    listed = {op for ops in lowered.ops for op in ops}
    return sorted(
        _HostedMicroBatch(
            op.stage,
            op.microbatch,
            lowered.schedule.placement.rank_of(op.stage, op.replica),
            op._replace(kind=OpKind.BW) in listed,
        )
        for op in listed
        if op.kind == OpKind.HOST_FOR
    )


def _try_out(
    stage: Stage, hosted: _HostedMicroBatch, batch: Batch, entry: Boundary | None
) -> Sizes:
    """Find the sizes by F with its graph, on zeros if another stage gives the input.

    A stand-in for a rank that takes no steps has zeros in place of all data meanwhile: without data
    other kernels would run, which may save something else.
    """
    if stage.device.type != "meta":
        return _run(stage, hosted, batch, entry)
    stage.module.to_empty(device=stage.trial_device)
    try:
        with torch.no_grad():
            for tensor in (*stage.module.parameters(), *stage.module.buffers()):
                tensor.zero_()
        return _run(stage, hosted, batch, entry)
    finally:
        stage.module.to("meta")


def _run(stage: Stage, hosted: _HostedMicroBatch, batch: Batch, entry: Boundary | None) -> Sizes:
    """Run F with its graph, take what it saved, and leave no trace."""
    device, j = stage.device, hosted.microbatch
    arguments = (
        batch.arguments(j) if entry is None else tuple(x.zero_() for x in entry.activations(device))
    )
    # The batch of a stand-in is on the CPU.
    arguments = pytree.tree_map_only(Tensor, lambda t: t.to(device), arguments)
    targets = batch.targets[j] if stage.is_last and batch.targets is not None else None
    drawn = [device] if device.type == "cuda" else []
    random = torch.random.fork_rng(devices=drawn)
    given = (arguments, targets, batch.named(j))
    with random, unchanged(stage.module, stage.loss, given=given):
        try:
            stage.forward(
                j,
                ForwardInput(
                    arguments, entry, targets, batch.named(j), fused=hosted.fused, moved=True
                ),
            )
            stage.take_saved(j)
            return stage.saved_sizes(j)
        finally:
            stage.forget()
