"""Models as lists of layers, from which a pipeline makes stages.

The contract, for built-in models and user models alike: every layer is an `nn.Module`. The first
takes token ids (int64 [batch, time]) or whatever the data yields. Every other takes the output of
the previous one. The last is called `layer(x, targets)` and returns the scalar mean loss. Layers
may share parameters; if they are on different ranks, these are kept equal.
"""

from .layers import layer_names, layer_signature, num_safe_ids, vocabulary_size
from .loading import BuiltModel, build_layers, build_model, check_spec, load_layers
from .spec import ModelSpec
from .trust import is_built_in, trusted_spec

__all__ = [
    "BuiltModel",
    "ModelSpec",
    "build_layers",
    "build_model",
    "check_spec",
    "is_built_in",
    "layer_names",
    "layer_signature",
    "load_layers",
    "num_safe_ids",
    "trusted_spec",
    "vocabulary_size",
]
