"""Models as lists of layers, from which a pipeline makes stages.

The contract, for built-in models and user models alike: every layer is an `nn.Module`. The first
takes token ids (int64 [batch, time]) or the inputs that a function of the user makes. Every other
takes the output of the previous one, a tensor or a tree of tensors; a tuple or list is spread into
positional arguments. The last is called `layer(x, targets)` and returns the scalar mean loss.
Layers may share parameters; if they are on different ranks, these are kept equal. A whole module
becomes such layers by `cut`.
"""

from .cut import cut_in_words
from .hugging_face import is_hugging_face
from .layers import layer_names, num_safe_ids, vocabulary_size
from .loading import (
    BuiltModel,
    build_model,
    check_spec,
    each_layer,
    load_layers,
    makes_one_at_a_time,
    materialise,
    outline_of,
)
from .signature import layer_signature
from .spec import CutSpec, ModelSpec
from .trust import is_built_in, trusted_address

__all__ = [
    "BuiltModel",
    "CutSpec",
    "ModelSpec",
    "build_model",
    "check_spec",
    "cut_in_words",
    "each_layer",
    "is_built_in",
    "is_hugging_face",
    "layer_names",
    "layer_signature",
    "load_layers",
    "makes_one_at_a_time",
    "materialise",
    "num_safe_ids",
    "outline_of",
    "trusted_address",
    "vocabulary_size",
]
