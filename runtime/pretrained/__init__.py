"""Weights of whole models in files: folders of Hugging Face, and distributed checkpoints of torch.

Tensors have the names that they have in the whole model. Each rank reads and writes what it holds.
"""

from .all_ranks import AllRanks
from .loading import load_weights
from .saving import save_weights

__all__ = ["AllRanks", "load_weights", "save_weights"]
