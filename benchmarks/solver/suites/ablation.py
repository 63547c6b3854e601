"""What each part of the search is worth: each regime with all of them, and without each."""

from collections.abc import Iterator

from benchmarks.solver.case import Case, Suite, can_leave_out
from benchmarks.solver.regimes import regimes
from synth.errors import SynthError

PARTS = ("families", "list scheduling", "patterns", "windows", "bounds", "exact")


def _cases() -> Iterator[Case]:
    if not can_leave_out():
        raise SynthError(
            "the ablation leaves parts of the search out, and SolveOptions has no field `without`; "
            "take a solver that has it, or another suite"
        )
    for name, problem in regimes().items():
        yield Case(f"{name}, all", problem)
        for part in PARTS:
            yield Case(f"{name} without {part}", problem, without=frozenset({part}))


SUITE = Suite("ablation", "The value without each part; label: regime, part.", _cases, 30.0)
