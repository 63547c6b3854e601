"""The table of steps: what runs in which setting, and for what share of the time."""

from dataclasses import replace

from synth.solver.bounds.prover import BoundStep
from synth.solver.options import Part, with_groups
from synth.solver.search_setting import SearchSetting
from synth.solver.search_steps import Step, last_steps, steps
from synth.solver.tuning import SEARCH

LARGE = SearchSetting(
    without=frozenset(),
    num_ops=5_000,
    holds_several=False,
    buffers_matter=False,
    proves_in_background=True,
    uses_milp=False,
)
TINY = replace(LARGE, num_ops=100)


def actions(setting: SearchSetting) -> list[Part | BoundStep]:
    return [step.action for step in steps(setting)]


def test_a_large_problem_gets_heuristics_before_the_exact_model() -> None:
    assert actions(LARGE) == [
        Part.LIST_SCHEDULING,
        BoundStep.IN_BACKGROUND,
        Part.SHORT_INSTANCE,
        Part.LIST_SCHEDULING,
        Part.MODULO,
        BoundStep.IN_TURN,
        Part.WINDOWS,
        Part.EXACT,
        BoundStep.AWAIT,
    ]


def test_a_tiny_problem_gets_the_exact_model_for_all_the_time() -> None:
    assert Step(Part.EXACT, 1.0) in steps(TINY)
    assert Part.SHORT_INSTANCE not in actions(TINY)
    assert actions(TINY).index(BoundStep.ONE_BY_ONE) < actions(TINY).index(Part.EXACT)


def test_where_buffers_matter_annealing_shares_the_time_with_the_exact_model() -> None:
    tiny = list(steps(replace(TINY, buffers_matter=True)))
    shares = [share for action, share, _ in tiny if action == Part.EXACT]
    assert shares == [SEARCH.brief_share, SEARCH.annealing_share]
    assert tiny[-2:] == [Step(Part.ANNEALING, 1.0), Step(BoundStep.AWAIT, 1.0)]


def test_where_ranks_hold_several_stages_annealing_gets_most_of_the_time() -> None:
    several = replace(LARGE, buffers_matter=True, holds_several=True)
    found = [step for step in steps(several) if isinstance(step.action, Part)]
    assert found[-3:] == [
        Step(Part.WINDOWS, SEARCH.window_share_beside_annealing, is_brief=True),
        Step(Part.ANNEALING, SEARCH.annealing_share_of_several),
        Step(Part.ANNEALING, 1.0),
    ]
    assert Part.EXACT in actions(replace(several, num_ops=400))


def test_a_mixed_integer_program_replaces_all_that_follows_the_first_answers() -> None:
    assert actions(replace(LARGE, uses_milp=True)) == [
        Part.LIST_SCHEDULING,
        Part.EXACT,
    ]


def test_parts_that_are_left_out_have_no_step() -> None:
    without = {Part.LIST_SCHEDULING, Part.SHORT_INSTANCE, Part.MODULO, Part.WINDOWS, Part.BOUNDS}
    bare = replace(LARGE, without=with_groups(without))
    assert actions(bare) == [Part.EXACT, BoundStep.AWAIT]
    assert actions(replace(bare, without=frozenset(Part))) == [BoundStep.AWAIT]


def test_a_step_is_brief_where_others_follow() -> None:
    """List scheduling the first time, annealing before other steps, windows of a small problem."""
    assert {s.action for s in steps(LARGE) if s.is_brief} == {Part.LIST_SCHEDULING}
    annealed = replace(LARGE, buffers_matter=True, num_ops=400)
    assert [s.action for s in steps(annealed) if s.is_brief] == [
        Part.LIST_SCHEDULING,
        Part.ANNEALING,
        Part.WINDOWS,
    ]


def test_a_search_ends_with_a_simpler_and_more_robust_plan_unless_it_serves_another() -> None:
    assert [s.action for s in last_steps(LARGE)] == [
        Part.SIMPLIFICATION,
        Part.ROBUSTNESS,
    ]
    assert not list(last_steps(replace(LARGE, is_within=True)))
