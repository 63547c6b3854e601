"""Fitting the three factors of a device and a training program to measured steps.

A step's time is a sum of parts in proportion to the factors where the critical path stays the same
(it is a maximum of sums), so its derivatives are its parts. The fit is the most likely one under
errors of rows and a prior at 1, both normal in the logarithms; its deviations are those of that
posterior (Gauss and Newton's method; Bishop 2006, section 4.5).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from synth.estimate.factors import PRIOR, Factors
from synth.estimate.published import PublishedRun

# Standard deviation of a row about a fit: repeated steps of one run differ less, layouts more.
_ROW = 0.05

_STEP, _ITERATIONS = 0.05, 12

_Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StepParts:
    """A measured step, and its estimate by parts.

    Attributes:
        run: the step.
        factors: at which the parts were taken.
    """

    run: PublishedRun
    factors: Factors = Factors()

    @cached_property
    def parts_us(self) -> _Vector:
        """The derivatives by each factor, in µs."""
        step, at = self.run.step, np.log(self.factors.values)
        found = []
        for kind in range(len(PRIOR)):
            shift = np.zeros(len(PRIOR))
            shift[kind] = _STEP
            more = step.with_factors(self.factors.at(at + shift)).us()
            less = step.with_factors(self.factors.at(at - shift)).us()
            width = np.exp(at[kind] + _STEP) - np.exp(at[kind] - _STEP)
            found.append((more - less) / width)
        return np.array(found)

    def us(self, factors: Factors) -> float:
        """The time under other factors."""
        return float(self.parts_us @ np.array(factors.values))

    def error(self, factors: Factors) -> float:
        """Estimate over measured time, less 1."""
        return self.us(factors) / self.run.measured_us - 1


def fit(rows: Sequence[StepParts], calibration: str | None = None) -> Factors:
    """Return the most likely factors, and the deviations of their logarithms."""
    parts = np.array([row.parts_us for row in rows])
    measured = np.array([row.run.measured_us for row in rows])
    prior = np.array(PRIOR)
    logarithms = np.zeros(len(prior))
    for _ in range(_ITERATIONS):
        each = parts * np.exp(logarithms)
        total = each.sum(axis=1)
        slopes = each / total[:, None] / _ROW
        short = -np.log(total / measured) / _ROW
        system = slopes.T @ slopes + np.diag(prior**-2)
        logarithms += np.linalg.solve(system, slopes.T @ short - logarithms / prior**2)
    deviations = np.sqrt(np.diag(np.linalg.inv(system)))
    base = Factors(calibration=calibration).at(logarithms)
    return Factors(base.values, tuple(float(one) for one in deviations), calibration)
