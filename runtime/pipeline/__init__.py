"""The pipeline as a library: `Pipeline`, and `PipelineOptions` to share options between several."""

from .options import PipelineOptions
from .pipeline import Pipeline

__all__ = ["Pipeline", "PipelineOptions"]
