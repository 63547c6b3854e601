"""The least memory limit under which a target time is met: the result of a bisection."""

from dataclasses import dataclass, replace

from synth.objective import BoundScope
from synth.plan.memory_curve.cap_knowledge import KnownSchedule
from synth.schedule.files.certificate import Certificate
from synth.schedule.verify import verify
from synth.search.outcome import StoppedBy
from synth.solver.problem import Problem
from synth.solver.result import Baseline, Result
from synth.units import format_us


@dataclass(frozen=True)
class LeastCap:
    """The least memory limit, one for all ranks, under which a target is met, as far as known.

    It is proven that no schedule meets the target with less than `not_below_bytes`. `found` meets
    it and needs `cap_bytes`; `lower_bound_us` holds under that limit, by `certificate`.
    `fastest_us` is the best time found under any limit, `bound_us` the best bound without a limit.
    Proofs, of memory and of time, hold for `bound_scope`.
    """

    problem: Problem
    target_us: int
    not_below_bytes: int
    found: KnownSchedule | None
    lower_bound_us: int
    fastest_us: int | None
    bound_us: int
    stopped_by: StoppedBy
    baselines: tuple[Baseline, ...]
    wall_s: float
    bound_scope: BoundScope = BoundScope.PARTITION
    certificate: Certificate | None = None

    @property
    def cap_bytes(self) -> int | None:
        """The least memory limit found."""
        return None if self.found is None else self.found.peak

    @property
    def gap(self) -> float | None:
        """(found − proven) / found."""
        cap = self.cap_bytes
        return None if cap is None else max(0.0, (cap - self.not_below_bytes) / cap)

    def result(self) -> Result | None:
        """Return the schedule found as the result of a search under its limit, simulated again."""
        if self.found is None:
            return None
        found, cap = self.found, self.found.peak
        problem = replace(self.problem, caps_bytes=(cap,) * self.problem.num_ranks)
        return Result(
            problem=problem,
            schedule=found.schedule,
            timeline=verify(found.schedule, problem.costs, problem.caps_bytes)[1],
            value_us=found.value_us,
            lower_bound_us=self.lower_bound_us,
            peak_bytes=found.peak_bytes,
            found_by=found.found_by,
            stopped_by=self.stopped_by,
            baselines=tuple(replace(r, fits=max(r.peak_bytes) <= cap) for r in self.baselines),
            wall_s=self.wall_s,
            bound_scope=self.bound_scope,
            certificate=self.certificate,
        )

    @property
    def message(self) -> str | None:
        """The reason why there is no schedule; None if there is one."""
        if self.found is not None:
            return None
        objective, target = self.problem.objective.words, format_us(self.target_us)
        if self.stopped_by == StoppedBy.INFEASIBLE:
            return (
                f"no schedule has a {objective} of {target} ({self.target_us} µs) or less, however "
                f"much memory there is: the lower bound is {self.bound_us} µs; give a §target of "
                f"that at least, other ranks or another placement"
            )
        best = "none" if self.fastest_us is None else f"{self.fastest_us} µs"
        return (
            f"no schedule with a {objective} of {target} ({self.target_us} µs) or less was found "
            f"in the time given, with any memory: the best is {best}, the lower bound "
            f"{self.bound_us} µs; give more time or a larger §target"
        )
