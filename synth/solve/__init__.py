"""Finding schedules: the problem, lower bounds, construction, exact search, improvement."""

from synth.objective import Objective
from synth.solve.infeasibility import Shortage, find_shortage
from synth.solve.problem import (
    Incumbent,
    Part,
    Problem,
    Result,
    Rival,
    SolveOptions,
    SolverName,
    StoppedBy,
)
from synth.solve.solver import solve

__all__ = [
    "Incumbent",
    "Objective",
    "Part",
    "Problem",
    "Result",
    "Rival",
    "Shortage",
    "SolveOptions",
    "SolverName",
    "StoppedBy",
    "find_shortage",
    "solve",
]
