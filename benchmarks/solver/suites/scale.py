"""Large problems: value, bound, peak memory, and time by part of the program.

A rank with two stages has twice as many ops. "Models" and "lowering" are the solver's own work
before and between calls of CP-SAT; families are made once.
"""

from collections.abc import Iterator

from benchmarks.solver.case import Case, Suite
from benchmarks.solver.suites import table, v_shaped


def _cases() -> Iterator[Case]:
    yield Case("32,256 0.75x", table.problem(32, 256, 0.75), time_limit_s=300, is_large=True)
    yield Case("v 64,512 1x", v_shaped.problem(64, 512, 1), time_limit_s=120, is_large=True)
    yield Case("v 64,512 0.5x", v_shaped.problem(64, 512, 0.5), time_limit_s=600, is_large=True)


SUITE = Suite("scale", "Large problems; label: ranks,m, share of 1F1B's memory.", _cases, 300.0)
