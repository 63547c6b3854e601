"""Better choices of recomputation for an order that was found: choices move, the order stays.

A search finds an order for one choice, and the order often leaves memory for a faster one:

    stage 0 recomputes 3 layers      peak 29.1 of 30 GB
    stage 0 recomputes 2 layers      peak 29.9 of 30 GB, and every B of it is shorter

A stage takes another choice of its menu, or two stages of a rank do, one of them to free the memory
that the other one takes. Those moves come first that shorten the critical path most, as numbers
of critical ops by stage estimate it (see `critical_counts`). The order is simulated exactly with
each choice. Orders and choices in turn are coordinate descent: each is the best known for the
other.
"""

from collections.abc import Callable, Collection, Iterator
from itertools import permutations
from typing import NamedTuple

from synth.costs.recomputation import Recomputation
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.plan.published.critical_counts import COUNTED, critical_counts
from synth.plan.recompute.layer_choice import applies, with_layers, without_layers
from synth.plan.recompute.layer_menu import figures, menus
from synth.plan.recompute.stages import held_stages
from synth.plan.tuning import CHOICE_MOVES
from synth.schedule.model import Schedule
from synth.schedule.recomputed_stages import recomputed, without_recompute, written_out
from synth.search.clock import Clock
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate
from synth.solver.problem import Problem
from synth.solver.result import Result


class ChosenSchedule(NamedTuple):
    """A schedule, its stages with R's, and its problem, which says what layers B recomputes."""

    problem: Problem
    stages: tuple[int, ...]
    found: EvaluatedSchedule


class _Way(NamedTuple):
    """A way to treat a stage: its layers that B recomputes, or an R of all before B."""

    layers: Recomputation
    costs: StageCosts
    has_r: bool = False


# For each stage, the number of its way.
_Picks = tuple[int, ...]


def moved_within(clock: Clock, problem: Problem, found: Result) -> ChosenSchedule | None:
    """Return a result's order with a better choice, if there is one, for a share of the time.

    Args:
        clock: of the search; it counts the time that this takes.
        problem: with the result's choice of layers.
    """
    assert found.schedule is not None and found.value_us is not None
    until_s = clock.moment_s(CHOICE_MOVES.share_of_left)
    s_per_order = problem.num_ops / CHOICE_MOVES.ops_per_s

    def should_stop(num_judged: int) -> bool:
        counted_s = num_judged * s_per_order if clock.is_deterministic else 0.0
        return clock.stop.is_set() or clock.left_s(until_s) <= counted_s

    moves = ChoiceMoves(problem, should_stop)
    better = moves.better(problem, found.schedule, found.value_us, found.found_by or "moved")
    clock.grant(moves.num_judged * s_per_order)
    return better


