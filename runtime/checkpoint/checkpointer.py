"""Saving and restoring through torch.distributed.checkpoint, behind the back of training."""

import errno
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.optim import Optimizer

from synth.errors import Mismatch, SynthError, TrainingDiverged

from ..optimize import StageSteps
from .folder import CheckpointFolder
from .kept import kept_by
from .named import named_tensors, never_stepped
from .options import CheckpointOptions
from .state import TrainingState
from .writer import CheckpointWriter


def _talk(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Checkpointer:
    """One rank's part; every rank makes one, and calls each method, at the same time.

    Rank 0 alone names and clears folders. Saving copies the tensors to host memory and goes on;
    a thread writes them, over a process group of its own. A checkpoint that cannot be written is
    told and given up: training goes on, and the one before stays.
    """

    def __init__(
        self,
        options: CheckpointOptions,
        layers: Mapping[str, nn.Module],
        optimizer: StageSteps | Optimizer,
        *,
        timeout_s: float,
        restarted: bool = False,
        tell: Callable[[str], None] = _talk,
    ) -> None:
        """Look at what the folder holds.

        Args:
            options: where, how often, and whether to go on from what is there.
            layers: this rank's, by name.
            optimizer: of their parameters: the steps of `build_steps`, or one of torch's. Of the
                latter what it keeps of each parameter is saved, not its hyperparameters.
            timeout_s: after which a rank that does not write counts as dead.
            restarted: a launcher started this run's ranks anew: go on in any case.
            tell: of each checkpoint, on rank 0.

        Raises:
            SynthError: the folder cannot be used, or holds checkpoints and was not to be resumed.
        """
        self._options, self._layers, self._kept = options, layers, kept_by(optimizer)
        self._folder = CheckpointFolder(options.folder)
        self._tell = tell
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._is_first = dist.get_rank() == 0
        self._saving: tuple[int, Future[None]] | None = None
        self.failed_step: int | None = None
        """The last checkpoint's step, if that one could not be written."""
        go_on = options.resume or restarted
        self._latest: int | None = self._agree(lambda: self._open_folder(go_on))

    def _open_folder(self, go_on: bool) -> int | None:
        self._folder.create()
        steps = self._folder.steps()
        if steps and not go_on:
            raise SynthError(
                f"{self._folder.path} holds a checkpoint of step {steps[-1]}; --resume goes on "
                f"from it, or give another folder"
            )
        return steps[-1] if steps else None

    def restore(self, check: Callable[[TrainingState], None]) -> TrainingState | None:
        """Load the last complete checkpoint into the layers and the optimizer.

        Args:
            check: refuses what does not fit this run, before anything is loaded.

        Returns:
            Where training stood; none if there is no checkpoint yet.

        Raises:
            SynthError: the checkpoint is of another model, or damaged.
        """
        if self._latest is None:
            if self._is_first and self._options.resume:
                self._tell(f"no checkpoint in {self._folder.path} yet; starting at step 0")
            return None
        path = self._folder.of(self._latest)
        text = self._agree(lambda: self._folder.state_file(path).read_text())
        state = TrainingState.from_json(text, str(self._folder.state_file(path)))
        check(state)
        tensors = self._targets(self._agree(lambda: _names_in(path)), state.step)
        try:
            load(tensors, storage_reader=FileSystemReader(path), process_group=self._group)
        except CheckpointException as error:
            raise Mismatch(f"cannot load the checkpoint {path}: {_reason(error)}") from None
        self._kept.loaded()
        if self._is_first:
            self._tell(f"resumed from {path}, made under plan {state.plan!r}")
        return state

    def _targets(self, saved: Sequence[str], step: int) -> dict[str, Tensor]:
        """What to load into; parameters that had taken no step are to have no state here either.

        After steps at least some have state, unless another optimizer took them that keeps none:
        then all of ours is asked for, and refused.
        """
        self._kept.finish()
        self._kept.allocate()
        tensors = named_tensors(self._layers, self._kept)
        if step > 0 and not any(name.startswith("optimizer.") for name in saved):
            return tensors
        fresh = never_stepped(self._layers, saved)
        for parameter in fresh.values():
            self._kept.forget(parameter)
        return {name: t for name, t in tensors.items() if name.rpartition(".")[0] not in fresh}

    def save(self, state: TrainingState) -> None:
        """Start writing a checkpoint; waits for the one before.

        Raises:
            TrainingDiverged: a parameter is no number any more.
        """
        self.wait()
        self._kept.finish()
        tensors = named_tensors(self._layers, self._kept)
        self._check_finite(tensors, state.step)
        partial = self._folder.partial(state.step)
        upload = async_save(
            tensors, storage_writer=CheckpointWriter(partial), process_group=self._group
        )
        assert isinstance(upload, Future)  # other stagers than the default give more
        done: Future[None] = Future()
        upload.add_done_callback(lambda written: self._finish(written, state, done))
        self._saving = (state.step, done)

    def _finish(self, written: "Future[Any]", state: TrainingState, done: "Future[None]") -> None:
        """In the writing thread: declare complete what all ranks have written."""
        try:
            written.result()
            if self._is_first:
                state.save(self._folder.state_file(self._folder.partial(state.step)))
                self._folder.complete(state.step, self._options.keep)
        except BaseException as error:  # CheckpointException is no Exception
            done.set_exception(error)
        else:
            done.set_result(None)

    def poll(self) -> None:
        """Tell of the checkpoint under way, if it has come to an end meanwhile."""
        if self._saving is not None and self._saving[1].done():
            self.wait()

    def wait(self) -> None:
        """Until the checkpoint under way is complete, or has failed and is told."""
        if self._saving is None:
            return
        step, done = self._saving
        self._saving = None
        error = done.exception()
        if error is None:
            self._latest, self.failed_step = step, None
            if self._is_first:
                self._tell(f"checkpoint of step {step} written to {self._folder.of(step)}")
            return
        self.failed_step = step
        if self._is_first:
            self._folder.discard(step)
            kept = "none is" if self._latest is None else f"that of step {self._latest} is"
            self._tell(
                f"warning: the checkpoint of step {step} could not be written: {_reason(error)}; "
                f"the last complete one: {kept} there; training goes on"
            )

    def _check_finite(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """A checkpoint of what is no number would only damage the ones that it replaces."""
        bad = next((name for name, t in tensors.items() if not _is_finite(t)), None)
        found: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(found, bad, self._group)
        names = [name for name in found if name is not None]
        if names:
            raise TrainingDiverged(
                f"{names[0]} is not finite after step {step}; no checkpoint is made of that; "
                f"lower --lr, or clip with --clip"
            )

    def _agree(self, look: Callable[[], Any]) -> Any:
        """Rank 0's answer, or its refusal, on all ranks."""
        answer: list[Any] = [None, None]
        if self._is_first:
            try:
                answer[0] = look()
            except SynthError as error:
                answer[1] = error
            except OSError as error:
                reason = error.strerror or error
                answer[1] = SynthError(f"cannot read {self._folder.path}: {reason}")
        dist.broadcast_object_list(answer, 0, self._group)
        if answer[1] is not None:
            raise answer[1]
        return answer[0]


def _names_in(path: Path) -> list[str]:
    """The tensors that a checkpoint lists."""
    try:
        return list(FileSystemReader(path).read_metadata().state_dict_metadata)
    except Exception as error:  # it is unpickled: whatever damage makes of that
        raise Mismatch(f"cannot load the checkpoint {path}: {_reason(error)}") from None


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    low, high = torch.aminmax(tensor)  # a nan is both; needs no copy of the tensor
    return bool(torch.isfinite(low) and torch.isfinite(high))


def _reason(error: BaseException) -> str:
    """What went wrong, of the first rank that says so, in a line."""
    if isinstance(error, CheckpointException):
        rank, (inner, _) = min(error.failures.items())
        return f"rank {rank}: {_reason(inner)}"
    if isinstance(error, OSError):
        if error.errno == errno.ENOSPC:
            return "no space left on the device"
        return error.strerror or str(error)
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
