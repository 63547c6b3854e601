"""One rank's part in writing a checkpoint: staged in host memory, then written by a thread."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ..execution.gradients.all_reduce import is_sharded
from ..execution.transport.objects import broadcast_object, gather_objects
from .agreement import of_checkpoints
from .folder import CheckpointFolder
from .manifest import Manifest, StoredFile, StoredTensor
from .rank_file import host_copy, write_tensors
from .training_state import TrainingState
from .writer_assignment import WriterAssignment

Values = Mapping[str, Mapping[str, Any]]
"""Optimizer state that is no tensor, by parameter and name."""


class NotWritten(Exception):
    """A checkpoint could not be written; the message is the reason."""


@dataclass
class _Report:
    """The file and tensors that a rank has written, or its failure."""

    file: tuple[str, StoredFile] | None = None
    tensors: Mapping[str, StoredTensor] | None = None
    values: Values = field(default_factory=dict)
    failure: str | None = None


def stage(tensors: Mapping[str, Tensor], assignment: WriterAssignment) -> dict[str, Tensor]:
    """Copy the tensors that this rank writes to host memory; sharded ones one by one."""
    rank, staged = dist.get_rank(), {}
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        if is_sharded(tensor):
            tensor = tensor.full_tensor()  # type: ignore[attr-defined]
        if assignment.writers.get(name) == rank:
            staged[name] = host_copy(tensor)
    return staged


class Saving:
    """Writes one checkpoint; `run` is called on all ranks, in a thread of each."""

    def __init__(
        self, folder: CheckpointFolder, state: TrainingState, keep: int, group: Any
    ) -> None:
        """Prepare to write.

        Args:
            folder: where; rank 0 has begun the checkpoint there.
            keep: the number of checkpoints to keep.
            group: the group of all ranks, used by nothing else meanwhile.
        """
        self._folder, self._state, self._keep, self._group = folder, state, keep, group

    def run(self, staged: dict[str, Tensor], aliases: Mapping[str, str], values: Values) -> None:
        """Write this rank's file; rank 0 then completes the checkpoint when all ranks have written.

        `values` is this rank's optimizer state that is no tensor.

        Raises:
            NotWritten: a rank could not write; raised on all ranks.
        """
        report = self._write(staged)
        report.values = values
        with of_checkpoints():
            reports: list[_Report] = gather_objects(report, self._group)
        outcome = self._complete(reports, aliases) if dist.get_rank() == 0 else None
        with of_checkpoints():
            outcome = broadcast_object(outcome, 0, self._group)
        if outcome is not None:
            raise NotWritten(outcome)

    def _write(self, staged: dict[str, Tensor]) -> _Report:
        if not staged:
            return _Report()
        path = self._folder.partial(self._state.step) / f"rank-{dist.get_rank()}.safetensors"
        try:
            file, tensors = write_tensors(path, staged, self._state.step)
        except Exception as error:
            return _Report(failure=f"rank {dist.get_rank()}: {reason(error)}")
        return _Report((path.name, file), tensors)

    def _complete(self, reports: list[_Report], aliases: Mapping[str, str]) -> str | None:
        """On rank 0: declare the checkpoint complete, or return the reason why it is not."""
        failure = next((r.failure for r in reports if r.failure is not None), None)
        if failure is not None:
            return failure
        try:
            manifest = Manifest.model_validate(
                {
                    **dict(self._state),
                    "files": dict(r.file for r in reports if r.file is not None),
                    "tensors": {n: t for r in reports for n, t in (r.tensors or {}).items()},
                    "aliases": dict(aliases),
                    "optimizer_values": {n: v for r in reports for n, v in r.values.items()},
                }
            )
            self._folder.complete(self._state.step, manifest.sealed(), self._keep)
        except Exception as error:
            return f"rank 0: {reason(error)}"
        return None


def reason(error: BaseException) -> str:
    """Return a one-line message for an error."""
    if isinstance(error, OSError):
        if error.errno == errno.ENOSPC:
            return "no space left on the device"
        return error.strerror or str(error)
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
