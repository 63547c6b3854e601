"""When bounds are proven: beside the search, or in turns with it where it has to be repeatable."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from synth.certificate import Proven
from synth.objective import Objective
from synth.solve.bounds import forward_spacing
from synth.solve.bounds.background import Background
from synth.solve.bounds.closed_form import Reference
from synth.solve.bounds.policy import Known, Proofs
from synth.solve.evaluate.evaluate import EvaluatedSchedule
from synth.solve.instance.instance import View
from synth.solve.order_pool import KnownOrders
from synth.solve.problem import Part, SolveOptions
from synth.solve.search_state import Standing

# Shares of the time: of the limit for each rank alone, less where spacings say more; and of what is
# left for more of them where these are not proven beside the search.
_ONE_BY_ONE_SHARE = 0.08
_ONE_BY_ONE_SHARE_WITH_SPACINGS = 0.03
_IN_TURN_SHARE = 0.3

_POLL_S = 0.02


class Proving:
    """Raises the bound of a search.

    Attributes:
        num_workers_left: the workers that the search has for itself.
    """

    def __init__(
        self,
        relaxed: View,
        objective: Objective,
        options: SolveOptions,
        now: Standing,
        orders: KnownOrders,
    ) -> None:
        """All that the search knows, which it goes on adding to.

        Args:
            relaxed: the view from which all bounds come.
        """
        self._relaxed, self._objective, self._options = relaxed, objective, options
        self._now, self._orders = now, orders
        self._known = Known()
        self._referred: tuple[EvaluatedSchedule | None, Reference] | None = None
        self._beside: Background | None = None
        in_turn = options.deterministic or Part.BOUNDS in options.without
        self._num_workers_beside = 0 if in_turn else options.num_workers // 2
        self.num_workers_left = options.num_workers - self._num_workers_beside

    @property
    def is_beside(self) -> bool:
        """Whether bounds are proven beside the search."""
        return self._num_workers_beside > 0

    def one_by_one(self) -> None:
        """Bound by one rank at a time."""
        proofs = self._proofs(self._options.num_workers, self._now.finished)
        for proven in proofs.one_by_one(self._limit_of_one_by_one_s):
            self._now.raise_bound(proven)

    def begin(self, *, from_one: bool) -> None:
        """Bound by more and more ranks, from now on until the search ends.

        Args:
            from_one: by one rank at a time at first.
        """
        if self.is_beside:
            self._beside = Background(lambda should_stop: self._bounds(should_stop, from_one))
            self._now.listen_to(self._beside)

    def _bounds(self, should_stop: Callable[[], bool], from_one: bool) -> Iterator[Proven]:
        proofs = self._proofs(self._num_workers_beside, should_stop)
        if from_one:
            yield from proofs.one_by_one(self._limit_of_one_by_one_s)
        if not should_stop():
            yield from proofs.together(self._now.left_s())

    @property
    def _limit_of_one_by_one_s(self) -> float:
        is_spaced = forward_spacing.is_worth(self._relaxed) and not self._relaxed.holds_several
        share = _ONE_BY_ONE_SHARE_WITH_SPACINGS if is_spaced else _ONE_BY_ONE_SHARE
        return share * self._options.time_limit_s

    def take_turn(self) -> None:
        """The same, where it is not done beside the search."""
        if not self.is_beside:
            proofs = self._proofs(self.num_workers_left, self._now.finished)
            for proven in proofs.together(_IN_TURN_SHARE * self._now.left_s()):
                self._now.raise_bound(proven)

    def wait(self) -> None:
        """Nothing is left to search for."""
        while not (self._beside is None or self._beside.is_over or self._now.finished()):
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Nothing is left to prove; what runs needs a moment to end."""
        if self._beside is not None:
            self._beside.stop()

    def end(self) -> None:
        """Stop, and wait until it has.

        Nor may an exception leave anything behind: CP-SAT would outlive the interpreter, and abort.
        """
        if self._beside is not None:
            self._beside.stop()
            self._beside.join()
            self._beside.collect(self._now.raise_bound)

    def _proofs(self, workers: int, should_stop: Callable[[], bool]) -> Proofs:
        return Proofs(
            self._relaxed,
            self._objective,
            replace(self._options, workers=workers),
            self._reference,
            self._known,
            should_stop,
        )

    def _reference(self) -> Reference:
        """The best schedule known now, within which a proof begins."""
        best = self._now.best
        if best is None or self._referred is None or self._referred[0] is not best:
            programs = None if best is None else best.schedule.programs
            hint, value_us = self._orders.hint(self._relaxed, programs)
            self._referred = best, Reference(value_us, hint)
        return self._referred[1]
