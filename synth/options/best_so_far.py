"""The best schedule announced by a search, as the answer if the search does not end in time."""

import threading
from collections.abc import Callable

from synth.search.outcome import StoppedBy
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result


class BestSoFar:
    """Keeps the best incumbent, and passes all on to a listener until it is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._best: tuple[Problem, Incumbent] | None = None

    def listening(
        self, problem: Problem, listener: Callable[[Incumbent], None] | None
    ) -> Callable[[Incumbent], None]:
        """Return the listener for the search on a problem."""

        def tell(incumbent: Incumbent) -> None:
            with self._lock:
                if self._is_closed:
                    return
                if self._best is None or _time_us(incumbent) <= _time_us(self._best[1]):
                    self._best = problem, incumbent
                if listener is not None:
                    listener(incumbent)

        return tell

    def close(self) -> tuple[Problem, Incumbent] | None:
        """Stop listening, and return the best incumbent with its problem."""
        with self._lock:
            self._is_closed = self._best is not None
            return self._best

    def result(self, elapsed_s: float, *, is_interrupted: bool = False) -> Result | None:
        """Return the result as if the search had ended; None if nothing was found."""
        best = self.close()
        if best is None:
            return None
        problem, found = best
        return Result(
            problem=problem,
            schedule=found.schedule,
            timeline=found.timeline,
            value_us=found.value_us,
            lower_bound_us=found.lower_bound_us,
            peak_bytes=found.peak_bytes,
            found_by=found.found_by,
            stopped_by=StoppedBy.INTERRUPT if is_interrupted else StoppedBy.TIME_LIMIT,
            baselines=(),
            wall_s=elapsed_s,
            bound_scope=found.bound_scope,
            certificate=found.certificate,
            steady=found.steady,
        )


def _time_us(found: Incumbent) -> float:
    """The time that the search minimizes."""
    return found.value_us if found.steady is None else found.steady.us
