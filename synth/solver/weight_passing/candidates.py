"""Candidates of the search with weight passing, and their exact evaluation."""

from dataclasses import dataclass, replace

from synth.schedule.model import Schedule
from synth.schedule.rank_memory import exceeds_caps, peak_bytes
from synth.schedule.verify import ScheduleError, check_deadlock, lower_checked
from synth.schedule.weight_flow import Sharded
from synth.solver.tuning import WEIGHT_PASSING
from synth.solver.weight_passing.compute_order import ComputeOrder
from synth.solver.weight_passing.problem import WeightPassingProblem, passes_from_rank_to_rank
from synth.solver.weight_passing.programs import make_schedule
from synth.solver.weight_passing.unshard_placement import OpNeeds
from synth.solver.weight_passing.visit_options import VisitOptions


@dataclass(frozen=True)
class OrderCandidate:
    """The orders of all ranks, or one for all, and the choices by which visits are placed."""

    orders: tuple[ComputeOrder, ...]
    visit_options: VisitOptions


@dataclass(frozen=True)
class ScoredCandidate:
    """A candidate with its value, on the ranks that were simulated."""

    candidate: OrderCandidate
    value_us: int


class CandidateEvaluator:
    """Evaluates candidates on the problem itself, or on two ranks that represent all of its."""

    def __init__(self, passing: WeightPassingProblem, sharded: Sharded) -> None:
        self.passing, self.table = passing, OpNeeds(passing)
        self.headrooms = passing.headrooms(sharded)

    def schedule(self, candidate: OrderCandidate) -> Schedule:
        """Return the schedule of a candidate."""
        return make_schedule(self.table, candidate.orders, candidate.visit_options, self.headrooms)

    def score(self, candidate: OrderCandidate) -> ScoredCandidate | None:
        """Evaluate a candidate, with less memory for visits if it exceeds a limit.

        Returns:
            None if it still exceeds a limit, or cannot run.
        """
        problem = self.passing.problem
        for _ in range(WEIGHT_PASSING.corrections):
            try:
                lowered = lower_checked(self.schedule(candidate), problem.costs)
                if not passes_from_rank_to_rank(lowered):
                    return None
                peaks = peak_bytes(lowered)
                if not exceeds_caps(peaks, problem.caps_bytes):
                    value_us = problem.objective.value_us(check_deadlock(lowered))
                    return ScoredCandidate(candidate, value_us)
            except ScheduleError:
                return None
            over = max(map(int.__sub__, peaks, problem.caps_bytes or peaks))
            reserve_bytes = candidate.visit_options.reserve_bytes + over
            visit_options = replace(candidate.visit_options, reserve_bytes=reserve_bytes)
            candidate = replace(candidate, visit_options=visit_options)
        return None
