"""Checkpoints: complete or not there, keyed by layer and parameter names, readable by any plan.

`checkpointer` is imported by who needs it: it takes its time.
"""

from .folder import CheckpointFolder
from .options import CheckpointOptions
from .state import DataFingerprint, TrainingState

__all__ = ["CheckpointFolder", "CheckpointOptions", "DataFingerprint", "TrainingState"]