class ChoiceMoves:
    """The search for a better choice of recomputation under one order. It is deterministic.

    Attributes:
        num_judged: the choices that were evaluated so far.
    """

    def __init__(self, problem: Problem, should_stop: Callable[[int], bool]) -> None:
        """Judge nothing yet.

        Args:
            problem: on its partition; without a menu of its layers.
            should_stop: told the number of choices judged so far; ends the search.
        """
        self.problem, self.should_stop = without_layers(problem), should_stop
        self.num_judged = 0
        self._ways = _ways_of(self.problem)
        self._held = held_stages(self.problem)

    def better(
        self, chosen: Problem, schedule: Schedule, value_us: int, found_by: str
    ) -> ChosenSchedule | None:
        """Return the order with a better choice; None without one.

        Args:
            schedule: with the R's of its stages.
        """
        order = without_recompute(schedule)
        picks = self._picks(chosen, recomputed(schedule))
        seen, at = {picks}, self._judged(order, picks, found_by)
        while at is not None and (moved := self._moved(order, picks, at, seen)) is not None:
            picks, at = moved
        return None if at is None or at.found.value_us >= value_us else at

    def _moved(
        self, order: Schedule, picks: _Picks, at: ChosenSchedule, seen: set[_Picks]
    ) -> tuple[_Picks, ChosenSchedule] | None:
        """Return the first neighbour found that is better; None without one."""
        in_vain = 0
        for near in self._near(picks, at.found):
            if near in seen:
                continue
            if in_vain == CHOICE_MOVES.in_vain or self.should_stop(self.num_judged):
                return None
            seen.add(near)
            in_vain += 1
            found = self._judged(order, near, at.found.found_by)
            if found is not None and found.found.value_us < at.found.value_us:
                return near, found
        return None

    def _near(self, picks: _Picks, found: EvaluatedSchedule) -> Iterator[_Picks]:
        """Yield the neighbours that shorten the critical path, by how much, the most first."""
        counts = critical_counts(found.timeline)
        gains = [
            [
                sum(int(counts[row, stage]) * us for row, us in enumerate(_saved_us(now, way)))
                for way in ways
            ]
            for stage, (ways, now) in enumerate(zip(self._ways, self._now(picks), strict=True))
        ]
        near = [
            (-gain, _with(picks, {stage: pick}))
            for stage, own in enumerate(gains)
            for pick, gain in enumerate(own)
        ]
        for held in self._held:
            for less, more in permutations(held, 2):
                near += [
                    (-gain - gains[more][other], _with(picks, {less: pick, more: other}))
                    for pick, gain in enumerate(gains[less])
                    for other in range(len(self._ways[more]))
                    if gain > 0 and self._frees(more, picks[more], other)
                ]
        return (one for minus_gain, one in sorted(near) if minus_gain < 0)

    def _frees(self, stage: int, now: int, then: int) -> bool:
        """Return True if a stage keeps less with another way."""
        ways = self._ways[stage]
        return ways[then].costs.saved_bytes < ways[now].costs.saved_bytes

    def _judged(self, order: Schedule, picks: _Picks, found_by: str) -> ChosenSchedule | None:
        """Return the order with a choice; None if it does not fit."""
        self.num_judged += 1
        ways = self._now(picks)
        layers = Recomputation({at: how for way in ways for at, how in way.layers.items()})
        problem = with_layers(self.problem, layers) if layers else self.problem
        stages = tuple(stage for stage, way in enumerate(ways) if way.has_r)
        found = evaluate(problem, written_out(order, stages), found_by)
        return None if found is None else ChosenSchedule(problem, stages, found)

    def _now(self, picks: _Picks) -> list[_Way]:
        return [ways[pick] for ways, pick in zip(self._ways, picks, strict=True)]

    def _picks(self, chosen: Problem, stages: Collection[int]) -> _Picks:
        """Return the ways of a choice; where one is on no menu, the stage recomputes nothing."""
        found = []
        for stage, (ways, costs) in enumerate(zip(self._ways, chosen.costs.stages, strict=True)):
            own = (stage in stages, figures(costs))
            same = (at for at, way in enumerate(ways) if (way.has_r, figures(way.costs)) == own)
            found.append(next(same, 0))
        return tuple(found)


def _ways_of(problem: Problem) -> list[list[_Way]]:
    """Return the ways of all stages; the first one recomputes nothing."""
    plain = [[_Way(Recomputation(), costs)] for costs in problem.costs.stages]
    if applies(problem):
        assert problem.profile is not None and problem.partition is not None
        made = menus(problem.profile, problem.partition)
        plain = [[_Way(option.layers, option.costs) for option in menu.options] for menu in made]
    for stage in problem.rebuildable(range(len(plain))):
        plain[stage].append(_Way(Recomputation(), problem.costs.stages[stage], has_r=True))
    return plain


def _saved_us(now: _Way, then: _Way) -> Iterator[int]:
    """Yield by how much each kind of op is shorter with another way."""
    for kind in COUNTED:
        before_us, after_us = (
            0 if kind == OpKind.R and not way.has_r else way.costs.duration_us[kind]
            for way in (now, then)
        )
        yield before_us - after_us


def _with(picks: _Picks, changed: dict[int, int]) -> _Picks:
    return tuple(changed.get(stage, pick) for stage, pick in enumerate(picks))
