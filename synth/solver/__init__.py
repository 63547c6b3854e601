"""Finding schedules: the problem, lower bounds, construction, exact search, improvement."""

from synth.objective import Objective
from synth.solver.infeasibility import Shortage, find_shortage
from synth.solver.options import Part, SolveOptions, SolverName
from synth.solver.problem import Problem
from synth.solver.result import Baseline, Incumbent, Result, StoppedBy
from synth.solver.solver import solve

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
