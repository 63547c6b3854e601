"""The parts of the search: found by their folders, and left out one by one."""

from dataclasses import replace
from pathlib import Path

import pytest

from synth.schedule.placements import placement
from synth.solver import bounds as solve_bounds
from synth.solver import improve
from synth.solver.bounds import bounds
from synth.solver.bounds.bound import BoundSetting, ProofState, Reference
from synth.solver.bounds.bound_policy import BoundPolicy
from synth.solver.cpsat import model
from synth.solver.improve import improvers
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import GROUPS, Part, SolveOptions, with_groups
from synth.solver.problem import Problem
from synth.solver.search_steps import last_steps, steps
from synth.solver.solver import solve
from tests.synth.effort import counted
from tests.synth.solver.test_search_steps import LARGE
from tests.synth.solver.test_solve import table_costs

ANNEALED = replace(LARGE, buffers_matter=True)

# A rank holds two stages, and memory binds: every bound applies.
TURNS = Problem(table_costs(4), placement("v", 2), 16, (8,) * 2)


def test_parts_are_the_bounds_and_the_improvers_of_the_folders() -> None:
    """And besides these the groups, and the passing pairs of several bounds' models."""
    assert bounds().keys() == GROUPS[Part.BOUNDS] | {Part.CLOSED_FORMS}
    assert not bounds().keys() & improvers().keys()
    assert {*bounds(), *improvers(), *GROUPS, Part.PASSING_PAIRS} == set(Part)


def test_a_file_in_the_folder_has_at_most_one_part() -> None:
    """No two files share one, and none is skipped."""
    for package, found in ((solve_bounds, bounds()), (improve, improvers())):
        folder = Path(str(package.__file__)).parent
        name = "BOUND" if package is solve_bounds else "IMPROVER"
        defining = [f for f in folder.rglob("*.py") if f"\n{name} = " in f.read_text()]
        assert len(defining) == len(found)


def test_a_certificate_s_prover_is_one_bound() -> None:
    """A bound is proven again by the class that proved it."""
    assert len({bound.prover for bound in bounds().values()}) == len(bounds())


def test_every_step_is_an_improver_or_a_step_of_the_prover() -> None:
    named = {step.action for step in (*steps(LARGE), *last_steps(LARGE), *steps(ANNEALED))}
    assert {part for part in named if isinstance(part, Part)} == improvers().keys() - {
        Part.FAMILIES  # where every search begins
    }


def test_a_group_stands_for_its_members_and_the_other_way_round() -> None:
    members = GROUPS[Part.BOUNDS]
    assert with_groups({Part.BOUNDS}) == with_groups(members) == members | {Part.BOUNDS}
    assert with_groups({Part.IDLE_TIME}) == {Part.IDLE_TIME}
    assert SolveOptions(without=members).without == members | {Part.BOUNDS}


def setting(problem: Problem, *without: Part) -> BoundSetting:
    return BoundSetting(
        relaxed_for_fusion(problem),
        problem.objective,
        replace(counted(1), without=frozenset(without)),
        lambda: Reference(100_000, None),
        ProofState(),
        lambda: False,
    )


@pytest.mark.parametrize("part", bounds())
def test_each_bound_is_left_out_by_itself(part: Part) -> None:
    policy = BoundPolicy(setting(TURNS, part))
    begun = {other for other in bounds() if policy._bound(other) is not None}
    assert begun == bounds().keys() - {part}


@pytest.mark.parametrize("part", [Part.RANK_SUBSETS, Part.FORWARD_SPACING])
def test_passing_pairs_are_left_out_of_every_bound(
    part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four ranks, two leave two out, on which ops pass each other."""
    added: list[object] = []
    monkeypatch.setattr(model, "add_passing_pairs", lambda *a: added.append(a))
    problem = Problem(table_costs(4), placement("linear", 4), 24, (9,) * 4)
    for without in ((), (Part.PASSING_PAIRS,)):
        added.clear()
        bound = bounds()[part].of(setting(problem, *without))
        assert bound is not None
        next(bound.prove(1.0))
        assert bool(added) == (not without)


@pytest.mark.parametrize("part", Part)
def test_the_search_does_without_each_part(part: Part) -> None:
    problem = Problem(table_costs(2), placement("linear", 2), 4, (4,) * 2)
    best = solve(problem, counted(1))
    found = solve(problem, replace(counted(1), without=frozenset({part})))
    assert best.value_us == best.lower_bound_us == found.value_us
    assert found.lower_bound_us <= found.value_us
