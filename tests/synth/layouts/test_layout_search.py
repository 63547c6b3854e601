"""The search for a layout: as good as judging all, its bound below all, and stopped at any time."""

import threading
from types import SimpleNamespace

import pytest

from synth.errors import SynthError
from synth.layouts import judge as judge_module
from synth.layouts import search as search_module
from synth.layouts.answer import JudgedLayout, LayoutAnswer, kind_of
from synth.layouts.judge import LayoutJudge
from synth.layouts.legal import alike_layouts, legal_layouts
from synth.layouts.named_layout import read_layout
from synth.layouts.question import RunLayout
from synth.layouts.quick_bounds import QuickBounds, Waiting
from synth.layouts.search import LayoutSearch
from synth.layouts.tuning import LayoutSearchTuning
from synth.plan.published.best_variant import BestVariant
from tests.sweep import sweep
from tests.synth.layouts.random_questions import random_question

_LONG_S = 1000.0

# Searches for partitions that no clock ends.
NO_CLOCK = LayoutSearchTuning(cuts_s=_LONG_S, family_s=_LONG_S)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sweep(range(9), daily=2))
def test_it_is_never_worse_than_judging_every_layout(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_module, "LAYOUT_SEARCH", NO_CLOCK)
    question = random_question(seed)
    answer = LayoutSearch(question, _LONG_S).run()
    judge = LayoutJudge(question)
    every = [judge.best(layout) for layout in legal_layouts(question)]
    fitting = [one for one in every if one is not None and one.fits]
    if not fitting:
        assert answer.best is None
        return
    least_us = min(one.us for one in fitting)
    assert answer.best is not None and answer.bound_us is not None
    assert answer.is_complete
    assert answer.best.us <= least_us
    assert answer.bound_us <= least_us * (1 + 1e-9)


class QuickJudge(LayoutJudge):
    """Judges by the first published schedule alone, on the first partition."""

    def best(
        self, layout: RunLayout, below_us: float | None = None, name: str | None = None
    ) -> JudgedLayout | None:
        first = next(iter(self._names(layout)), None)
        return None if first is None else super().best(layout, below_us, name or first)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sweep(range(200), daily=10))
