"""The updates of a rank's step: complete gradients are reduced, and STEPs update the parameters."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from synth.op_kinds import OpKind
from synth.schedule.ops import Op

from ..base.rank_context import RankContext
from ..base.stepper import Stepper
from ..gradients.reductions import Reductions
from ..weights.weight_passing import WeightPassing


class Updates:
    """Reduces gradients and carries out STEPs.

    Attributes:
        stepper: updates the parameters; None: the caller does after the step.
        wanted: False: the gradients of this step only accumulate.
    """

    def __init__(
        self, context: RankContext, weight_passing: WeightPassing | None, reductions: Reductions
    ) -> None:
        """Find the ops that complete gradients, and the STEPs that update.

        If weights have versions, each STEP updates its stage, and waits at most for the same update
        on other ranks. Otherwise a stage is updated once, after all gradients of the rank are
        reduced.

        Args:
            weight_passing: delivers the accumulated gradients, which are complete at the last
                STEP; None: weights stay.
        """
        self.stepper: Stepper | None = None
        self.wanted = False
        self._stages, self._table = context.stages, context.table
        self._weight_passing = weight_passing
        self._reducer, self._data_parallel = reductions.reducer, reductions.data_parallel
        self._on_gradients = reductions.on_gradients
        self._at_every_step = context.lowered.versions is not None
        ops = context.ops
        backwards = _last_backwards(ops)
        self._has_backwards = bool(backwards)
        self._last_backwards = backwards if weight_passing is None else set()
        self._updates_at = _updating_steps(ops, at_last=weight_passing is not None)
        if self._at_every_step:
            self._updates_at = {op: (op.stage,) for op in ops if op.kind == OpKind.STEP}

    def begin(self, *, update: bool) -> None:
        """Begin a step.

        Args:
            update: see `wanted`.

        Raises:
            SynthError: gradients are to be reduced of other parameters than the ranks agreed on.
        """
        self.wanted = update
        if not self._has_backwards:
            return
        if self._reducer is not None:
            self._reducer.begin(steps=self.stepper is not None)
        if self._data_parallel is not None:
            self._data_parallel.begin()

    def after(self, op: Op, run: Callable[[], None]) -> Callable[[], None]:
        """Return a function that runs an op, then reduces the gradients that it completes."""
        return partial(self._complete, op.stage, run) if op in self._last_backwards else run

    def prepare(self, op: Op) -> None:
        """Complete the gradients that a STEP uses, ahead of it."""
        if self._weight_passing is not None:
            self._weight_passing.deliver(op)
        if self._at_every_step:
            if self._reducer is not None:
                self._reducer.finish_update(op.stage)
            return
        if self.wanted and op in self._updates_at and not self._table.updating:
            self._before_update(op)

    def compile_step(self, op: Op) -> Callable[[], None]:
        """Return a STEP as a function, which updates the stages assigned to this op, if any."""
        return partial(self._optimizer_steps, self._updates_at.get(op, ()))

    def _complete(self, stage: int, run: Callable[[], None]) -> None:
        """Run the op that completes a stage's gradients, then start their reduction."""
        run()
        if self.wanted:
            self._start_reductions(stage)

    def _start_reductions(self, stage: int) -> None:
        self._stages[stage].reduce_gradients()
        if self._on_gradients is not None:
            self._on_gradients(stage)
        if self._data_parallel is not None:
            self._data_parallel.start(stage)

    def _before_update(self, step: Op) -> None:
        """Complete all gradients of the rank, and let the stepper compute their norm."""
        self._table.updating = True
        if self._reducer is not None:
            self._reducer.finish()
        if self._weight_passing is not None:
            for stage in self._updates_at[step]:
                self._start_reductions(stage)
        if self._data_parallel is not None:
            self._data_parallel.finish()
        if self.stepper is not None:
            self.stepper.synchronize()  # its gradients are static memory, never None
        elif self._weight_passing is not None:
            self._weight_passing.leave_out_unused()

    def _optimizer_steps(self, stages: Iterable[int]) -> None:
        if self.stepper is not None and self.wanted:
            for stage in stages:
                self.stepper.step(stage)


def _last_backwards(ops: Sequence[Op]) -> set[Op]:
    """The op of each stage of a rank after which its gradients are complete."""
    kinds = (OpKind.B, OpKind.W, OpKind.BW)
    return set({op.stage: op for op in ops if op.kind in kinds}.values())


def _updating_steps(ops: Sequence[Op], *, at_last: bool) -> dict[Op, tuple[int, ...]]:
    """By STEP the stages that it updates, where each stage is updated once in an iteration.

    Copies of a stage on one rank share parameters, so only the first STEP of the stage updates it.

    Args:
        at_last: True if gradients arrive until the last STEP. It then updates all stages, because
            the global norm needs all gradients.
    """
    steps = [op for op in ops if op.kind == OpKind.STEP]
    first = {op.stage: op for op in reversed(steps)}
    if at_last and steps:
        return {steps[-1]: tuple(sorted(first))}
    return {op: (stage,) for stage, op in first.items()}
