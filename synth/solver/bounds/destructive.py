"""Destructive bounds: refute values instead of minimising.

Whether a set of ranks alone can keep within a value is decided sooner than its least value is
found (Klein and Scholl 1999, "Computing lower bounds by destructive improvement: an application to
resource-constrained project scheduling").

1. All sets are asked for a quarter of what is open, again whenever one refutes it. A plan may be
   far from the best one, so the middle would often be asked in vain.
2. If none refutes it, all are asked whether they refute a little more than the bound. Most do not,
   and two questions were enough for them.
3. One that does is asked for middles until little of its own is open.

A question that stays open is not asked again with as much effort, nor is nearly the same one.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from synth.solver.tuning import DESTRUCTIVE

Ranks = tuple[int, ...]


class Decision(NamedTuple):
    """Whether some ranks can keep within a value.

    Attributes:
        attained_us: the value of a schedule of them; None if none was found.
        is_refuted: there is none.
        spent_s: in the terms of the time limit.
    """

    attained_us: int | None
    is_refuted: bool
    spent_s: float


# Decides whether some ranks keep within a value, with some seconds of effort.
Decide = Callable[[Ranks, int, float], Decision]


class Raised(NamedTuple):
    """A bound, and the set of ranks that proves it."""

    ranks: Ranks
    bound_us: int


@dataclass
class DestructiveBounds:
    """The questions to sets of ranks, and what is known of them.

    Attributes:
        sets: those that may prove most first.
        value_us: the best value known; no bound is looked for above it.
        attained_us: by set, a value that its ranks alone attain.
        should_stop: polled between questions.
        has_raised: some set refuted a value in an earlier run.
        left_open: by set, the values and the efforts of questions without an answer.
    """

    sets: Sequence[Ranks]
    bound_us: int
    value_us: int
    decide: Decide
    left_s: float
    should_stop: Callable[[], bool]
    attained_us: dict[Ranks, int] = field(default_factory=dict)
    has_raised: bool = False
    left_open: dict[Ranks, list[tuple[int, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Note what is open before the first question."""
        self._first_open_us = max(map(self._open_us, self.sets), default=0)

    def run(self, *, is_brief: bool = False) -> Iterator[Raised]:
        """Yield each bound; rounds have more and more effort for a question, until all answer.

        Args:
            is_brief: end with the first round that raises nothing.
        """
        sets, effort_s = list(self.sets), DESTRUCTIVE.first_effort_s
        while sets and self._goes_on:
            known_us = self.bound_us
            sets = yield from self._bisect(sets, effort_s)
            effort_s *= DESTRUCTIVE.effort_growth
            if is_brief and self.bound_us == known_us:
                return

    @property
    def _goes_on(self) -> bool:
        return self.bound_us < self.value_us and self.left_s > 0 and not self.should_stop()

    def _bisect(self, sets: list[Ranks], effort_s: float) -> Generator[Raised, None, list[Ranks]]:
        """Ask in large steps, then in the least ones; return the sets that left a question open."""
        unanswered: set[Ranks] = set()
        open_us = max(map(self._open_us, sets))
        asks_least = self.has_raised
        while (middle_us := self._middle_us(open_us, is_least=asks_least)) is not None:
            for one in [one for one in sets if self._open_us(one) > middle_us]:
                if not self._goes_on:
                    return []
                found = self._ask(one, middle_us, effort_s, unanswered)
                if found.is_refuted:
                    yield Raised(one, self.bound_us)
                    if asks_least:
                        yield from self._raise_by(one, effort_s, unanswered)
                    else:
                        open_us = max(map(self._open_us, sets))
                    self.has_raised = True
                    break
            else:
                # The last question of both phases may be the same.
                if asks_least or self._middle_us(open_us, is_least=True) == middle_us:
                    open_us = middle_us
                asks_least = True
        return [one for one in sets if one in unanswered and self._open_us(one) > self.bound_us]

    def _raise_by(
        self, ranks: Ranks, effort_s: float, unanswered: set[Ranks]
    ) -> Generator[Raised, None, None]:
        """Ask one set until little of its own is open."""
        open_us = self._open_us(ranks)
        while (middle_us := self._middle_us(open_us)) is not None and self._goes_on:
            if self._ask(ranks, middle_us, effort_s, unanswered).is_refuted:
                yield Raised(ranks, self.bound_us)
            else:
                open_us = middle_us

    def _ask(
        self, ranks: Ranks, middle_us: int, effort_s: float, unanswered: set[Ranks]
    ) -> Decision:
        """Ask one question, and note the answer; a question that was left open stays so."""
        if self._was_left_open(ranks, middle_us, effort_s):
            unanswered.add(ranks)
            return Decision(None, is_refuted=False, spent_s=0.0)
        had_s = self.left_s
        found = self.decide(ranks, middle_us, min(effort_s, had_s))
        self.left_s -= found.spent_s
        if found.is_refuted:
            self.bound_us = middle_us + 1
        elif found.attained_us is not None:
            self.attained_us[ranks] = found.attained_us
        else:
            unanswered.add(ranks)
            if effort_s <= had_s:
                self.left_open.setdefault(ranks, []).append((middle_us, effort_s))
        return found

    def _was_left_open(self, ranks: Ranks, middle_us: int, effort_s: float) -> bool:
        near_us = DESTRUCTIVE.tolerance * self.value_us
        return any(
            abs(value_us - middle_us) <= near_us and effort_s <= spent_s
            for value_us, spent_s in self.left_open.get(ranks, ())
        )

    def _open_us(self, ranks: Ranks) -> int:
        """Return the least value that a set is known to keep within."""
        return min(self.value_us, self.attained_us.get(ranks, self.value_us))

    def _middle_us(self, open_us: int, *, is_least: bool = False) -> int | None:
        """Return the next value to ask for; None: what is open is not worth it.

        If no value was kept, the question is at last whether the value known is the least.

        Args:
            open_us: a value that is kept, or the best one known.
            is_least: ask for the least rise of the bound that is worth it.
        """
        least_us = int(DESTRUCTIVE.tolerance * self.value_us)
        if open_us - self.bound_us > least_us:
            share = DESTRUCTIVE.first_share if open_us == self._first_open_us else 0.5
            half_us = (open_us - self.bound_us) // 2
            rise_us = min(half_us, max(1, int(share * (open_us - self.bound_us))))
            return self.bound_us + (least_us if is_least else rise_us)
        is_whole = open_us == self.value_us > self.bound_us
        return self.value_us - 1 if is_whole else None
