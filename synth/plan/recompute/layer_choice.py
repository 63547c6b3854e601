"""Choosing layers to recompute: for every stage one of the choices on its menu.

A stage holds what F keeps for each micro-batch that is in flight. The best number of micro-batches
in flight is not known, so choices are made for several numbers: each stage takes the choice with
the least work that leaves headroom for this number on its rank. List schedules show which
number is best, and then if a stage should recompute a little more or less.

    1F1B's number   rank 0 keeps for 4   for 3   for 2   for 1     layers recomputed:  6 4 2 0
    half of it                     2       2       1       1                           2 2 0 0
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple

from synth.costs.recomputation import Recomputation
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.plan.list_schedule_judge import ListScheduleJudge
from synth.plan.recompute.layer_menu import Menu, Option, costs_with, menus
from synth.plan.tuning import LAYER_SEARCH, LIST_JUDGING
from synth.schedule.model import SMALLEST_BUFFERING
from synth.solver.bounds import closed_form
from synth.solver.infeasibility import may_fit, needed_bytes
from synth.solver.instance.instance import SPLIT
from synth.solver.instance.memory_models import relaxed_for_fusion, safe_memory
from synth.solver.problem import Problem

# For each stage, the number of its choice.
Picks = tuple[int, ...]


def applies(problem: Problem) -> bool:
    """True if layers can be chosen: the problem has its profile and its partition."""
    return problem.profile is not None and problem.partition is not None


def with_layers(problem: Problem, layers: Collection[int]) -> Problem:
    """Return the problem with just these layers recomputed, as in `recomputing`."""
    assert problem.profile is not None and problem.partition is not None
    costs = costs_with(problem.profile, problem.partition, layers)
    return replace(problem, costs=costs, recomputed_layers=Recomputation(layers))


def without_layers(problem: Problem) -> Problem:
    """Return the problem without recomputed layers if the search may choose them; else itself."""
    return with_layers(problem, ()) if applies(problem) and problem.recomputed_layers else problem


class _Judged(NamedTuple):
    """A choice, the value of its best list schedule, and the time of F, B and W over all stages."""

    value_us: int
    work_us: int
    picks: Picks


class LayerSearch:
    """A search over choices of layers, judged by list schedules. It is deterministic."""

    def __init__(
        self, problem: Problem, effort_s: float, should_stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Judge nothing yet.

        Args:
            problem: with its profile, its partition and its caps.
            effort_s: seconds for list scheduling in all, counted in ops.
            should_stop: asked all the time.
        """
        assert problem.profile is not None and problem.partition is not None
        self.problem, self.should_stop = without_layers(problem), should_stop
        self.menus = menus(problem.profile, problem.partition)
        self.judge = ListScheduleJudge(problem, effort_s)
        self.judged: dict[Picks, int | None] = {}
        self.rule = 0

    def run(self) -> None:
        """Judge the choices for several numbers of micro-batches, then those near the best."""
        for picks in dict.fromkeys(self._starts()):
            if self.judged and self._is_over():
                return
            self._judge(picks)
        while (better := self._better()) is not None:
            self._judge(better)

    def best(self, most: int) -> list[Problem]:
        """Return the problem with the best choices, best first, except that of no layers.

        If there are only a few choices, return all that may fit. If list scheduling finds nothing
        under tight limits, those come first that recompute least.
        """
        ranked = [one for one in self._ranked() if any(one.picks)]
        near = [
            one.picks
            for one in ranked
            if one.value_us <= LIST_JUDGING.near_factor * ranked[0].value_us
        ]
        if self.are_few or not ranked:
            others = [p for p in self.judged if any(p) and p not in near and may_fit(self._with(p))]
            near += sorted(others, key=lambda picks: (self._work_us(picks), picks))
        count = LAYER_SEARCH.few_choices if self.are_few else most
        return [with_layers(self.problem, self._layers(picks)) for picks in near[:count]]

    @property
    def are_few(self) -> bool:
        """True if there are so few choices that all of them are judged."""
        return prod(len(menu.options) for menu in self.menus) <= LAYER_SEARCH.few_choices

    def least(self) -> Problem:
        """Return the problem with the choices of least memory for one micro-batch alone."""
        return with_layers(self.problem, self._layers(self._least()))

    def _layers(self, picks: Picks) -> Recomputation:
        options = (menu.options[pick] for menu, pick in zip(self.menus, picks, strict=True))
        return Recomputation({at: how for option in options for at, how in option.layers.items()})

    def _ranked(self) -> list[_Judged]:
        """Return the choices that fit, best first; of equals the one of the least work."""
        return sorted(
            _Judged(value_us, self._work_us(picks), picks)
            for picks, value_us in self.judged.items()
            if value_us is not None
        )

    def _work_us(self, picks: Picks) -> int:
        return sum(menu.options[pick].work_us for menu, pick in zip(self.menus, picks, strict=True))

    def _least(self) -> Picks:
        """Return for every stage the choice that needs the least memory."""
        headroom = _Headroom(self.problem, self.menus)
        return tuple(
            min(
                range(len(menu.options)), key=lambda pick: headroom.alone(stage, menu.options[pick])
            )
            for stage, menu in enumerate(self.menus)
        )

    def _starts(self) -> Iterator[Picks]:
        """Yield choices for several numbers in flight; the one of least memory may be second."""
        headroom = _Headroom(self.problem, self.menus)
        for share in LAYER_SEARCH.in_flight_shares:
            picks = self._fitting(headroom, share)
            if picks is not None:
                yield picks
            elif share == LAYER_SEARCH.in_flight_shares[0]:
                yield self._least()
        yield self._least()
        if self.are_few:
            yield from product(*(range(len(menu.options)) for menu in self.menus))

    def _fitting(self, headroom: "_Headroom", share: float) -> Picks | None:
        """Return a choice made for less memory until one micro-batch at a time fits."""
        caps = list(self.problem.caps_bytes or ())
        for _ in range(LAYER_SEARCH.corrections):
            picks = headroom.picks(share, caps)
            if picks is None:
                return None
            needed = needed_bytes(self._with(picks))
            over = [n - c for n, c in zip(needed, self.problem.caps_bytes or (), strict=True)]
            if max(over) <= 0:
                return picks
            caps = [cap - max(0, too_much) for cap, too_much in zip(caps, over, strict=True)]
        return None

    def _better(self) -> Picks | None:
        """Return an unjudged choice near the best that may be better, if there is one."""
        ranked = self._ranked()
        if not ranked:
            return None
        best_us, at = ranked[0].value_us, ranked[0].picks
        for picks in _near(at, self.menus):
            if self._is_over():
                return None
            if picks not in self.judged:
                if self._bound_us(picks) < best_us:
                    return picks
                self.judged[picks] = None
        return None

    def _is_over(self) -> bool:
        return self.judge.effort_ops <= 0 or self.should_stop()

    def _with(self, picks: Picks) -> Problem:
        stages = tuple(
            menu.options[pick].costs for menu, pick in zip(self.menus, picks, strict=True)
        )
        return replace(self.problem, costs=self.problem.costs.replace(stages=stages))

    def _sample(self, picks: Picks) -> Problem:
        return replace(self._with(picks), num_micro_batches=self.judge.num_micro_batches)

    def _bound_us(self, picks: Picks) -> int:
        problem = self._sample(picks)
        self.judge.effort_ops -= len(SPLIT) * problem.num_ranks
        return closed_form.work_bound_us(relaxed_for_fusion(problem), problem.objective)

    def _judge(self, picks: Picks) -> None:
        """Judge a choice by its best list schedule."""
        problem = self._sample(picks)
        self.judged[picks] = None
        if not may_fit(self._with(picks)):
            return
        instance = safe_memory(problem, SMALLEST_BUFFERING)
        ranked = self._ranked()
        best_us = ranked[0].value_us if ranked else None
        values = self.judge.values(
            instance, problem.objective, LIST_JUDGING.rules, self.rule, best_us, self.should_stop
        )
        if values:
            found = min(values)
            self.judged[picks] = found.value_us
            if best_us is None or found.value_us < best_us:
                self.rule = found.rule