def test_no_layout_that_is_left_out_is_better(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the bounds, the guesses and their order: with all layouts judged by one schedule."""
    monkeypatch.setattr(judge_module, "LAYOUT_SEARCH", LayoutSearchTuning(cuts_s=0, family_s=0))
    monkeypatch.setattr(search_module, "LayoutJudge", QuickJudge)
    monkeypatch.setattr(
        search_module, "LAYOUT_SEARCH", LayoutSearchTuning(first_bounded=20, bounded_at_once=3)
    )
    question = random_question(seed)
    answer = LayoutSearch(question, _LONG_S, seed=seed).run()
    judge = QuickJudge(question)
    every = [judge.best(layout) for layout in legal_layouts(question)]
    fitting = [one.us for one in every if one is not None and one.fits]
    assert (answer.best is not None) == bool(fitting)
    if answer.best is not None:
        assert answer.is_complete and answer.bound_us is not None
        assert answer.best.us <= min(fitting)
        assert answer.bound_us <= min(fitting) * (1 + 1e-9)


def test_layers_are_recomputed_also_where_an_uneven_partition_would_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory makes the partition uneven; with a layer recomputed it is even, and faster."""
    monkeypatch.setattr(judge_module, "LAYOUT_SEARCH", NO_CLOCK)
    question = random_question(44)
    layout = read_layout("tp=2,pp=4,mbs=4", question).layout
    chosen = LayoutJudge(question).best(layout, name="1f1b")
    monkeypatch.setattr(BestVariant, "with_layers", lambda self, plain: None)
    uneven = LayoutJudge(question).best(layout, name="1f1b")
    assert chosen is not None and uneven is not None and uneven.fits
    assert (chosen.recomputed, uneven.recomputed) == (1, 0)
    assert chosen.us < uneven.us


def test_a_stopped_search_keeps_the_best_so_far() -> None:
    question, stop = random_question(2).within(None), threading.Event()
    seen: list[float] = []

    def on_progress(text: str, answer: LayoutAnswer) -> None:
        if answer.best is not None:
            seen.append(answer.best.us)
            stop.set()

    answer = LayoutSearch(question, _LONG_S, stop=stop, on_progress=on_progress).run()
    assert answer.best is not None and seen
    assert not answer.is_complete


def test_a_search_that_is_stopped_while_it_bounds_has_no_bound() -> None:
    question, stop = random_question(0).within(None), threading.Event()
    stop.set()
    named = read_layout("pp=2", question)
    answer = LayoutSearch(question, _LONG_S, also=[named], stop=stop).run()
    assert answer.best is not None
    assert (answer.bound_us, answer.gap, answer.is_complete) == (None, None, False)


def test_without_time_not_all_layouts_are_bounded() -> None:
    question = random_question(0).within(None)
    answer = LayoutSearch(question, 0.0).run()
    assert 0 < answer.bounded < answer.legal
    assert (answer.best, answer.bound_us, answer.is_complete) == (None, None, False)


def test_a_layout_is_judged_before_all_have_closer_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    early = LayoutSearchTuning(first_bounded=1, bounded_at_once=2)
    monkeypatch.setattr(search_module, "LAYOUT_SEARCH", early)
    question, stop = random_question(0).within(None), threading.Event()
    found = LayoutSearch(question, _LONG_S, stop=stop)
    waiting_at: list[int] = []
    add = found._add

    def adding(judged: JudgedLayout) -> None:
        waiting_at.append(len(found._waiting))
        add(judged)
        stop.set()

    monkeypatch.setattr(found, "_add", adding)
    answer = found.run()
    assert answer.best is not None
    assert waiting_at[0] > 0


def test_a_layout_is_judged_before_all_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "LAYOUT_SEARCH", LayoutSearchTuning(first_listed=3))
    question, found = random_question(0).within(None), list[tuple[int, int]]()

    def on_progress(text: str, answer: LayoutAnswer) -> None:
        found.append((answer.judged, answer.bounded))

    answer = LayoutSearch(question, _LONG_S, on_progress=on_progress).run()
    judged_before_all = [judged for judged, bounded in found if bounded < answer.legal]
    assert len(judged_before_all) > 1 and answer.bounded == answer.legal


def test_the_least_quick_bounds_become_closer_before_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = LayoutSearchTuning(bounded_at_once=2, first_listed=10**6)
    monkeypatch.setattr(search_module, "LAYOUT_SEARCH", few)
    search = LayoutSearch(random_question(4).within(None), _LONG_S)
    search._list_layouts()
    by_guess = search._waiting[-2:]
    least = sorted(search._waiting[:-2], key=lambda one: one.bound_us)[:2]
    search._bound_first()
    assert not any(one in search._waiting for one in (*by_guess, *least))
    closer = {one.layout.words: one.bound_us for one in search._bounded}
    for one in least:
        assert all(closer[layout.words] >= one.bound_us for layout in one.layouts)


def test_a_search_that_listed_for_all_its_time_still_finds_a_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = LayoutSearchTuning(list_share=0, bound_share=0, judge_share=0, bounded_at_once=1)
    monkeypatch.setattr(search_module, "LAYOUT_SEARCH", late)
    answer = LayoutSearch(random_question(0), _LONG_S).run()
    assert 0 < answer.bounded < answer.legal
    assert answer.best is not None and not answer.is_complete


def test_a_search_that_ends_with_few_closer_bounds_has_a_bound_over_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early = LayoutSearchTuning(first_bounded=1, bounded_at_once=2)
    monkeypatch.setattr(search_module, "LAYOUT_SEARCH", early)
    question, stop = random_question(0).within(None), threading.Event()
    found = LayoutSearch(question, _LONG_S, stop=stop)

    def stopping(text: str, answer: LayoutAnswer) -> None:
        if answer.best is not None:
            stop.set()

    found.on_progress = stopping
    answer = found.run()
    assert found._waiting and answer.bound_us is not None
    quick = [QuickBounds(question).of(alike) for alike in alike_layouts(question)]
    waiting = [one.bound_us for one in quick if isinstance(one, Waiting)]
    assert min(waiting) <= answer.bound_us


