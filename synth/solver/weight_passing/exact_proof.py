"""The outcome of an exact search with weight passing."""

from typing import NamedTuple

from synth.objective import Spans
from synth.schedule.files.certificate import Certificate, ProvenBound, ProverName
from synth.schedule.model import Schedule
from synth.solver.weight_passing.problem import WeightPassingProblem


class ExactProof(NamedTuple):
    """The outcome of a search over all schedules of a small problem.

    Attributes:
        bound_us: no schedule has a smaller makespan.
        schedule: the best one found, if its makespan is below the given one.
        is_complete: True if the schedule, or else the given makespan, is proven optimal.
        spent_s: seconds of the clock, or deterministic ones.
    """

    bound_us: int
    schedule: Schedule | None
    is_complete: bool
    spent_s: float

    def proven(self, passing: WeightPassingProblem) -> ProvenBound:
        """The bound in the problem's objective; every rank begins at 0, so spans are equal."""
        value_us = passing.problem.objective.value_us(Spans(self.bound_us, self.bound_us))
        return ProvenBound(value_us, Certificate(prover=ProverName.EXACT))
