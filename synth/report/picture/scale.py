"""Scales from quantities to positions in a plot, with ticks at round numbers."""

import math
from dataclasses import dataclass

# Beyond this ratio of the ends a linear axis would press the lower end flat.
_LOG_FROM = 4.0


def widened(low: float, high: float, below: float, above: float) -> tuple[float, float]:
    """Return the ends of an axis with margins, which are given as shares of its length."""
    if low > 0 and high / low >= _LOG_FROM:
        return low * (low / high) ** below, high * (high / low) ** above
    return low - below * (high - low), high + above * (high - low)


@dataclass(frozen=True)
class Scale:
    """Maps `low` … `high` to `start` … `end`, linearly or, with `log`, by equal factors."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def fitting(cls, low: float, high: float, start: float, end: float) -> "Scale":
        """Make a scale, logarithmic if the ends lie far apart; equal ends are moved apart."""
        if high <= low:
            low, high = 0.9 * low, 1.1 * low or 1.0
        return cls(low, high, start, end, low > 0 and high / low >= _LOG_FROM)

    def at(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def value(self, place: float) -> float:
        """Return the value at a position."""
        share = (place - self.start) / (self.end - self.start)
        if self.log:
            return self.low * math.exp(share * math.log(self.high / self.low))
        return self.low + share * (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Return round values between the ends, up to a number."""
        if not self.log:
            return _linear_ticks(self.low, self.high, most)
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values: list[float] = []
        for factors in _FACTORS:
            every = (factor * 10.0**decade for decade in decades for factor in factors)
            values = [value for value in every if self.low <= value <= self.high]
            if len(values) <= _LOG_SHARE * most:
                break
        return values


# Labels of logarithmic axes are as wide as those of linear ones, but in part closer together.
_LOG_SHARE = 2 / 3

_FACTORS = ((1, 1.5, 2, 3, 5, 7), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Return multiples of 1, 2 or 5 · 10ᵏ."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]
