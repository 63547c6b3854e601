"""Value by time limit: each regime under growing limits, every one a run of its own."""

from collections.abc import Iterator

from benchmarks.solver.case import Case, Suite
from benchmarks.solver.sample_problems import sample_problems

LIMITS_S = (1, 3, 10, 30, 100)


def _cases() -> Iterator[Case]:
    for name, problem in sample_problems().items():
        for limit_s in LIMITS_S:
            label = f"{name} {limit_s} s"
            yield Case(label, problem, time_limit_s=limit_s, cell=(name, f"{limit_s} s"))


SUITE = Suite("time", "The value by time limit; label: regime, seconds.", _cases)