def test_of_layouts_that_cannot_fit_the_closest_is_told() -> None:
    """Every rank holds a whole layer at least, so no limit below the largest layer is kept."""
    question = random_question(1)
    limit = 10**6
    answer = LayoutSearch(question.within(limit), _LONG_S).run()
    assert answer.best is None and answer.unfit == answer.legal
    unfit = answer.closest_unfit
    assert unfit is not None and unfit.least_bytes > limit
    quick = QuickBounds(question)
    assert unfit.least_bytes == min(
        quick.least_bytes(one.groups, one.ranks) for one in legal_layouts(question)
    )


def test_of_layouts_that_may_fit_the_closest_schedule_is_told() -> None:
    question = random_question(1)
    quick = QuickBounds(question)
    legal = list(legal_layouts(question))
    limit = round(1.001 * min(quick.least_bytes(one.groups, one.ranks) for one in legal))
    answer = LayoutSearch(question.within(limit), _LONG_S).run()
    assert answer.best is None and answer.unfit < answer.legal
    assert answer.closest_judged is not None
    assert max(answer.closest_judged.peaks_bytes) > limit


@pytest.mark.parametrize(
    ("judged", "solved"),
    [
        ([(4, 2, 10), (4, 3, 11), (4, 4, 12), (4, 1, 13)], [2, 3, 1]),
        ([(4, 1, 10), (4, 1, 11), (1, 1, 12), (4, 1, 12), (2, 4, 13)], [1, 1, 4]),
        ([(4, 2, 10), (4, 1, 11), (4, 3, 12), (4, 1, 13)], [2, 1, 3]),
        ([(4, 2, 10), (4, 3, 11), (4, 4, 12), (4, 1, 30)], [2, 3, 4]),  # its bound is 15
        ([(1, 1, 10)], []),
    ],
)
def test_the_solver_gets_layouts_with_one_and_with_several_stages_per_rank(
    judged: list[tuple[int, int, int]], solved: list[int]
) -> None:
    """Ranks, stages per rank and steps of those judged, best first; a bound is half a step."""
    search = LayoutSearch(random_question(0), _LONG_S)
    search.answer.ranked = [
        SimpleNamespace(  # type: ignore[misc]
            layout=SimpleNamespace(ranks=ranks, rounds=rounds), us=us, bound_us=us / 2
        )
        for ranks, rounds, us in judged
    ]
    assert [one.layout.rounds for one in search._to_solve()] == solved


@pytest.mark.slow
def test_the_shortlist_is_judged_under_other_factors() -> None:
    question = random_question(0).within(None)
    answer = LayoutSearch(question, _LONG_S).run()
    assert answer.stability is not None
    assert len(answer.stability.wins) == len({kind_of(one.layout) for one in answer.ranked})
    assert not answer.stability.is_cut_short
    assert sum(answer.stability.wins) == answer.stability.draws > 0
    assert 0 <= answer.stability.median_regret <= answer.stability.worst_regret


@pytest.mark.slow
def test_a_named_layout_is_judged_as_it_is_named() -> None:
    question = random_question(0).within(None)
    text = f"pp=2,dp={question.gpus // 2},schedule=1f1b"
    named = read_layout(text, question)
    answer = LayoutSearch(question, _LONG_S, also=[named]).run()
    found = answer.also[text]
    assert found is not None and answer.best is not None
    assert (found.schedule, found.layout) == ("1f1b", named.layout)
    assert answer.best.us <= found.us
    assert sum(found.parts) == pytest.approx(found.us)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tp=3", "heads"),
        ("pp=1000", "devices"),
        ("tp=x", "not understood"),
        ("pp=2,pp=2", "not understood"),
        ("size=2", "not understood"),
        ("pp=2,sharding=fsdp", "FSDP with a pipeline"),
        ("recompute=most", "not understood"),
        ("mbs=64", "sequences"),
        ("pp=2,schedule=nosuch", "nosuch"),
        ("pp=2,schedule=zb-v", "vp=2"),
    ],
)
def test_a_layout_that_does_not_go_is_refused(text: str, words: str) -> None:
    with pytest.raises(SynthError, match=words):
        read_layout(text, random_question(0))
