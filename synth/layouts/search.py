"""The search for the best layout of a run: bounds for all, schedules for those that can win."""

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from heapq import nsmallest
from itertools import chain
from math import inf
from typing import NamedTuple, Protocol

from synth.errors import SynthError
from synth.layouts.answer import SOLVED, Bounded, JudgedLayout, LayoutAnswer, Unfit, kind_of
from synth.layouts.judge import LayoutJudge, judged_plan
from synth.layouts.layout_bounds import LayoutBounds, bounded_layouts
from synth.layouts.legal import alike_layouts
from synth.layouts.question import LayoutQuestion, RunLayout
from synth.layouts.quick_bounds import QuickBounds, Waiting
from synth.layouts.runtime_rules import recomputes_layers
from synth.layouts.stability import stability
from synth.layouts.tuning import LAYOUT_SEARCH
from synth.plan.runtimes import Runtime
from synth.schedule.files.plan_file import Plan

# Takes what is being done, and the answer so far.
OnProgress = Callable[[str, LayoutAnswer], None]


class SolvedPipeline(NamedTuple):
    """A pipeline that the solver found.

    Attributes:
        bound_us: of the makespan, over all partitions; 0: it does not hold for all.
    """

    plan: Plan
    peaks_bytes: tuple[int, ...]
    bound_us: int


class PipelineSolver(Protocol):
    """Solves the pipeline of a layout."""

    def __call__(
        self, judged: JudgedLayout, limit_s: float, stop: threading.Event
    ) -> SolvedPipeline | None:
        """Return the best pipeline found in some seconds on a judged layout's placement."""


class NamedLayout(NamedTuple):
    """A layout to be judged beside the others, as a user named it, with a schedule or None."""

    text: str
    layout: RunLayout
    schedule: str | None = None


