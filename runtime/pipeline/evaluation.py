"""Evaluation: the forwards of a pipeline alone, without autograd."""

from functools import cached_property

import torch
from torch import Tensor

from ..batch import Batch
from ..execution.base.clock import OpClock
from ..execution.base.loss_terms import LossTerms
from ..execution.base.rank_context import RankContext
from ..execution.gradients.reductions import Reductions
from ..execution.program.compiled_program import CompiledProgram
from ..execution.program.executor import Executor
from ..execution.program.forward_only import forward_only
from .connections import Connections
from .groups import PipelineGroups
from .rank_parts import RankParts


class ForwardEvaluation:
    """The forwards of one rank."""

    def __init__(self, parts: RankParts, groups: PipelineGroups, connections: Connections) -> None:
        """Prepare nothing yet; many pipelines only train."""
        self._parts, self._groups, self._connections = parts, groups, connections

    def run(self, batch: Batch, terms: LossTerms, *, with_loss: bool) -> Tensor | None:
        """Run the forwards of a mini-batch; all ranks call this at the same time.

        Args:
            batch: of as many micro-batches as the schedule.
            terms: the weights of the losses, and what collects them.
            with_loss: False if only the outputs are asked for.

        Returns:
            The loss on ranks that hold the last stage, else None.
        """
        connections, lowered = self._connections, self._parts.lowered
        shapes = connections.shapes.of(batch, lowered.schedule.num_micro_batches)
        with torch.no_grad():
            connections.warm_up.before_evaluation(
                batch, shapes, connections.shapes.kinds, with_loss=with_loss
            )
            loss = self._executor.step(batch, shapes, terms=terms, update=False)
        for stage in self._parts.stages.values():
            stage.forget()
        return loss

    @cached_property
    def _executor(self) -> Executor:
        context = RankContext(
            lowered=forward_only(self._parts.lowered),
            rank=self._groups.pipeline.rank,
            stages=self._parts.stages,
            channels=self._connections.channels,
            device=self._parts.device,
            clock=OpClock(self._parts.device, recording=False),
        )
        program = CompiledProgram(
            context, kept=self._connections.kept, reductions=Reductions(self._connections.reducer)
        )
        return Executor(program, on_failure=self._groups.announce)
