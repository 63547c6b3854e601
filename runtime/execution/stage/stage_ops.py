"""The ops of a rank's stages, as the executor runs them: F, R, B, BW and W.

F        stage's input in the table -> its output there; on the last stage, adds to the loss
R        stage's input in the table -> saved activations, in the stage
         what F keeps for R is in the stage, and in the table if R runs on another rank
B, BW    gradient of the output in the table -> gradient of the input there
W        does not use the table
"""

from collections.abc import Callable, Collection, Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.schedule.arrays import Cell
from synth.schedule.ops import Op, ValueKind

from ..base.boundary import Boundary, Tensors, packed, unpacked
from ..base.loss_terms import LossTerms
from ..base.rank_context import RankContext
from ..base.stage_protocol import ForwardInput
from ..base.step_table import StepTable
from .offload_ops import OffloadOps, Work
from .stage_output import versions_of

_Run = Callable[[int, ForwardInput], Any]
_NO_SLOT = -1  # of the first stage's inputs


class StageOps:
    """Makes a function for each op of a rank, with slots and stages looked up beforehand."""

    def __init__(self, context: RankContext, moves: OffloadOps, rebuilt: Collection[Cell]) -> None:
        """Prepare a rank.

        Args:
            moves: the moves of its stages' saved activations.
            rebuilt: stages and micro-batches with an R, on whichever rank.
        """
        ops = context.ops
        self._fused = {op[1:] for op in ops if op.kind == OpKind.BW}
        self._rebuilt = frozenset(rebuilt)
        # Those of which this rank runs F and R.
        self._replayed = {op[1:] for op in ops if op.kind == OpKind.R}
        self._replayed &= {op[1:] for op in ops if op.kind == OpKind.F}
        self._stages, self._moves = context.stages, moves
        self._slots, self._table = context.slots, context.table
        self.loss = torch.zeros((), device=context.device)
        """The weighted sum of the losses so far."""
        self._seeds: dict[int, Tensors] = {}
        self._usual: tuple[Hashable, Tensors] | None = None

    def forward(self, op: Op) -> Work:
        """Return F as a function."""
        stage = self._stages[op.stage]
        run = stage.forward_light if op[1:] in self._rebuilt else stage.forward
        give = self._giving(op)
        source = self._slots.of(ValueKind.ACT, op.stage - 1, op) if op.stage else _NO_SLOT
        if stage.is_last:
            work = partial(self._forward_to_loss, op, run, give, source)
        else:
            made = self._slots.of(ValueKind.ACT, op.stage, op)
            work = partial(self._forward, op, run, give, source, made)
        if op[1:] not in self._rebuilt or op[1:] in self._replayed:
            return work
        left = self._slots.of(ValueKind.REPLAY_INPUT, op.stage, op)

        def leaving() -> None:
            work()
            self._table.values[left] = stage.give_replay(op.microbatch)

        return leaving

    def rebuild(self, op: Op) -> Work:
        """Return R as a function."""
        stage, give = self._stages[op.stage], self._giving(op)
        is_here = op[1:] in self._replayed
        left = self._slots.of(ValueKind.REPLAY_INPUT, op.stage, op)

        def work() -> None:
            if not is_here:
                given = self._table.values[left]
                if given is None:
                    raise RuntimeError(f"{op} before what its F kept has come")
                stage.take_replay(op.microbatch, given)
            stage.rebuild(op.microbatch, give())

        return work

    def backward(self, op: Op) -> Work:
        """Return B or BW as a function."""
        stage = self._stages[op.stage]
        run = stage.backward_input if op.kind == OpKind.B else stage.backward
        source = None if stage.is_last else self._slots.of(ValueKind.GRAD, op.stage, op)
        made = self._slots.of(ValueKind.GRAD, op.stage - 1, op) if op.stage else None
        work = partial(self._backward, op, run, source, made)
        return self._moves.backward(op, work) if self._moves.moves(op) else work

    def weights(self, op: Op) -> Work:
        """Return W as a function."""
        return partial(self._stages[op.stage].backward_weight, op.microbatch)

    def _giving(self, op: Op) -> Callable[[], ForwardInput]:
        """Return a function that makes the input of F or R."""
        source = self._slots.of(ValueKind.ACT, op.stage - 1, op) if op.stage else None
        is_last, fused = self._stages[op.stage].is_last, op[1:] in self._fused
        moved, microbatch = self._moves.moves(op), op.microbatch
        table, tapped = self._table, is_last and op.kind == OpKind.F

        def give() -> ForwardInput:
            arguments, entry = _input(table, microbatch, source, op.stage)
            batch = table.batch
            targets = batch.targets if is_last else None
            if targets is not None:
                targets = targets[microbatch]
            # A copy, because saved activations can only move if nothing else holds them.
            tap = table.terms.tap(microbatch, copied=moved) if tapped else None
            after = None if is_last else table.shapes[microbatch][op.stage]
            return ForwardInput(
                arguments, entry, targets, batch.named(microbatch), fused, moved, tap, after
            )

        return give

    def _forward(
        self, op: Op, run: _Run, give: Callable[[], ForwardInput], source: int, made: int
    ) -> None:
        outputs = run(op.microbatch, give())
        table = self._table
        # Nothing else reads an input that a stage of this rank gave, so F may have changed it.
        table.versions.pop((op.stage - 1, source), None)
        boundary = table.shapes[op.microbatch][op.stage]
        boundary.check(outputs, op.stage)
        table.values[made] = given = packed(boundary.leaves, outputs)
        self._check_unchanged(op.stage)
        table.versions[op.stage, made] = versions_of(given)

    def _check_unchanged(self, stage: int) -> None:
        """Refuse that a forward changes an output of an earlier one that is still needed."""
        values, versions = self._table.values, self._table.versions
        for of, slot in list(versions):
            if of != stage:
                continue
            value = values[slot]
            if value is None:
                del versions[of, slot]
            elif versions_of(value) != versions[of, slot]:
                raise SynthError(
                    f"stage {stage} has changed a tensor in place that it gave for an earlier "
                    f"micro-batch, which may not have been sent yet: let it give a copy (`clone`)"
                )

    def _forward_to_loss(
        self, op: Op, run: _Run, give: Callable[[], ForwardInput], source: int
    ) -> None:
        microbatch = op.microbatch
        found, terms = run(microbatch, give()), self._table.terms
        self._table.versions.pop((op.stage - 1, source), None)
        if not terms.with_loss:
            return
        (loss,) = found
        if loss.numel() != 1:
            raise SynthError(
                f"the last stage gave a tensor of shape {tuple(loss.shape)}; it must give the "
                f"loss, one number: give the pipeline a loss function, or end the model in one"
                + "; or give the batch its targets"
                * (self._table.batch.targets is None)
            )
        if loss.is_complex():
            raise SynthError("the loss is a complex number; give a real one, such as its `abs`")
        if loss.dtype == torch.float64:
            self.loss = self.loss.double()
        terms.add(self.loss, loss, microbatch)
        self._seeds[microbatch] = self._seed(terms, loss, microbatch)

    def _seed(self, terms: LossTerms, loss: Tensor, microbatch: int) -> Tensors:
        """The gradient that the micro-batch's backward starts from; usually the same for all."""
        weight = terms.weights[microbatch]
        if terms.scale is not None or isinstance(weight, Tensor):
            return (terms.seed(loss, microbatch),)
        kind = (loss.shape, loss.dtype, weight)
        if self._usual is None or self._usual[0] != kind:
            self._usual = kind, (terms.seed(loss, microbatch),)
        return self._usual[1]

    def _backward(
        self,
        op: Op,
        run: Callable[[int, Tensors], Tensors],
        source: int | None,
        made: int | None,
    ) -> None:
        values, microbatch = self._table.values, op.microbatch
        gradients = self._seeds[microbatch] if source is None else values[source]
        if gradients is None:
            raise RuntimeError(f"no gradient has come for micro-batch {microbatch}")
        if source is not None:
            boundary = self._table.shapes[microbatch][op.stage]
            gradients = unpacked(boundary.differentiable, gradients)
        found = run(microbatch, gradients)
        if made is not None:
            values[made] = found


def _input(
    table: StepTable, microbatch: int, source: int | None, stage: int
) -> tuple[tuple[Any, ...], Boundary | None]:
    """Return a stage's arguments, and their boundary if they came from a stage."""
    if source is None:
        return table.batch.arguments(microbatch), None
    tensors: tuple[Tensor, ...] | None = table.values[source]
    if tensors is None:
        raise RuntimeError(f"no input has come for stage {stage}, micro-batch {microbatch}")
    boundary = table.shapes[microbatch][stage - 1]
    return unpacked(boundary.leaves, tensors), boundary
