"""Contribution of each part of the search: each regime with all parts, and without each.

Parts are the bounds, the improvers, and the passing pairs (`Part`). A row also has the time at
which the search reached the final gap of the run with all parts. A part that takes no step in that
run is not left out. Who found the answer of a full run stands in its row.
"""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks import tight_caps
from benchmarks.solver.case import Case, Suite
from benchmarks.solver.sample_problems import sample_problems
from benchmarks.solver.suites import partition, table
from synth.profile import Profile
from synth.profiles import find
from synth.solver.options import GROUPS, Part

# Some regimes need longer: one step of a large problem takes seconds, and each choice of
# recomputation gets a share of the time.
_LONG_LIMIT_S = 20.0


def _regimes() -> Iterator[Case]:
    """Yield the cases with all parts."""
    for name, problem in sample_problems().items():
        yield Case(name, problem)
    yield Case("32 ranks", table.problem(32, 256, 0.75), _LONG_LIMIT_S)
    for number in (3, 13):
        yield Case(f"tight {number}", tight_caps.realistic(number).problem)
    profile = Profile.load(find(partition.PROFILE))
    recomputing = replace(partition.problem("linear", 8, 0.5), profile=profile)
    yield Case("recompute half", recomputing, _LONG_LIMIT_S, recompute=None)


def _cases() -> Iterator[Case]:
    for regime in _regimes():
        name = regime.label
        full = replace(regime, label=f"{name}, all", compared_with=f"{name}, all")
        yield replace(full, cell=("all", name))
        for part in (part for part in Part if part not in GROUPS):
            label, cell = f"{name} without {part}", (f"no {part}", name)
            yield replace(full, label=label, without=frozenset({part}), cell=cell)


SUITE = Suite("ablation", "The value without each part; label: regime, part.", _cases, 10.0)