class LayoutSearch:
    """A search for the best layout; the answer is there at any time."""

    def __init__(
        self,
        question: LayoutQuestion,
        limit_s: float,
        *,
        solve: PipelineSolver | None = None,
        also: Sequence[NamedLayout] = (),
        seed: int = 0,
        stop: threading.Event | None = None,
        on_progress: OnProgress = lambda text, answer: None,
    ) -> None:
        """Search for nothing yet.

        Args:
            limit_s: the time limit.
            solve: gets the best layouts; None: published schedules only.
            also: layouts to judge in any case.
            seed: of the draws of factors.
            stop: set it to end the search.
            on_progress: called before each layout that is judged or solved.
        """
        self.question, self.limit_s, self.seed = question, limit_s, seed
        self.solve, self.also, self.on_progress = solve, also, on_progress
        self.stop = stop or threading.Event()
        self.answer = LayoutAnswer(question)
        self._began = time.monotonic()
        # Layouts with a quick bound alone, those last that look best.
        self._waiting: list[Waiting] = []
        self._bounded: list[Bounded] = []
        self._judged: set[RunLayout] = set()
        self._raised_us: dict[str, float] = {}
        self._are_all_listed = False

    def run(self) -> LayoutAnswer:
        """Bound, judge and solve; return the answer."""
        self._list_layouts()
        self._bound(LAYOUT_SEARCH.bound_share)
        self._judge_named()
        self._judge_open()
        self._judge_kinds()
        self._solve_best()
        self._look_at_stability()
        return self.answer

    def _is_late(self, share: float) -> bool:
        return self.stop.is_set() or time.monotonic() - self._began > share * self.limit_s

    def _list_layouts(self) -> None:
        """Give each legal layout a quick bound, and order them by about their best steps.

        Of the first ones, which are drawn at random, one is judged at once.
        """
        self.on_progress("listing layouts", self.answer)
        quick = QuickBounds(self.question)
        every = list(alike_layouts(self.question))
        self.answer.legal = sum(map(len, every))
        # If there is no time for all, those with whole experts come first.
        random.Random(self.seed).shuffle(every)
        every.sort(key=lambda alike: alike[0].groups.expert_tensor)
        for number, alike in enumerate(every):
            is_between = number and number % LAYOUT_SEARCH.bounded_at_once == 0
            # Those that exceed the memory limit take no time, so whether all do is always found.
            can_end = self.stop.is_set() or self._waiting or self._bounded
            if is_between and can_end and self._is_late(LAYOUT_SEARCH.list_share):
                break
            found = quick.of(alike)
            self.answer.bounded += len(alike)
            if isinstance(found, Waiting):
                self._waiting.append(found)
            else:
                self._keep_bounds(found)
            if number + 1 == LAYOUT_SEARCH.first_listed:
                self._order_waiting()
                self._bound_first()
                self._judge_first()
                self.on_progress("listing the other layouts", self.answer)
        self._order_waiting()
        self._are_all_listed = self.answer.bounded == self.answer.legal
        self._update_bound()

    def _order_waiting(self) -> None:
        self._waiting.sort(key=lambda one: one.guess_us, reverse=True)

    def _bound_first(self) -> None:
        """Bound the layouts that look best, and those with the least quick bounds, which count."""
        batch = [self._waiting.pop() for _ in self._waiting[-LAYOUT_SEARCH.bounded_at_once :]]
        least = nsmallest(LAYOUT_SEARCH.bounded_at_once, self._waiting, lambda one: one.bound_us)
        for one in least:
            self._waiting.remove(one)
        batch += least
        layouts = chain.from_iterable(one.layouts for one in batch)
        best = self.answer.best
        enough_us = inf if best is None else best.us
        self._keep_bounds(bounded_layouts(self.question, layouts, enough_us))

    def _bound(self, until_share: float) -> None:
        """Bound the layouts that look best, as long as there is time and they may be the best.

        Some are bounded in any case, and some judged as soon as enough are to choose from.
        """
        while self._can_win_unbounded() and not self.stop.is_set():
            if self._bounded and self._is_late(until_share):
                break
            self._bound_first()
            if self.answer.best is None and len(self._bounded) >= LAYOUT_SEARCH.first_bounded:
                self._judge_first()
        self._update_bound()

    def _can_win_unbounded(self) -> bool:
        """True if a layout with a quick bound alone may be faster than the best one."""
        best = self.answer.best
        return any(best is None or one.bound_us < best.us for one in self._waiting)

    def _keep_bounds(self, bounds: Iterable[Bounded | Unfit]) -> None:
        for one in bounds:
            if isinstance(one, Bounded):
                self._bounded.append(one)
            else:
                self.answer.unfit += 1
                self.answer.add_unfit(one)

    def _judge_first(self) -> None:
        """Judge a few layouts until one fits, those first that look best."""
        late = partial(self._is_late, LAYOUT_SEARCH.bound_share)
        judge = LayoutJudge(self.question, late)
        for bounded in self._to_judge()[: LAYOUT_SEARCH.first_judged]:
            if self.answer.best is not None or late():
                return
            self._judge(judge, bounded.layout)

    def _to_judge(self) -> list[Bounded]:
        """Layouts that were not judged yet, those first that look best."""
        best = self.answer.best
        left = (
            one
            for one in self._bounded
            if one.layout not in self._judged and (best is None or one.bound_us < best.us)
        )
        return sorted(left, key=lambda one: one.guess_us)

    def _judge(self, judge: LayoutJudge, layout: RunLayout, below_us: float | None = None) -> None:
        """Judge a layout, and keep it if it fits."""
        self._judged.add(layout)
        self.on_progress(f"judging {layout.words}", self.answer)
        found = judge.best(layout, below_us)
        self.answer.judged += 1
        if found is not None and found.fits:
            self._add(found)
        elif found is not None:
            self.answer.add_too_large(found)

    def _judge_named(self) -> None:
        """Judge the layouts that were named; those that fit are candidates, too."""
        judge = LayoutJudge(self.question, self.stop.is_set)
        for named in self.also:
            self.on_progress(f"judging {named.text}", self.answer)
            found = judge.best(named.layout, name=named.schedule)
            self.answer.also[named.text] = found
            if found is not None and found.fits:
                self._add(found)

    def _judge_open(self) -> None:
        """Judge layouts whose bound is below the best step, those that look best first."""
        judge = LayoutJudge(self.question, lambda: self._is_late(LAYOUT_SEARCH.judge_share))
        while listed := self._to_judge():
            for bounded in listed:
                best = self.answer.best
                if self._is_late(1.0 if best is None else LAYOUT_SEARCH.judge_share):
                    return
                if best is None or bounded.bound_us < best.us:
                    self._judge(judge, bounded.layout, None if best is None else best.us)
            self._bound(1.0 if self.answer.best is None else LAYOUT_SEARCH.judge_share)
        is_whole = self._are_all_listed and not self._can_win_unbounded()
        self.answer.is_complete = is_whole and not self.stop.is_set()

    def _judge_kinds(self) -> None:
        """Judge a layout of each tp and pp that has none yet, those first that look best."""
        judge = LayoutJudge(self.question, lambda: self._is_late(LAYOUT_SEARCH.kinds_share))
        known = {kind_of(one.layout) for one in self.answer.ranked}
        tried = 0
        for bounded in sorted(self._bounded, key=lambda one: one.guess_us):
            if self._is_late(LAYOUT_SEARCH.kinds_share) or tried == LAYOUT_SEARCH.kinds:
                return
            kind = kind_of(bounded.layout)
            if kind in known:
                continue
            known.add(kind)
            tried += 1
            self._judge(judge, bounded.layout)

    def _solve_best(self) -> None:
        """Give the best layouts to the solver, each an equal part of the time that is left."""
        chosen = [one for one in self._to_solve() if self._may_improve(one)]
        for number, judged in enumerate(chosen):
            left_s = self._began + LAYOUT_SEARCH.solve_share * self.limit_s - time.monotonic()
            limit_s = left_s / (len(chosen) - number)
            if self.solve is None or self.stop.is_set() or limit_s < LAYOUT_SEARCH.least_solve_s:
                return
            self.on_progress(f"solving {judged.layout.words}", self.answer)
            with suppress(SynthError):  # nothing is found in time
                solved = self.solve(judged, limit_s, self.stop)
                if solved is not None and self._is_of_runtime(judged, solved.plan):
                    self._add(self._with_plan(judged, solved))

    def _may_improve(self, judged: JudgedLayout) -> bool:
        """False for F and BW at once where the only orders searched for are without such pairs."""
        return self.question.allowed.orders_freely or not judged.plan.schedule().overlapped

    def _to_solve(self) -> list[JudgedLayout]:
        """The best layouts with a pipeline; one and several stages per rank are among them."""
        ranked = [one for one in self.answer.ranked if one.layout.ranks > 1]
        listed = ranked[: LAYOUT_SEARCH.solved]
        has_several = {one.layout.rounds > 1 for one in listed}
        others = (one for one in ranked if (one.layout.rounds > 1) not in has_several)
        other = next((one for one in others if one.bound_us < ranked[0].us), None)
        return listed if other is None else [*listed[:-1], other]

    def _is_of_runtime(self, judged: JudgedLayout, plan: Plan) -> bool:
        """True if the runtime has options for the layers that a plan recomputes."""
        runtime = self.question.allowed.runtime
        return not plan.recomputed_layers or recomputes_layers(runtime, judged.layout.groups)

    def _with_plan(self, judged: JudgedLayout, solved: SolvedPipeline) -> JudgedLayout:
        layout = judged.layout
        bounds = LayoutBounds(self.question, layout.groups)
        name, peaks = f"{SOLVED}, {judged.placement}", solved.peaks_bytes
        found = judged_plan(
            self.question, layout, bounds, solved.plan, name, judged.placement, peaks
        )
        # Two stages per rank are looped or a V, and the solver's bound holds for one of them, and
        # for orders without F and BW at once.
        is_only = layout.rounds != 2 or self.question.allowed.runtime == Runtime.MEGATRON
        is_only = is_only and not bounds.has_pairs(layout)
        bound_us = bounds.step_bound_us(layout, solved.bound_us if is_only else 0)
        self._raised_us[layout.words] = max(bound_us, found.bound_us)
        return found.with_bound(bound_us) if found.fits else found

    def _add(self, judged: JudgedLayout) -> None:
        self.answer.add(judged)
        self._update_bound()

    def _update_bound(self) -> None:
        """No layout takes less than the least bound, or than the best step."""
        if not self._are_all_listed:
            return
        raised = self._raised_us
        bounds = [max(one.bound_us, raised.get(one.layout.words, 0.0)) for one in self._bounded]
        bounds += [one.bound_us for one in self._waiting]
        best = self.answer.best
        if best is not None:
            bounds.append(best.us)
        self.answer.bound_us = min(bounds, default=None)

    def _look_at_stability(self) -> None:
        shortlist = self.answer.best_of_each()[: LAYOUT_SEARCH.shortlist]
        if len(shortlist) > 1 and not self.stop.is_set():
            self.on_progress("judging the best layouts under other factors", self.answer)
            found = stability(
                self.question, shortlist, LAYOUT_SEARCH.draws, self.seed, lambda: self._is_late(1.0)
            )
            self.answer.stability = found