def _near(at: Picks, menus: Sequence[Menu]) -> Iterator[Picks]:
    """Yield neighbours: a stage a step up or down, one up and another down, then two steps."""
    stages = range(len(at))
    for size in (1, 2, 4):
        steps = [(stage, sign * size) for sign in (-1, 1) for stage in stages]
        for stage, step in steps:
            yield from _moved(at, menus, {stage: step})
        if size == 1:
            for more in stages:
                for less in stages:
                    if more != less:
                        yield from _moved(at, menus, {more: 1, less: -1})


def _moved(at: Picks, menus: Sequence[Menu], steps: dict[int, int]) -> Iterator[Picks]:
    picks = tuple(pick + steps.get(stage, 0) for stage, pick in enumerate(at))
    if all(0 <= pick < len(menu.options) for pick, menu in zip(picks, menus, strict=True)):
        yield picks


class _Held(NamedTuple):
    """A stage on a rank, and its number of micro-batches in flight."""

    stage: int
    num_micro_batches: int


class _Headroom:
    """Estimates the memory of ranks with a number of micro-batches in flight."""

    def __init__(self, problem: Problem, menus: Sequence[Menu]) -> None:
        self.problem, self.menus = problem, menus

    def picks(self, share: float, caps: Sequence[int]) -> Picks | None:
        """Return for each stage a choice with which its ranks fit, at the least cost of time."""
        placement = self.problem.placement
        held = [
            [_Held(stage, self._count(stage, share)) for stage, _ in pairs]
            for pairs in placement.held
        ]
        picks = [0] * len(self.menus)
        for rank, stages in enumerate(held):
            while (over := self._need(rank, stages, picks) - caps[rank]) > 0:
                step = self._cheapest(rank, stages, picks, over)
                if step is None:
                    return None
                picks[step[0]] = step[1]
        return tuple(picks)

    def _count(self, stage: int, share: float) -> int:
        """Count micro-batches in flight as in 1F1B: stages from here on, by those of a rank."""
        num_stages, num_ranks = len(self.menus), self.problem.num_ranks
        behind = -(-(num_stages - stage) * num_ranks // num_stages)
        return max(1, min(self.problem.num_micro_batches, round(share * behind)))

    def _need(self, rank: int, held: Sequence[_Held], picks: Sequence[int]) -> int:
        options = [(one, self.menus[one.stage].options[picks[one.stage]]) for one in held]
        kept = sum(one.num_micro_batches * self._kept(one.stage, option) for one, option in options)
        climb = max(_climb(option.costs) for _, option in options)
        return self.problem.static_bytes(rank) + kept + climb

    def _cheapest(
        self, rank: int, held: Sequence[_Held], picks: Sequence[int], over: int
    ) -> tuple[int, int] | None:
        """Return the step that frees the most excess memory per time."""
        before, found = self._need(rank, held, picks), []
        for stage in {one.stage for one in held}:
            options = self.menus[stage].options
            at_us = options[picks[stage]].work_us
            for pick in range(picks[stage] + 1, len(options)):
                changed = [*picks[:stage], pick, *picks[stage + 1 :]]
                freed = min(over, before - self._need(rank, held, changed))
                if freed > 0:
                    cost_us = options[pick].work_us - at_us
                    found.append((cost_us / freed, cost_us, stage, pick))
        return min(found)[2:] if found else None

    def alone(self, stage: int, option: Option) -> int:
        """Return the memory of one micro-batch alone, in bytes."""
        return self._kept(stage, option) + _climb(option.costs)

    def _kept(self, stage: int, option: Option) -> int:
        """Return the bytes that F leaves on the rank, including its input if B needs it."""
        costs = option.costs
        if stage == 0 or costs.input_until == OpKind.F:
            return costs.saved_bytes
        return costs.saved_bytes + self.problem.costs.stages[stage - 1].output_bytes


def _climb(stage: StageCosts) -> int:
    """Return the highest rise above what is kept, in bytes, with B and W split or fused."""
    rises, left = stage.rise_bytes, stage.saved_w_bytes - stage.saved_bytes
    apart = max(rises[OpKind.B], left + rises[OpKind.W])
    return max(rises[OpKind.F] - stage.saved_bytes, min(apart, rises[OpKind.BW]), 0)
