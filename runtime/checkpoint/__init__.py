"""Checkpoints: complete or not there, keyed by layer and parameter names, readable by any plan.

`checkpointer` is imported by who needs it: torch.distributed.checkpoint takes its time.
"""

from .folder import CheckpointFolder
from .options import CheckpointOptions
from .state import TrainingState

__all__ = ["CheckpointFolder", "CheckpointOptions", "TrainingState"]
