"""Finding schedules: the problem, lower bounds, construction, exact search, improvement."""

from synth.objective import Objective
from synth.solve.infeasibility import Shortage, find_shortage
from synth.solve.options import Part, SolveOptions, SolverName
from synth.solve.problem import Problem
from synth.solve.result import Baseline, Incumbent, Result, StoppedBy
from synth.solve.solver import solve

__all__ = [
    "Baseline",
    "Incumbent",
    "Objective",
    "Part",
    "Problem",
    "Result",
    "Shortage",
    "SolveOptions",
    "SolverName",
    "StoppedBy",
    "find_shortage",
    "solve",
]
