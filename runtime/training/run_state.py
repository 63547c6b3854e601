"""The state of a run: the step from which this process trains, and the last one that counts."""

import math

from synth.errors import TrainingDiverged
from synth.run_options.train_options import DEFAULT_STEPS, TrainOptions
from synth.schedule.files.plan_file import Plan

from ..checkpoint import TrainingState
from ..optimize import StageSteps
from .batches import Batches
from .run_checkpoints import RunCheckpoints
from .run_data import RunData
from .update_counts import UpdateCounts


class RunState:
    """Restores the state of a run from a checkpoint, and counts its steps.

    Attributes:
        start: the state before the first step of this process: step 0, or that of a checkpoint.
        done: the state after the last step that counts; checkpoints contain it.
    """

    def __init__(
        self,
        plan: Plan,
        options: TrainOptions,
        data: RunData,
        batches: Batches,
        checkpoints: RunCheckpoints,
    ) -> None:
        """Begin at step 0."""
        self._plan, self._options, self._data = plan, options, data
        self._batches, self._checkpoints = batches, checkpoints
        self._update_counts = UpdateCounts(plan)
        self.start = self.done = TrainingState(
            step=0,
            sequences=0,
            seed=options.seed,
            model=options.model or plan.workload.model,
            layers=plan.layers,
            plan=plan.name,
            updates=self._update_counts.none,
        )

    def restore(self, optimizer: StageSteps) -> None:
        """Continue from a checkpoint if there is one; all ranks call this at the same time.

        Args:
            optimizer: the optimizer of this rank, which gets the counts of its updates.

        Raises:
            SynthError: this run cannot continue from the checkpoint.
        """
        if not self._checkpoints.are_wanted:
            return
        plan, options = self._plan, self._options
        # Post-validation does not change results, so the checkpoint may differ in it.
        spec = options.optimizer_of(plan.workload.optimizer).replace(post_validation=False)
        own = self.start.replace(optimizer=str(spec), data=self._data.fingerprint())
        found = self._checkpoints.restore(
            lambda state: own.check_goes_on(state, self._steps_from(state), options.checkpoint)
        )
        if found is not None:
            updates = self._updates_of(found)
            self._update_counts.restore(updates, optimizer)
            own = own.replace(step=found.step, sequences=found.sequences, updates=updates)
        self.start = self.done = own
        self._batches.go_to(self.start.sequences)

    @property
    def own_steps(self) -> int:
        """The number of steps of the run, as far as this rank's data allows."""
        return self._steps_from(self.start)

    def count(self, mean_losses: dict[int, float]) -> None:
        """Count the steps with these losses.

        Raises:
            TrainingDiverged: a loss is NaN or Inf.
        """
        for step, mean_loss in mean_losses.items():
            if not math.isfinite(mean_loss):
                self._checkpoints.wait()  # the last good one is still being written, perhaps
                raise TrainingDiverged(
                    f"the loss of step {step} is {mean_loss}; lower --lr, or clip with --clip"
                )
            self.done = self.done.replace(
                step=step + 1,
                sequences=self.done.sequences + self._batches.sequences_per_step,
                updates=self._update_counts.after(1, self._updates_of(self.done)),
            )

    def remark(self, num_steps: int) -> str | None:
        """A remark if the run had nothing to do, or its data ended early; else None.

        Args:
            num_steps: the number of steps of the run, on all ranks.
        """
        options = self._options
        if self.start.step == num_steps:
            return f"nothing is left to do: the checkpoint holds all {num_steps} steps of this run"
        if num_steps == self._requested_steps:
            return None
        of_requested = "" if options.steps is None else f" of {options.steps}"
        return (
            f"the data ended after {num_steps}{of_requested} steps "
            f"({options.epochs} epoch(s) of {self._data.sequences_per_epoch} sequences)"
        )

    @property
    def _requested_steps(self) -> int | None:
        """The requested number of steps; None: until the data ends."""
        options = self._options
        return options.steps or (None if options.epochs else DEFAULT_STEPS)

    def _steps_from(self, start: TrainingState) -> int:
        """The number of steps of a run from `start`, as far as this rank's data allows."""
        left, requested = self._batches.steps_left(start), self._requested_steps
        limits = (requested, None if left is None else start.step + left)
        return min(limit for limit in limits if limit is not None)

    def _updates_of(self, state: TrainingState) -> tuple[int, ...]:
        """By layer its updates; of a file that has none, those of as many steps of this plan."""
        counts = self._update_counts
        return state.updates or counts.after(state.step, counts.none)
