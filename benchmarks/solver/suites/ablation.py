"""What each part of the search is worth: each regime with all of them, and without each.

Who found the answer of a full run stands in its row.
"""

from collections.abc import Iterator

from benchmarks.solver.case import Case, Suite
from benchmarks.solver.regimes import regimes
from synth.solve import Part


def _cases() -> Iterator[Case]:
    for name, problem in regimes().items():
        yield Case(f"{name}, all", problem)
        for part in Part:
            yield Case(f"{name} without {part}", problem, without=frozenset({part}))


SUITE = Suite("ablation", "The value without each part; label: regime, part.", _cases, 30.0)
