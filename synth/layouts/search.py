"""The search for the best layout of a run: bounds for all, schedules for those that can win."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, groupby, islice
from typing import NamedTuple, Protocol

from synth.errors import SynthError
from synth.layouts.answer import LayoutAnswer, kind_of
from synth.layouts.judge import LayoutJudge, judged_plan
from synth.layouts.judged import SOLVED, Bounded, JudgedLayout
from synth.layouts.layout_bounds import LayoutBounds, bounded_layouts
from synth.layouts.legal import legal_layouts
from synth.layouts.question import LayoutQuestion, RunLayout
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
        plan: with its claim.
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
        self._bounded: list[Bounded] = []
        self._raised_us: dict[str, float] = {}
        self._are_all_bounded = False

    def run(self) -> LayoutAnswer:
        """Bound, judge and solve; return the answer."""
        self._bound_all()
        self._judge_named()
        self._judge_open()
        self._judge_kinds()
        self._solve_best()
        self._look_at_stability()
        return self.answer

    def _is_late(self, share: float) -> bool:
        return self.stop.is_set() or time.monotonic() - self._began > share * self.limit_s

    def _bound_all(self) -> None:
        """Bound all layouts, or those in a random order for which there is time."""
        self.on_progress("bounding layouts", self.answer)
        listed = list(legal_layouts(self.question))
        self.answer.legal = len(listed)
        alike = [list(of) for _, of in groupby(listed, lambda one: (one.groups, one.ranks))]
        random.Random(self.seed).shuffle(alike)
        found = bounded_layouts(self.question, chain.from_iterable(alike))
        has_judged = False
        while not self.stop.is_set():
            batch = list(islice(found, LAYOUT_SEARCH.bounded_at_once))
            if not batch:
                self._are_all_bounded = True
                self._update_bound()
                return
            self.answer.bounded += len(batch)
            self.answer.unfit += batch.count(None)
            self._bounded += [one for one in batch if one is not None]
            if not has_judged and self._is_late(LAYOUT_SEARCH.first_share):
                has_judged = True
                self._judge_first()
            if self.answer.best is not None and self._is_late(LAYOUT_SEARCH.bound_share):
                return
            if self._is_late(LAYOUT_SEARCH.judge_share):
                return

    def _judge_first(self) -> None:
        """Judge layouts that have a bound until one fits, those first that look best."""
        late = partial(self._is_late, LAYOUT_SEARCH.bound_share)
        judge = LayoutJudge(self.question, late)
        for bounded in sorted(self._bounded, key=lambda one: one.guess_us):
            if self.answer.best is not None or late():
                return
            self._judge(judge, bounded.layout)

    def _judge(self, judge: LayoutJudge, layout: RunLayout, below_us: float | None = None) -> None:
        """Judge a layout, and keep it if it fits."""
        self.on_progress(f"judging {layout.words}", self.answer)
        found = judge.best(layout, below_us)
        self.answer.judged += 1
        if found is not None and found.fits:
            self._add(found)

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
        for bounded in sorted(self._bounded, key=lambda one: one.guess_us):
            best = self.answer.best
            if self._is_late(1.0 if best is None else LAYOUT_SEARCH.judge_share):
                return
            if best is not None and bounded.bound_us >= best.us:
                continue
            self._judge(judge, bounded.layout, None if best is None else best.us)
        self.answer.is_complete = self._are_all_bounded and not self.stop.is_set()

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
        chosen = [one for one in self.answer.ranked if one.layout.ranks > 1]
        chosen = chosen[: LAYOUT_SEARCH.solved]
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
        # Two stages per rank are looped or a V, and the solver's bound holds for one of them.
        is_only = layout.rounds != 2 or self.question.allowed.runtime == Runtime.MEGATRON
        bound_us = bounds.step_bound_us(layout, solved.bound_us if is_only else 0)
        self._raised_us[layout.words] = max(bound_us, found.bound_us)
        return found.with_bound(bound_us) if found.fits else found

    def _add(self, judged: JudgedLayout) -> None:
        self.answer.add(judged)
        self._update_bound()

    def _update_bound(self) -> None:
        """No layout takes less than the least bound, or than the best step."""
        raised = self._raised_us
        bounds = (max(one.bound_us, raised.get(one.layout.words, 0.0)) for one in self._bounded)
        least_us = min(bounds, default=None)
        best = self.answer.best
        if least_us is not None and self._are_all_bounded:
            self.answer.bound_us = least_us if best is None else min(least_us, best.us)

    def _look_at_stability(self) -> None:
        shortlist = self.answer.best_of_each()[: LAYOUT_SEARCH.shortlist]
        if len(shortlist) > 1 and not self.stop.is_set():
            self.on_progress("judging the best layouts under other factors", self.answer)
            found = stability(
                self.question, shortlist, LAYOUT_SEARCH.draws, self.seed, lambda: self._is_late(1.0)
            )
            self.answer.stability = found
