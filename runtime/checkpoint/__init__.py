"""Checkpoints: complete or absent, keyed by layer and parameter names, readable by any plan.

`checkpointer` is imported where it is used, because its import takes long.
"""

from synth.run_options.checkpoint_options import CheckpointOptions

from .folder import CheckpointFolder
from .training_state import DataFingerprint, TrainingState

__all__ = ["CheckpointFolder", "CheckpointOptions", "DataFingerprint", "TrainingState"]
