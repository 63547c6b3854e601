"""Cuts a whole model into the layers of a pipeline.

One forward is recorded (`recorder`): calls of the model's modules, and the functions of torch
between them. Its steps are divided at the model's blocks, or at modules that are named (`blocks`,
`divide`). Each `Piece` runs its steps with the model's own modules. What later pieces need travels
from piece to piece: the hidden state, and what else depends on inputs or parameters. What depends
on neither, such as a causal mask and rotary angles, is a constant that each rank holds.

`torch.distributed.pipelining` traces with `torch.export` instead, which opens the blocks as well:
equal blocks would no longer be seen as equal, and code that depends on data, such as the routing of
a mixture of experts, could not be cut.
"""

from .cut_model import CutModel, cut_model
from .described import cut_in_words
from .origin import Origin
from .piece import Piece

__all__ = ["CutModel", "Origin", "Piece", "cut_in_words", "cut_model"]
