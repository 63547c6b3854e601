"""The split backward: B (input gradients) now, W (weight gradients) when the schedule says.

F, B and W are the letters of the zero-bubble papers (arXiv 2401.10241). A micro-batch whose
backward is fused (BW) needs none of this: its F is the plain forward, its BW autograd's.

    tape = SplitTape()
    x, arriving = enter(received)          # the graph does not keep the input alive
    y = tape.forward(stage, x)             # F
    tape.backward_input(y, grad_of_y)      # B: `arriving.take()` is the gradient to send back
    tape.backward_weight()                 # W: adds to every `parameter.grad`

Models need no change. While F runs, calls such as `F.linear(x, weight)` on a trainable leaf are
recorded such that their weight gradient can be deferred. An operation without a `Rule` gets its
gradient from ordinary autograd within B. Those of torch's functions are the files of `rules`. See
`Rule` and `register` for adding one.
"""

from synth.system.discovery import import_modules

from .recorder import Recorder
from .rule import Call, Rule, register
from .split_backward import SplitTape, run_backward
from .stage_input import GradientBox, enter
from .weight_task import gradient_dtype

__all__ = [
    "Call",
    "GradientBox",
    "Recorder",
    "Rule",
    "SplitTape",
    "enter",
    "gradient_dtype",
    "register",
    "run_backward",
]

import_modules(f"{__name__}.rules")  # each registers its rules
