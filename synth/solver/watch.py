"""The listener of a search, and the event that stops it."""

import threading
from collections.abc import Callable
from typing import NamedTuple

from synth.solver.result import Incumbent

OnImprovement = Callable[[Incumbent], None]


class SolveWatch(NamedTuple):
    """The listener of a search for one problem, and the event that stops it.

    Attributes:
        on_improvement: called for every better verified schedule or bound, in the thread of the
            search.
        stop: set it, from any thread, to get the best so far within about a second.
    """

    on_improvement: OnImprovement | None = None
    stop: threading.Event | None = None


UNWATCHED = SolveWatch()
