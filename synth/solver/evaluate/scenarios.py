"""Duration scenarios: schedules with ops and transfers longer or shorter than profiled.

A scenario draws a factor for each op and each value that is sent, the same in every order, so that
orders are compared under the same conditions. All scenarios are simulated at once; scenario 0 has
the profiled durations.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from synth.objective import Objective
from synth.op_kinds import VISITS
from synth.schedule.arrays import KIND_CODES
from synth.schedule.lowering.effects import VALUE_KINDS, WEIGHTS
from synth.schedule.lowering.lower import Lowered
from synth.solver.problem import Problem
from synth.solver.tuning import SCENARIOS

# Rows are nodes or ranks, columns are scenarios.
Times = npt.NDArray[np.float64]


# Stands for the length of a path that does not exist.
NOTHING_US = -1e18


class ScenarioFactors:
    """Normal factors for each op, transfer and reduction in each scenario.

    Args:
        problem: the problem that the ops are of.
        seed: the seed of the draws.
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
        rng = np.random.default_rng(seed)
        placement, m = problem.placement, problem.num_micro_batches
        copies = len(placement.ranks) * placement.num_stages
        scenarios = num_scenarios or (
            SCENARIOS.scenarios if m * copies <= SCENARIOS.many_cells else SCENARIOS.few_scenarios
        )

        def factors(num_kinds: int) -> Times:
            shape = (num_kinds, copies, m, scenarios)
            drawn = 1 + deviation * rng.standard_normal(shape)
            drawn += bias * rng.standard_normal((num_kinds, copies, 1, scenarios))
            drawn[..., 0] = 1
            clipped: Times = np.clip(drawn, SCENARIOS.least_factor, SCENARIOS.most_factor).reshape(
                -1, scenarios
            )
            return clipped

        # Kinds that only schedules from elsewhere have are among them. Those of weight passing
        # are drawn last: the factors of a plan do not depend on which other kinds there are.
        num_visit_values = len(VALUE_KINDS) - VALUE_KINDS.index(WEIGHTS)
        of_ops = factors(len(KIND_CODES) - len(VISITS) + 1)
        of_values = factors(len(VALUE_KINDS) - num_visit_values)
        self._of_sums = of_ops[-copies * m :]
        self._of_ops = np.concatenate([of_ops[: -copies * m], factors(len(VISITS))])
        self._of_values = np.concatenate([of_values, factors(num_visit_values)])
        self._num_cells = copies * m

    def durations_us(self, lowered: Lowered) -> Times:
        """Return the duration of each node in each scenario."""
        arrays = lowered.arrays
        of_ops = self._of_ops[arrays.kind * self._num_cells + arrays.cells]
        of_values = self._of_values[lowered.transfer_table.value]
        stages = np.array([reduction.stage for reduction in lowered.collectives], dtype=int)
        m = lowered.schedule.num_micro_batches
        of_sums = self._of_sums[stages * m]
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
        self.order, self.after = _topological(lowered)
        self.start_us = np.zeros_like(self.durations_us)
        rows = list(self.start_us)
        for node in self.order:
            end = rows[node] + self.durations_us[node]
            for later in self.after[node]:
                np.maximum(rows[later], end, out=rows[later])
        self.end_us = self.start_us + self.durations_us
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
        tails = np.full_like(self.start_us, NOTHING_US)
        tails[np.array(self.lowered.first_node[1:]) - 1] = -span.origin_us
        rows = list(tails)
        for node in reversed(self.order):
            row = rows[node]
            for later in self.after[node]:
                np.maximum(row, rows[later], out=row)
            row += self.durations_us[node]
        return tails


class SpanTimes(NamedTuple):
    """The makespan or the period in all scenarios: weight, origin of each rank, and length."""

    weight: int
    origin_us: Times
    length_us: Times


def _topological(lowered: Lowered) -> tuple[list[int], list[list[int]]]:
    """Return all nodes, each after those that it waits for, and the followers of each."""
    before, after = lowered.edges
    num_nodes = len(lowered.durations)
    waiting = np.bincount(after, minlength=num_nodes).tolist()
    followers: list[list[int]] = [[] for _ in range(num_nodes)]
    for node, later in zip(before.tolist(), after.tolist(), strict=True):
        followers[node].append(later)
    order = [node for node, count in enumerate(waiting) if count == 0]
    for node in order:
        for later in followers[node]:
            waiting[later] -= 1
            if not waiting[later]:
                order.append(later)
    return order, followers
