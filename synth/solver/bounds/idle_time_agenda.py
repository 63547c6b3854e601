"""The order in which the models of idle times are solved."""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from synth.solver.bounds.idle_time_model import End


@dataclass(frozen=True)
class IdleGrowth:
    """A model of one end of a rank; it grows by further ranks and by a longer stretch.

    Attributes:
        further: ranks that can still be added.
    """

    end: End
    ranks: tuple[int, ...]
    further: tuple[int, ...] = ()
    stretched: float = 1


class IdleAgenda:
    """Queues of models to solve for either end; both ends get equal time."""

    def __init__(self, growths: Iterable[IdleGrowth]) -> None:
        self._queues: defaultdict[End, deque[IdleGrowth]] = defaultdict(deque)
        self._spent_s: defaultdict[End, float] = defaultdict(float)
        self._seen: set[IdleGrowth] = set()  # larger ones are reached in several ways
        for growth in growths:
            self._add(growth)

    def next(self) -> IdleGrowth | None:
        """Take the next model of the end that has had less time."""
        ends = [end for end, queue in self._queues.items() if queue]
        if not ends:
            return None
        return self._queues[min(ends, key=lambda end: self._spent_s[end])].popleft()

    def note(self, end: End, spent_s: float, larger: Iterable[IdleGrowth], is_next: bool) -> None:
        """Note the time spent on a model, and queue larger ones: next, or after all others."""
        self._spent_s[end] += spent_s
        new = sum(self._add(growth) for growth in larger)
        if is_next:
            self._queues[end].rotate(new)

    def _add(self, growth: IdleGrowth) -> bool:
        """Append a model to the queue of its end; return False if it was there before."""
        is_new = growth not in self._seen
        if is_new:
            self._seen.add(growth)
            self._queues[growth.end].append(growth)
        return is_new

    def resume(self, unsolved: Sequence[IdleGrowth]) -> None:
        """Begin anew with equal time, first with the models that were not solved."""
        self._spent_s.clear()
        for growth in reversed(unsolved):
            self._queues[growth.end].appendleft(growth)
