"""The prover of a search: bounds in the background, or in turn with the search."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum

from synth.objective import Spans
from synth.schedule.files.certificate import ProvenBound
from synth.solver.background import Background
from synth.solver.bounds.bound import BoundSetting, ProofState, Reference
from synth.solver.bounds.bound_policy import BoundPolicy
from synth.solver.bounds.closed_form import work_bounds_of_search
from synth.solver.evaluate.evaluate import EvaluatedSchedule
from synth.solver.instance.instance import Instance
from synth.solver.options import Part
from synth.solver.search_state import SearchState
from synth.solver.tuning import BOUND_POLICY


class BoundStep(StrEnum):
    """A step of a search that raises its bound."""

    ONE_BY_ONE = "bounds of one rank at a time"
    IN_BACKGROUND = "bounds in the background"
    IN_TURN = "bounds in turn with the search"
    AWAIT = "end of the bounds in the background"


class Prover:
    """Raises the bound of a search.

    Attributes:
        num_workers_left: workers that the search has for itself.
    """

    def __init__(self, fusion_relaxed: Instance, state: SearchState) -> None:
        """Begin with nothing proven.

        Args:
            fusion_relaxed: the instance from which all bounds come.
            state: the search whose bound is raised, and whose orders serve as hints.
        """
        self._fusion_relaxed, self._state, options = fusion_relaxed, state, state.options
        self._proven = ProofState()
        self._referred: tuple[EvaluatedSchedule | None, Reference] | None = None
        self._background: Background | None = None
        self._begins_one_by_one = True
        in_turn = options.deterministic or Part.BOUNDS in options.without
        self._num_workers_in_background = 0 if in_turn else options.num_workers // 2
        self.num_workers_left = options.num_workers - self._num_workers_in_background

    @property
    def in_background(self) -> bool:
        """True if bounds are proven in a thread during the search."""
        return self._num_workers_in_background > 0

    @property
    def work(self) -> Spans:
        """Closed-form bounds of makespan and period; 0 if they are left out."""
        return work_bounds_of_search(self._fusion_relaxed, self._state.options)

    def closed_forms(self) -> None:
        """Bound by closed forms, which takes no time."""
        for proven in self._policy(1, self._state.poll).closed_forms():
            self._state.raise_bound(proven)

    def run(self, step: BoundStep) -> None:
        """Run a step of the search."""
        steps = {
            BoundStep.ONE_BY_ONE: self._run_one_by_one,
            BoundStep.IN_BACKGROUND: self._begin,
            BoundStep.IN_TURN: self._run_in_turn,
            BoundStep.AWAIT: self._wait,
        }
        steps[step]()

    def _run_one_by_one(self) -> None:
        """Bound by one rank at a time, before the search continues."""
        self._begins_one_by_one = False
        policy = self._policy(self._state.options.num_workers, self._state.poll)
        for proven in policy.one_by_one():
            self._state.raise_bound(proven)

    def _begin(self) -> None:
        """Start bounding by several ranks in the background, until the search ends.

        One rank at a time comes first, if it did not come before.
        """
        if self.in_background:
            self._background = Background(self._bounds)
            self._state.listen_to(self._background)

    def _bounds(self, should_stop: Callable[[], bool]) -> Iterator[ProvenBound]:
        policy = self._policy(self._num_workers_in_background, should_stop)
        if self._begins_one_by_one:
            yield from policy.one_by_one()
        if not should_stop():
            yield from policy.together(self._state.budget.left_s())

    def _run_in_turn(self) -> None:
        """Bound by growing sets of ranks, if that is not done in the background."""
        if not self.in_background:
            policy = self._policy(self.num_workers_left, self._state.poll)
            share = (
                BOUND_POLICY.in_turn_share_of_several
                if self._fusion_relaxed.holds_several
                else BOUND_POLICY.in_turn_share
            )
            for proven in policy.together(share * self._state.budget.left_s()):
                self._state.raise_bound(proven)

    def _wait(self) -> None:
        """Wait for the end of the background bounds, or of the search."""
        while not (self._background is None or self._background.is_over or self._state.poll()):
            time.sleep(BOUND_POLICY.poll_s)

    def stop(self) -> None:
        """Ask the background bounds to end, without waiting."""
        if self._background is not None:
            self._background.stop()

    def end(self) -> None:
        """Stop the background bounds and wait for their end, also after an exception.

        CP-SAT in a thread that outlives the interpreter would abort the process.
        """
        if self._background is not None:
            self._background.stop()
            self._background.join()
            self._background.collect(self._state.raise_bound)

    def _policy(self, workers: int, should_stop: Callable[[], bool]) -> BoundPolicy:
        return BoundPolicy(
            BoundSetting(
                self._fusion_relaxed,
                self._state.problem.objective,
                replace(self._state.options, workers=workers),
                self._reference,
                self._proven,
                should_stop,
            )
        )

    def _reference(self) -> Reference:
        """Return the best schedule known now, within which a proof begins."""
        best = self._state.best
        if best is None or self._referred is None or self._referred[0] is not best:
            programs = self._state.best_programs
            hint, value_us = self._state.pool.hint(self._fusion_relaxed, programs)
            self._referred = best, Reference(value_us, hint)
        return self._referred[1]
