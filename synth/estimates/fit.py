"""Fitting the three factors of a device and a training program to measured steps.

A step's time is a sum of parts in proportion to the factors where the critical path stays the same
(it is a maximum of sums), so its derivatives are its parts. The fit is the most likely one under
errors of rows and a prior at 1, both normal in the logarithms; its deviations are those of that
posterior (Gauss and Newton's method; Bishop 2006, section 4.5).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from synth.estimates.factors import PRIOR, Factors
from synth.estimates.published import PublishedRun
from synth.estimates.rates import best_efficiency

# Standard deviation of a row about a fit: repeated steps of one run differ less, layouts more.
ROW = 0.05

# Those among which that of rows with experts is chosen, whose kernels and exchanges differ
# between releases of a program, and in what a row does not say.
_ROWS_OF_EXPERTS = (0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4)

# Of few rows the scatter is that of other programs, as if so many rows had shown it.
_USUAL_SCATTER, _USUAL_ROWS = 0.1, 3

# Share of its peak that no device sustains over a step, whatever a fit says.
_MOST_EFFICIENT = 0.8

_STEP, _ITERATIONS = 0.05, 12

_Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StepParts:
    """A measured step, and its estimate by parts.

    Attributes:
        factors: at which the parts were taken.
    """

    run: PublishedRun
    factors: Factors = field(default_factory=Factors)

    @cached_property
    def parts_us(self) -> _Vector:
        """The derivatives by each factor, in µs."""
        step, values = self.run.step, np.array(self.factors.values)
        found = np.zeros(len(values))
        # Without the host's time, parts in proportion to their factors add up to the whole
        # (Euler's theorem), and two derivatives are enough.
        scaled = len(values) - (0 if step.estimator.software.host_us else 1)
        for kind in range(scaled):
            more = values.copy()
            more[kind] *= 1 + _STEP
            shifted = step.with_factors(self.factors.at(np.log(more))).us()
            found[kind] = max(0.0, (shifted - self._whole_us) / (_STEP * values[kind]))
        if scaled < len(values):
            found[-1] = max(0.0, (self._whole_us - found @ values) / values[-1])
        parts: _Vector = found * min(1.0, self._whole_us / max(float(found @ values), 1e-9))
        return parts

    @cached_property
    def _whole_us(self) -> float:
        return self.run.step.with_factors(self.factors).us()

    @cached_property
    def fixed_us(self) -> float:
        """Return the time in which devices wait for their hosts, which no factor changes."""
        return self._whole_us - float(self.parts_us @ np.array(self.factors.values))

    def us(self, factors: Factors) -> float:
        """The time under other factors."""
        return self.fixed_us + float(self.parts_us @ np.array(factors.values))

    def error(self, factors: Factors) -> float:
        """Estimate over measured time, less 1."""
        return self.us(factors) / self.run.measured_us - 1


def fit(rows: Sequence[StepParts], calibration: str | None = None) -> Factors:
    """Return the most likely factors, and the deviations of their logarithms."""
    parts = np.array([row.parts_us for row in rows])
    fixed = np.array([row.fixed_us for row in rows])
    measured = np.array([row.run.measured_us for row in rows])
    prior, deviation = np.array(PRIOR), _deviation(rows)
    logarithms = np.zeros(len(prior))
    least = min(0.0, np.log(best_efficiency(rows[0].run.step.estimator.device) / _MOST_EFFICIENT))
    for _ in range(_ITERATIONS):
        each = parts * np.exp(logarithms)
        total = fixed + each.sum(axis=1)
        slopes = each / total[:, None] / deviation
        short = -np.log(total / measured) / deviation
        system = slopes.T @ slopes + np.diag(prior**-2)
        wanted = slopes.T @ short - logarithms / prior**2
        change = np.linalg.solve(system, wanted)
        if logarithms[0] + change[0] < least:
            change[0] = least - logarithms[0]
            change[1:] = np.linalg.solve(system[1:, 1:], wanted[1:] - system[1:, 0] * change[0])
        logarithms += change
    left = np.log((fixed + parts @ np.exp(logarithms)) / measured)
    # The rows less the parameters that they determine (Bishop 2006, equation 3.91).
    determined = np.trace(np.linalg.solve(system, slopes.T @ slopes))
    squares = left @ left + _USUAL_ROWS * _USUAL_SCATTER**2
    scatter = max(deviation, float(np.sqrt(squares / (len(rows) - determined + _USUAL_ROWS))))
    deviations = np.sqrt(np.diag(np.linalg.inv(system))) * scatter / deviation
    deviations = np.minimum(deviations, prior)
    base = Factors(calibration=calibration).at(logarithms)
    matmul, memory, communication = deviations.tolist()
    return Factors(base.values, (matmul, memory, communication), calibration, scatter)


def are_dense(rows: Sequence[StepParts]) -> bool:
    """True of rows of models without experts."""
    return all(row.run.dense for row in rows)


def _deviation(rows: Sequence[StepParts]) -> float:
    """Return the standard deviation of the logarithms of rows about a fit.

    Of models with experts the one under which the rows are most likely before any factor is known
    (the evidence of Bishop 2006, section 3.5): rows that disagree as no factors explain have a
    large one, and do not pull the factors far.
    """
    if are_dense(rows):
        return ROW
    parts = np.array([row.parts_us * row.factors.values for row in rows])
    totals = parts.sum(axis=1) + np.array([row.fixed_us for row in rows])
    errors = np.log(totals / np.array([row.run.measured_us for row in rows]))
    slopes = parts / totals[:, None] * np.array(PRIOR)
    common = slopes @ slopes.T

    def cost(deviation: float) -> float:
        covariance = common + deviation**2 * np.eye(len(rows))
        return float(
            np.linalg.slogdet(covariance)[1] + errors @ np.linalg.solve(covariance, errors)
        )

    return min(_ROWS_OF_EXPERTS, key=cost)
