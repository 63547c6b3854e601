"""Where a search stands: the incumbent, the bound, the clock, and who is told of progress."""

import threading
import time
from collections.abc import Callable

from synth.certificate import NOTHING_PROVEN, Certificate, Proven
from synth.solve.bounds.background import Background
from synth.solve.evaluate.evaluate import EvaluatedSchedule
from synth.solve.problem import Incumbent, Part, Problem, SolveOptions, StoppedBy, relative_gap
from synth.solve.tuning import SEARCH

OnImprovement = Callable[[Incumbent], None]


class SearchState:
    """What a search knows so far, and whether it should go on.

    `within` is that of the search which this one serves, if any: it ends with that.
    `evaluation_s` is what one exact evaluation of a schedule took, so as not to begin another one
    that would end too late.
    """

    def __init__(
        self,
        problem: Problem,
        options: SolveOptions,
        on_improvement: OnImprovement | None,
        stop: threading.Event | None,
        within: "SearchState | None" = None,
    ) -> None:
        self.problem, self.options, self._within = problem, options, within
        self.stop = stop or threading.Event()
        # When the search ends; what is left is for what comes after it.
        self.limit_s = options.time_limit_s * (1 - _reserved_share(options))
        self.best: EvaluatedSchedule | None = None
        self.proven = NOTHING_PROVEN
        self.proven_infeasible = False
        self.evaluation_s = 0.0
        self._beside: Background | None = None
        self._on_improvement = on_improvement
        self._began = time.monotonic()
        self._reported_bound_us = 0

    @property
    def is_within(self) -> bool:
        """Whether the search serves another one."""
        return self._within is not None

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def left_s(self) -> float:
        """Seconds until the limit; a deterministic search does not look at the clock."""
        return self.limit_s - (0 if self.options.deterministic else self.elapsed_s())

    def finished(self) -> bool:
        """Whether nothing more is wanted: proven, close enough, stopped, or out of time."""
        if self._beside is not None:
            self._beside.collect(self.raise_bound)
        if self._within is not None and self._within.finished():
            return True
        return self.time_is_up() or self.left_s() <= 0 or self.proven_infeasible or self.is_close()

    def listen_to(self, beside: Background) -> None:
        """Take its bounds in whenever it is asked from now on whether to go on."""
        self._beside = beside

    def too_late_by(self, until_s: float) -> bool:
        """Whether to stop, or one more evaluation would end after a moment since the start."""
        late = self.elapsed_s() + self.evaluation_s > until_s
        return self.stop.is_set() or (late and not self.options.deterministic)

    def is_close(self) -> bool:
        """Whether the gap is as small as was asked for."""
        best = self.best
        return best is not None and relative_gap(best.value_us, self.bound_us) <= self.options.gap

    def offer(self, candidate: EvaluatedSchedule | None) -> None:
        """Take a candidate if it is better: faster, or as fast in less memory."""
        if candidate is None:
            return
        if self.best is None or _rank_key(candidate) < _rank_key(self.best):
            self.best = candidate
            self._report()

    @property
    def bound_us(self) -> int:
        """The best bound."""
        return self.proven.bound_us

    def raise_bound(self, proven: Proven) -> None:
        """Take a better bound; steps of less than 0.1 % are not worth a report."""
        bound_us = proven.bound_us
        if bound_us > self.bound_us:
            if self.best is not None and bound_us > self.best.value_us:
                # Bounds are over schedules that share micro-batches evenly among copies.
                if self.problem.num_replicas == 1:
                    raise RuntimeError(
                        f"the bound {bound_us} µs is above a schedule of {self.best.value_us} µs: "
                        f"a bug in {proven.certificate.words if proven.certificate else 'a prover'}"
                    )
                bound_us = self.best.value_us
            self.proven = proven._replace(bound_us=bound_us)
            if self.is_proven() or bound_us > 1.001 * self._reported_bound_us:
                self._report()

    def deny(self, certificate: Certificate) -> None:
        """No schedule keeps the caps; the bound that was known holds all the same."""
        self.proven_infeasible = True
        self.proven = self.proven._replace(certificate=certificate)

    def _report(self) -> None:
        best = self.best
        self._reported_bound_us = self.bound_us
        if best is not None and self._on_improvement is not None:
            self._on_improvement(
                Incumbent(
                    self.elapsed_s(),
                    best.schedule,
                    best.timeline,
                    best.value_us,
                    self.bound_us,
                    best.found_by,
                    best.peak_bytes,
                    certificate=self.proven.certificate,
                )
            )

    def time_is_up(self) -> bool:
        """Whether to stop for the limit or a stop, counting one more evaluation."""
        return self.too_late_by(self.limit_s)

    def is_proven(self) -> bool:
        """Whether the incumbent meets the bound."""
        return self.best is not None and self.best.value_us <= self.bound_us

    def reason(self) -> StoppedBy:
        """Why the search ends here."""
        if self.proven_infeasible:
            return StoppedBy.INFEASIBLE
        if self.is_proven():
            return StoppedBy.OPTIMAL
        if self.stop.is_set():
            return StoppedBy.INTERRUPT
        if self.is_close():
            return StoppedBy.GAP
        return StoppedBy.TIME_LIMIT if self.left_s() <= 0 else StoppedBy.EXHAUSTED


def _reserved_share(options: SolveOptions) -> float:
    """The part of the time limit that is kept for slack; a deterministic search has its own."""
    if options.deterministic or Part.SLACK in options.without:
        return 0.0
    return SEARCH.robustness_share


def _rank_key(candidate: EvaluatedSchedule) -> tuple[int, int]:
    """What makes a candidate better, smaller first: ties go to what needs less memory."""
    return candidate.value_us, max(candidate.peak_bytes)
