"""Messages of communication errors."""

import re

from synth.errors import SynthError

# How gloo (gloo/transport/tcp), NCCL, torch's TCPStore, the kernel and this package say that the
# other end is gone.
_CLOSED = re.compile(
    r"closed by (remote )?(peer|rank)|reset by peer|broken pipe|pair closure|got 0 bytes|"
    r"connection was likely closed|is gone",
    re.IGNORECASE,
)


# Autograd's own hint is about finding the operation, which is a forward of a later micro-batch.
_CHANGED = "has been modified by an inplace operation"
_WAY_OUT = (
    "; while several micro-batches are under way, a forward must not change in place what the "
    "backward of an earlier one needs, such as a weight or a buffer: use a copy (`clone`) of it"
)

_TWICE = "backward through the graph a second time"
_ONCE = (
    "micro-batches share a part of a graph, which the first backward has freed: detach what a "
    "module keeps of an earlier micro-batch; where another module has computed the batch y, give "
    "`split` x = y.detach().requires_grad_(), and run y.backward(x.grad) after the step"
)


def describe_failure(error: BaseException) -> str:
    """Return an error's message, without the library's source paths and advice.

    The type comes first where the message may not say enough: `KeyError: 'mask'`.
    """
    text = re.sub(r"\[/[^\]]*\]\s*", "", str(error))
    text = text.split(" This is typically caused", 1)[0].split(" This may be", 1)[0].strip(" .")
    if _CHANGED in text:
        text = text.split(" Hint: enable anomaly", 1)[0].strip(" .") + _WAY_OUT
    if _TWICE in text:
        return _ONCE
    if text and isinstance(error, SynthError | RuntimeError | OSError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def tells_of_a_closed_connection(error: BaseException) -> bool:
    """True if an error says that the other end of a connection is gone."""
    return _CLOSED.search(str(error)) is not None
