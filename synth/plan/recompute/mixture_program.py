"""A linear program over shares of columns: the least value that no row exceeds.

Columns belong to groups, and the shares of a group add up to 1. Rows are sums of loads, of which
the largest counts; needs are sums that have a limit. With y for the shares:

    minimise T ≥ 0    subject to    T ≥ constant + Σ load · y     for each row
                                    Σ need · y  ≤  1              for each need
                                    Σ y  =  1,  y ≥ 0             for each group

The simplex method (Dantzig 1951) with few rows and many columns finds it. The value returned is
that of the Lagrangian at its multipliers, which is a lower bound whatever they are.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from synth.plan.tuning import RECOMPUTE_BOUNDS

_Floats = npt.NDArray[np.float64]

# Needs that add up to their limit may be above it by rounding.
_ROUNDING = 1e-9


class Optimum(NamedTuple):
    """A lower bound of the least value, close to it, and the shares that attain about that."""

    value: float
    shares: _Floats


class MixtureProgram(NamedTuple):
    """The program.

    Attributes:
        constants: by row.
        loads: by row and column.
        needs: by need and column, as shares of its limit.
        first: by group, its first column; columns of a group are consecutive.
    """

    constants: _Floats
    loads: _Floats
    needs: _Floats
    first: npt.NDArray[np.intp]

    def least(self) -> Optimum | None:
        """Return the optimum; None if no shares are allowed."""
        num_rows, num_groups, num_needs = len(self.constants), len(self.first), len(self.needs)
        begin = self._begin()
        if (self.needs[:, begin].sum(axis=1) > 1 + _ROUNDING).any():
            return None
        largest = int(np.argmax(self.constants + self.loads[:, begin].sum(axis=1)))
        table, right = self._equations(), np.ones(num_rows + num_groups + num_needs)
        right[:num_rows] = self.constants
        cost = np.zeros(table.shape[1])
        cost[0] = 1
        slack = 1 + self.loads.shape[1]
        others = [slack + row for row in range(num_rows + num_needs) if row != largest]
        basis = np.array([0, *(1 + begin), *others])
        duals = np.zeros(len(right))
        for _ in range(RECOMPUTE_BOUNDS.most_pivots):
            square = table[:, basis]
            duals = np.linalg.solve(square.T, cost[basis])
            reduced = cost - duals @ table
            entering = int(np.argmin(reduced))
            if reduced[entering] > -1e-9:
                break
            now, change = np.linalg.solve(square, np.stack([right, table[:, entering]], 1)).T
            shrinks = change > 1e-10
            if not shrinks.any():
                break
            ratios = np.where(shrinks, np.maximum(now, 0) / np.where(shrinks, change, 1), np.inf)
            basis[int(np.argmin(ratios))] = entering
        shares = np.zeros(table.shape[1])
        shares[basis] = np.linalg.solve(table[:, basis], right)
        value = self.lagrangian(duals[:num_rows], -duals[num_rows + num_groups :])
        return Optimum(value, shares[1:slack])

    def lagrangian(self, of_rows: _Floats, of_needs: _Floats) -> float:
        """Return the value at some multipliers, a lower bound."""
        of_rows, of_needs = np.maximum(of_rows, 0), np.maximum(of_needs, 0)
        if not of_rows.sum():
            return 0.0
        of_rows = of_rows / of_rows.sum()
        each = of_rows @ self.loads + of_needs @ self.needs
        least = np.minimum.reduceat(each, self.first).sum()
        return float(of_rows @ self.constants + least - of_needs.sum())

    def _begin(self) -> npt.NDArray[np.intp]:
        """Return for each group the column that needs least."""
        needed = np.maximum(self.needs, 0).sum(axis=0)
        return np.array([of.start + np.argmin(needed[of]) for of in self.groups])

    @property
    def groups(self) -> list[slice]:
        """The columns of each group."""
        ends = [*self.first[1:], self.loads.shape[1]]
        return [slice(*both) for both in zip(self.first, ends, strict=True)]

    def _equations(self) -> _Floats:
        """Return the rows, groups and needs with T, the columns, and a slack of each row and need.

        A row is T − Σ load · y − slack = constant.
        """
        num_rows, num_columns = self.loads.shape
        num_groups, num_needs = len(self.first), len(self.needs)
        table = np.zeros(
            (num_rows + num_groups + num_needs, 1 + num_columns + num_rows + num_needs)
        )
        table[:num_rows, 0] = 1
        columns = slice(1, 1 + num_columns)
        table[:num_rows, columns] = -self.loads
        for group, of in enumerate(self.groups):
            table[num_rows + group, 1 + of.start : 1 + of.stop] = 1
        table[num_rows + num_groups :, columns] = self.needs
        slack = 1 + num_columns
        table[:num_rows, slack : slack + num_rows] = -np.eye(num_rows)
        table[num_rows + num_groups :, slack + num_rows :] = np.eye(num_needs)
        return table
