"""The table of steps: what runs in which setting, and for what share of the time."""

from dataclasses import replace

from synth.solve.options import Part
from synth.solve.policy import SearchAction, SearchSetting, Step, steps
from synth.solve.tuning import SEARCH

LARGE = SearchSetting(
    without=frozenset(),
    num_ops=5_000,
    holds_several=False,
    buffers_matter=False,
    proves_in_background=True,
    uses_milp=False,
)
TINY = replace(LARGE, num_ops=100)


def actions(setting: SearchSetting) -> list[SearchAction]:
    return [step.action for step in steps(setting)]


def test_a_large_problem_gets_heuristics_before_the_exact_model() -> None:
    assert actions(LARGE) == [
        SearchAction.QUICK_LIST_SCHEDULING,
        SearchAction.POLISH,
        SearchAction.BACKGROUND_BOUNDS,
        SearchAction.SHORT_INSTANCE,
        SearchAction.LIST_SCHEDULING,
        SearchAction.MODULO,
        SearchAction.BOUNDS_IN_TURN,
        SearchAction.WINDOWS,
        SearchAction.EXACT,
        SearchAction.AWAIT_BOUNDS,
    ]


def test_a_tiny_problem_gets_the_exact_model_for_all_the_time() -> None:
    assert Step(SearchAction.EXACT, 1.0) in steps(TINY)
    assert SearchAction.SHORT_INSTANCE not in actions(TINY)
    assert actions(TINY).index(SearchAction.BOUNDS_ONE_BY_ONE) < actions(TINY).index(
        SearchAction.EXACT
    )


def test_where_buffers_matter_annealing_shares_the_time_with_the_exact_model() -> None:
    tiny = list(steps(replace(TINY, buffers_matter=True)))
    shares = [share for action, share in tiny if action == SearchAction.EXACT]
    assert shares == [SEARCH.brief_share, SEARCH.annealing_share]
    assert tiny[-2:] == [Step(SearchAction.ANNEALING, 1.0), Step(SearchAction.AWAIT_BOUNDS, 1.0)]


def test_a_mixed_integer_program_replaces_all_that_follows_the_first_answers() -> None:
    assert actions(replace(LARGE, uses_milp=True)) == [
        SearchAction.QUICK_LIST_SCHEDULING,
        SearchAction.POLISH,
        SearchAction.MILP,
    ]


def test_parts_that_are_left_out_have_no_step() -> None:
    without = {Part.LIST_SCHEDULING, Part.FEWER, Part.PATTERNS, Part.WINDOWS, Part.BOUNDS}
    bare = replace(LARGE, without=frozenset(without))
    assert actions(bare) == [SearchAction.POLISH, SearchAction.EXACT, SearchAction.AWAIT_BOUNDS]
    assert actions(replace(bare, without=frozenset(Part))) == [
        SearchAction.POLISH,
        SearchAction.AWAIT_BOUNDS,
    ]
