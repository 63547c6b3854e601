"""Contribution of each part of the search: each regime with all parts, and without each.

Parts are the bounds and the improvers, the groups of them, and the passing pairs (`Part`).
Who found the answer of a full run stands in its row.
"""

from collections.abc import Iterator

from benchmarks import tight_caps
from benchmarks.solver.case import Case, Suite
from benchmarks.solver.sample_problems import sample_problems
from benchmarks.solver.suites import table
from synth.solver import Part, Problem


def _problems() -> dict[str, Problem]:
    return {
        **sample_problems(),
        "32 ranks": table.problem(32, 256, 0.75),
        **{f"tight {number}": tight_caps.realistic(number).problem for number in (3, 13)},
    }


def _cases() -> Iterator[Case]:
    for name, problem in _problems().items():
        yield Case(f"{name}, all", problem, cell=("all", name))
        for part in Part:
            without = frozenset({part})
            cell = (f"no {part}", name)
            yield Case(f"{name} without {part}", problem, without=without, cell=cell)


SUITE = Suite("ablation", "The value without each part; label: regime, part.", _cases, 30.0)
