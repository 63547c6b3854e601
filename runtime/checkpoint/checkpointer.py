"""Saves and restores a rank's layers and optimizer, asynchronously to training."""

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from synth.errors import Mismatch, SynthError, TrainingDiverged
from synth.run_options.checkpoint_options import LAST_GOOD, CheckpointOptions

from ..execution.transport.objects import gather_objects
from ..execution.weights.shared_tensor import SharedParameter
from ..optimize import StageSteps
from .agreement import agree, of_checkpoints, together
from .errors import Damaged
from .folder import CheckpointFolder
from .loading import find_targets, load_tensors
from .manifest import Manifest
from .optimizer_state import optimizer_state_of
from .regular_files import read_regular
from .saving import NotWritten, Saving, reason, stage
from .tensor_names import named_tensors, named_values
from .training_state import TrainingState
from .writer_assignment import Holding, WriterAssignment, assign_writers, holding_of

T = TypeVar("T")


def _talk(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Checkpointer:
    """One rank's part; every rank makes one, and calls each method, at the same time.

    Only rank 0 names and clears folders. Saving copies the tensors to host memory and returns; a
    thread writes them, over a process group of its own. A checkpoint that cannot be written is
    reported and dropped: training continues, and the previous checkpoint stays.
    """

    def __init__(
        self,
        options: CheckpointOptions,
        layers: Mapping[str, nn.Module],
        optimizer: StageSteps | Optimizer,
        *,
        timeout_s: float,
        shared: Mapping[nn.Parameter, SharedParameter] | None = None,
        restarted: bool = False,
        tell: Callable[[str], None] = _talk,
    ) -> None:
        """Inspect the folder.

        Args:
            options: the folder, the interval, and whether to resume.
            layers: this rank's layers, by name.
            optimizer: the optimizer of their parameters: the steps of `build_steps`, or one of
                torch's, of which the state of each parameter is saved, not its hyperparameters.
            timeout_s: the time after which a rank that does not write counts as dead.
            shared: the parameters of which this rank's optimizer updates a part.
            restarted: True if a launcher restarted this run's ranks: resume in any case, and from
                the last checkpoint if the options name a step.
            tell: called with a line about each checkpoint, on rank 0.

        Raises:
            SynthError: the folder cannot be used, holds checkpoints although resuming was not
                requested, or lacks the requested one.
        """
        if restarted and options.resume_from != LAST_GOOD:
            options = options.replace(resume=True, resume_from=None)
        self._options, self._layers, self._optimizer_state = (
            options,
            layers,
            optimizer_state_of(optimizer, shared),
        )
        self._folder = CheckpointFolder(options.folder)
        self._tell = tell
        with of_checkpoints():
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._is_first = dist.get_rank() == 0
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._saving: tuple[int, Future[None]] | None = None
        self.failed_step: int | None = None
        """The last checkpoint's step, if that one could not be written."""
        self._steps = self._agree(self._open_folder)

    def _open_folder(self) -> list[int]:
        self._folder.create()
        steps, wanted = self._folder.steps(), self._options.resume_from
        if steps and not self._options.resumes:
            raise SynthError(
                f"{self._folder.path} holds a checkpoint of step {steps[-1]}; --resume continues "
                f"from it, or give another folder"
            )
        if isinstance(wanted, int) and wanted not in steps:
            raise SynthError(
                f"{self._folder.path} holds no checkpoint of step {wanted}; there are those of "
                f"steps: {', '.join(map(str, steps)) or 'none'}"
            )
        return steps

    def restore(self, check: Callable[[TrainingState], None]) -> TrainingState | None:
        """Load a complete checkpoint into the layers and the optimizer: the last, or as requested.

        Later ones are then set aside. If it fails, the contents of layers and optimizer are
        undefined. Where weights move, buffers are loaded at the homes of their stages alone, and
        `Pipeline.broadcast_buffers` passes them on.

        Args:
            check: refuses a state that does not fit this run, before anything is loaded.

        Returns:
            The training state; None if there is no checkpoint yet.

        Raises:
            SynthError: the checkpoint is of another model, or damaged.
        """
        if not self._steps:
            if self._is_first and self._options.resumes:
                self._tell(f"no checkpoint in {self._folder.path} yet; starting at step 0")
            return None
        step, state = self._load_first_good(check)
        self._optimizer_state.loaded()
        if self._is_first:
            self._tell(f"resumed from {self._folder.of(step)}, made under plan {state.plan!r}")
        for path in self._agree(lambda: self._folder.set_aside(after=step)):
            if self._is_first:
                self._tell(f"a later checkpoint was set aside: {path}; delete it when you will")
        return state

    def _load_first_good(self, check: Callable[[TrainingState], None]) -> tuple[int, TrainingState]:
        """Try the checkpoints that may be resumed from, one after the other."""
        candidates = self._candidates()
        for step in candidates[:-1]:
            try:
                return step, self._load(step, check)
            except Damaged as error:
                if self._is_first:
                    self._tell(f"warning: {error}; trying the one before")
        try:
            return candidates[-1], self._load(candidates[-1], check)
        except Damaged as error:
            raise Damaged(f"{error}; {self._way_out(candidates)}") from None

    def _candidates(self) -> list[int]:
        wanted = self._options.resume_from
        if wanted == LAST_GOOD:
            return self._steps[::-1]
        return self._steps[-1:] if wanted is None else [int(wanted)]

    def _way_out(self, tried: list[int]) -> str:
        others = [str(step) for step in self._steps if step not in tried]
        if not others:
            return "no other checkpoint is there; give another folder to start again"
        return (
            f"--resume-from {LAST_GOOD} continues from the last intact one, --resume-from STEP "
            f"from another (there are those of steps: {', '.join(others)})"
        )

    def _load(self, step: int, check: Callable[[TrainingState], None]) -> TrainingState:
        path = self._folder.of(step)
        try:
            manifest = self._agree(lambda: self._read_manifest(step))
            state = manifest.state() if isinstance(manifest, Manifest) else manifest
        except Damaged as error:
            raise Damaged(f"cannot load the checkpoint {path}: {error}") from None
        together(lambda: check(state), self._group)
        try:
            if isinstance(manifest, Manifest):
                together(lambda: self._load_named(path, manifest), self._group)
            else:
                self._load_version_1(path, manifest)
        except Mismatch as error:
            raise type(error)(f"cannot load the checkpoint {path}: {error}") from None
        return state

    def _read_manifest(self, step: int) -> Manifest | TrainingState:
        path = self._folder.state_file(self._folder.of(step))
        found = Manifest.unsealed(read_regular(path), path.name)
        if found.step != step:
            raise Damaged(f"{path.name} is of another checkpoint, of step {found.step}")
        return found

    def _load_named(self, path: Path, manifest: Manifest) -> None:
        load_tensors(path, manifest, self._targets(manifest.names, manifest.step, manifest))

    def _load_version_1(self, path: Path, state: TrainingState) -> None:
        from .version_1 import load_version_1, read_metadata  # slow to import

        names = self._agree(lambda: set(read_metadata(path).state_dict_metadata))
        targets = together(lambda: self._targets(names, state.step), self._group)
        load_version_1(path, targets, self._group)
        if self._is_first:
            self._tell(
                f"warning: {path} is of format version 1, which has no checksums and names neither "
                f"data nor optimizer: nothing of it was verified; the next checkpoint has them"
            )

    def _targets(
        self, saved: set[str], step: int, manifest: Manifest | None = None
    ) -> dict[str, Tensor]:
        ignore = self._options.ignore_optimizer
        state = self._optimizer_state
        return find_targets(
            self._layers, state, saved, manifest, step=step, ignore_optimizer=ignore
        )

    def save(self, state: TrainingState) -> None:
        """Start writing a checkpoint; waits for the one before.

        Raises:
            TrainingDiverged: a parameter is NaN or infinite.
            SynthError: a tensor is of a kind that cannot be stored.
        """
        self.wait()
        self._optimizer_state.finish()
        tensors = named_tensors(self._layers, self._optimizer_state)
        assignment = self._assign_writers(holding_of(tensors), state.step)
        if isinstance(assignment, NotWritten):
            written: Future[None] = Future()
            written.set_exception(assignment)
        else:
            saving = Saving(self._folder, state, self._options.keep, self._group)
            staged = stage(tensors, assignment)
            values = named_values(self._layers, self._optimizer_state)
            written = self._thread.submit(saving.run, staged, assignment.aliases, values)
        self._saving = (state.step, written)

    def _assign_writers(self, own: Holding, step: int) -> WriterAssignment | NotWritten:
        """Agree on the tensors that each rank writes, unless rank 0 cannot write at all.

        Parameters that are not finite are refused: their checkpoint would replace good ones.
        """
        if self._is_first and own.refusal is None and own.not_finite is None:
            try:
                self._folder.begin(step)
            except (SynthError, OSError) as error:
                own.obstacle = reason(error)
        with of_checkpoints():
            found: list[Holding] = gather_objects(own, self._group)
        refusal = _refusal(found, step)
        if refusal is not None:
            if self._is_first:
                self._folder.discard(step)
            raise refusal
        obstacle = found[0].obstacle
        return assign_writers(found) if obstacle is None else NotWritten(obstacle)

    def poll(self) -> None:
        """Report the checkpoint in progress, if it has ended meanwhile."""
        if self._saving is not None and self._saving[1].done():
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint in progress is complete, or has failed and been reported."""
        if self._saving is None:
            return
        step, written = self._saving
        self._saving = None
        error = written.exception()
        if error is None:
            self.failed_step = None
            if self._is_first:
                self._tell(f"checkpoint of step {step} written to {self._folder.of(step)}")
            return
        self.failed_step = step
        if self._is_first:
            self._folder.discard(step)
            there = self._folder.steps()
            kept = f"that of step {there[-1]} is" if there else "none is"
            self._tell(
                f"warning: the checkpoint of step {step} could not be written: {reason(error)}; "
                f"the last complete one: {kept} there; training continues"
            )

    def close(self) -> None:
        """Wait for the checkpoint in progress, and end the thread and the group."""
        self.wait()
        self._thread.shutdown()
        dist.destroy_process_group(self._group)

    def _agree(self, look: Callable[[], T]) -> T:
        return agree(look, f"cannot read {self._folder.path}", self._group)


def _refusal(holdings: Sequence[Holding], step: int) -> SynthError | None:
    """Return the error to raise if a rank holds tensors of which no checkpoint may be made."""
    for holding in holdings:
        if holding.refusal is not None:
            return SynthError(holding.refusal)
        if holding.not_finite is not None:
            return TrainingDiverged(
                f"{holding.not_finite} is not finite after step {step}; no checkpoint is made of "
                f"that; lower --lr, or clip with --clip"
            )
    return None
