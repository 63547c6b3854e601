"""Messages of communication errors."""

import re

# How gloo (gloo/transport/tcp), NCCL, torch's TCPStore, the kernel and this package say that the
# other end is gone.
_CLOSED = re.compile(
    r"closed by (remote )?(peer|rank)|reset by peer|broken pipe|pair closure|got 0 bytes|"
    r"connection was likely closed|is gone",
    re.IGNORECASE,
)


def describe_failure(error: BaseException) -> str:
    """Return an error's message, without the library's source paths and advice."""
    text = re.sub(r"\[/[^\]]*\]\s*", "", str(error))
    return text.split(" This is typically caused", 1)[0].split(" This may be", 1)[0].strip(" .")


def tells_of_a_closed_connection(error: BaseException) -> bool:
    """True if an error says that the other end of a connection is gone."""
    return _CLOSED.search(str(error)) is not None
