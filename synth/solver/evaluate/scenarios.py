"""Duration scenarios: schedules with ops and transfers longer or shorter than profiled.

A scenario draws a factor for each op and each value that is sent, the same in every order, so that
orders are compared under the same conditions. All scenarios are simulated at once; scenario 0 has
the profiled durations.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from synth.objective import Objective
from synth.op_kinds import VISITS
from synth.schedule.arrays import KIND_CODES
from synth.schedule.lowering.effects import VALUE_KINDS, WEIGHTS
from synth.schedule.lowering.lower import Lowered
from synth.solver.evaluate.longest_paths import longest_paths
from synth.solver.problem import Problem
from synth.solver.tuning import SCENARIOS

# Rows are nodes or ranks, columns are scenarios.
Times = npt.NDArray[np.float64]


# Stands for the length of a path that does not exist.
NOTHING_US = -1e18


class ScenarioFactors:
    """Normal factors for each op, transfer and reduction in each scenario.

    Args:
        num_scenarios: with the nominal one; by default it depends on the number of ops.
        deviation: the standard deviation of each factor.
        bias: that of a factor shared by all ops of a kind of a stage, the error of the profile.
    """

    def __init__(
        self,
        problem: Problem,
        seed: int = 0,
        num_scenarios: int | None = None,
        deviation: float = SCENARIOS.deviation,
        bias: float = 0.0,
    ) -> None:
        self._rng, self._deviation, self._bias = np.random.default_rng(seed), deviation, bias
        placement, self._m = problem.placement, problem.num_micro_batches
        self._copies = len(placement.ranks) * placement.num_stages
        self._num_cells = self._copies * self._m
        few = self._num_cells > SCENARIOS.many_cells
        self._num_scenarios = num_scenarios or (
            SCENARIOS.few_scenarios if few else SCENARIOS.scenarios
        )
        # Kinds that only schedules from elsewhere have are among them.
        of_ops = self._draw(len(KIND_CODES) - len(VISITS) + 1)
        self._of_ops, self._of_sums = np.split(of_ops, [-self._num_cells])
        self._of_values = self._draw(VALUE_KINDS.index(WEIGHTS))

    def _draw(self, num_kinds: int) -> Times:
        """Return the factors of some kinds, [kind · cells + cell, scenario]."""
        shape = (num_kinds, self._copies, self._m, self._num_scenarios)
        drawn = self._rng.standard_normal(shape)
        drawn *= self._deviation
        drawn += 1
        shared = self._rng.standard_normal((num_kinds, self._copies, 1, self._num_scenarios))
        if self._bias:
            drawn += self._bias * shared
        drawn[..., 0] = 1
        np.clip(drawn, SCENARIOS.least_factor, SCENARIOS.most_factor, out=drawn)
        return drawn.reshape(-1, self._num_scenarios)

    @cached_property
    def _with_visits(self) -> tuple[Times, Times]:
        """The factors of ops and values, those of weight passing included.

        Those are drawn last: the factors of a plan do not depend on which other kinds there are.
        """
        of_visits = self._draw(len(VISITS))
        of_weights = self._draw(len(VALUE_KINDS) - VALUE_KINDS.index(WEIGHTS))
        return (
            np.concatenate([self._of_ops, of_visits]),
            np.concatenate([self._of_values, of_weights]),
        )

    def durations_us(self, lowered: Lowered) -> Times:
        """Return the duration of each node in each scenario."""
        arrays = lowered.arrays
        ops, values = (self._of_ops, self._of_values) if arrays.is_plain else self._with_visits
        of_ops = ops[arrays.kind * self._num_cells + arrays.cells]
        of_values = values[lowered.transfer_table.value]
        stages = np.array([reduction.stage for reduction in lowered.collectives], dtype=int)
        of_sums = self._of_sums[stages * self._m]
        factors = np.concatenate([of_ops, of_values, of_sums])
        longer: Times = lowered.durations[:, None] * factors
        return longer


class ScenarioTimes:
    """Starts and ends of a schedule's nodes in all scenarios, and the spans that count.

    Attributes:
        value_us: the mean objective, without scenario 0.
    """

    def __init__(
        self, lowered: Lowered, scenario_factors: ScenarioFactors, objective: Objective
    ) -> None:
        self.lowered, self.durations_us = lowered, scenario_factors.durations_us(lowered)
        self._paths = longest_paths(*lowered.edges, len(lowered.durations))
        self.start_us, self.end_us = self._paths.forwards(self.durations_us)
        first = np.array(lowered.first_node)
        self.begun_us, self.ended_us = self.start_us[first[:-1]], self.end_us[first[1:] - 1]
        self.spans = list(self._spans(objective))
        values = np.array([span.weight * span.length_us for span in self.spans]).sum(axis=0)
        self.value_us = float(values[1:].mean())

    def _spans(self, objective: Objective) -> "Iterator[SpanTimes]":
        if objective.makespans:
            yield SpanTimes(
                objective.makespans, np.zeros_like(self.begun_us), self.ended_us.max(axis=0)
            )
        if objective.periods:
            longest = (self.ended_us - self.begun_us).max(axis=0)
            yield SpanTimes(objective.periods, self.begun_us, longest)

    def tails_us(self, span: "SpanTimes") -> Times:
        """Return the longest path from the start of each node to the end of a span."""
        after_last = np.full_like(self.start_us, NOTHING_US)
        after_last[np.array(self.lowered.first_node[1:]) - 1] = -span.origin_us
        return self._paths.backwards(self.durations_us, after_last)


class SpanTimes(NamedTuple):
    """The makespan or the period in all scenarios: weight, origin of each rank, and length."""

    weight: int
    origin_us: Times
    length_us: Times
