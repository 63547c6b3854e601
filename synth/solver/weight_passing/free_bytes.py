"""The bytes that a rank has left for buffers at each op of its order."""

from typing import NamedTuple


class Span(NamedTuple):
    """The ops, from `first` to `last`, during which a buffer is held.

    If `is_sent`, the buffer is sent after its last op, and freed once the receives for the next op
    have been posted. So it also counts while that op waits for its inputs.
    """

    first: int
    last: int
    is_sent: bool = False


class FreeBytes:
    """Bytes that are free at each op.

    Attributes:
        running: while the op runs.
        waiting: before it, when its receives have been posted and sends are not yet waited for.
    """

    def __init__(self, running: list[int], waiting: list[int]) -> None:
        self.running, self.waiting = running, waiting

    def take(self, span: Span, num_bytes: int) -> None:
        """Hold a buffer."""
        end = len(self.running)
        for place in range(span.first, min(span.last + 1, end)):
            self.running[place] -= num_bytes
        for place in range(span.first, min(span.last + 1 + span.is_sent, end)):
            self.waiting[place] -= num_bytes

    def has(self, span: Span, num_bytes: int) -> bool:
        """True if a buffer fits."""
        places = slice(span.first, span.last + 1)
        return min(*self.running[places], *self.waiting[places]) >= num_bytes
