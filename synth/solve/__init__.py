"""Finding schedules: the problem, lower bounds, construction, exact search, improvement."""

from synth.objective import Objective
from synth.solve.feasible import Shortage, find_shortage
from synth.solve.portfolio import solve
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
