"""Trials on the cuts of the least bounds, each with its best list schedule as result.

Published schedules are made for equal stages and fast links. Where links are slow and memory is
tight, none of them shows what a placement can do, and a race that goes by them alone searches the
wrong one.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from synth.costs.partition_costs import partition_costs
from synth.plan.choose.candidates import Candidate, Trial, best_us
from synth.plan.choose.cut_trials import CutsOf
from synth.plan.choose.race_state import RaceState
from synth.plan.partition.boundary_moves import BoundaryMoves
from synth.plan.partition.candidates import candidate_cuts, equal_cuts
from synth.plan.partition.path_dp import Sizes
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.tuning import LIST_TRIALS
from synth.profile import Profile
from synth.schedule.model import SMALLEST_BUFFERING
from synth.search.outcome import rank_key
from synth.solver.evaluate.evaluate import BUFFERINGS, EvaluatedSchedule, evaluate_order
from synth.solver.improve.compiled_lists import CompiledBuilder
from synth.solver.improve.list_builders import list_builder
from synth.solver.improve.list_scheduling import ListBuilder, Valued, search
from synth.solver.improve.priority_rules import variants
from synth.solver.improve.release_dates import at_release_dates
from synth.solver.infeasibility import may_fit
from synth.solver.instance.memory_models import safe_memory
from synth.solver.instance.timing import Programs


class _ListSchedule(NamedTuple):
    """A list schedule and its builder."""

    builder: ListBuilder[Any]
    built: Valued

    @property
    def value_us(self) -> int:
        """The value if no transfer waits for a buffer."""
        return self.built.value_us

    @property
    def programs(self) -> Programs:
        """The programs of all ranks."""
        return self.builder.scored(self.built).programs(self.builder.instance)


class ListScheduleTrials:
    """Makes trials with list schedules, at most one for each placement.

    Args:
        cuts: gives the cuts that are tried on a placement.
        waits: wait for code that is being compiled.
    """

    def __init__(
        self, profile: Profile, race: RaceState, cuts: CutsOf, *, waits: bool = False
    ) -> None:
        self.profile, self.race, self.cuts, self._waits = profile, race, cuts, waits

    def all(
        self, should_stop: Callable[[], bool], charge: Callable[[int], None]
    ) -> Iterator[Trial]:
        """Yield the trials that are better than the published schedules of their placement.

        Placements come in the order of their least bounds.

        Args:
            should_stop: ends the search.
            charge: told of the ops that were placed.
        """
        admitted = []
        for candidate in self.race.candidates:
            if candidate.choice in ((), None) and not should_stop():
                cuts = self.cuts(candidate.problem.placement)
                admitted.append(self._least(candidate, cuts, LIST_TRIALS.cuts))
        for trials in sorted(filter(None, admitted), key=lambda trials: trials[0].lower_bound_us):
            best, least_us = None, self._best_us(trials[0].name)
            for trial in trials:
                if should_stop():
                    break
                self._list(trial, should_stop)
                charge(LIST_TRIALS.rules * trial.problem.num_ops)
                if trial.value_us is not None and trial.value_us < least_us:
                    best, least_us = trial, trial.value_us
            if best is not None:
                yield best

    def of_one(
        self,
        candidate: Candidate,
        ends_descent: Callable[[], bool],
        should_stop: Callable[[], bool],
        charge: Callable[[int], None],
    ) -> Iterator[Trial]:
        """Yield trials on many cuts of one placement: those given, and the one of the least bound.

        Where a list schedule of that one is far above its bound, cuts before it on the way there
        come, too. Those of the best cuts come once more, after more effort.

        Args:
            ends_descent: ends the moves of layers that lower the bound.
            should_stop: ends the search.
            charge: told of the ops that were placed.
        """
        where = candidate.problem.placement
        trials = self._least(candidate, self.cuts(where), LIST_TRIALS.cuts_of_one)
        path = self._descended(trials[0], ends_descent, charge) if trials else []
        # Where there is time for a few cuts only, one of equal numbers of layers is among them.
        equal = equal_cuts(StageCostTable(self.profile), where.num_stages)
        alike = [trial for trial in trials if trial.problem.partition in equal][:1]
        others = [trial for trial in trials if trial not in alike]
        trials, further = [*alike, *path[:1], *others], path[1:]
        for trial in trials:
            if should_stop():
                return
            self._list_of_several(trial, LIST_TRIALS.brief_share, should_stop)
            charge(len(LIST_TRIALS.rules_of_several) * trial.problem.num_ops)
            if further and trial in path and _is_loose(trial):
                trials.insert(trials.index(trial) + 1, further.pop(0))
            if trial.value_us is not None:
                self.race.tighten(trial)
                yield trial
        listed = [trial for trial in trials if trial.value_us is not None]
        listed.sort(key=lambda trial: rank_key(trial.value_us))
        for trial in listed[: LIST_TRIALS.thorough_cuts]:
            if should_stop():
                return
            self._list_of_several(trial, 1.0, should_stop)
            charge(len(LIST_TRIALS.rules_of_several) * trial.problem.num_ops)
            yield trial

    def of_several(
        self, should_stop: Callable[[], bool], charge: Callable[[int], None]
    ) -> Iterator[Trial]:
        """Yield trials on cuts of all placements, round by round on more cuts of fewer placements.

        A placement goes on by the best value known there. Its first cuts are those of the least
        bounds.

        Args:
            should_stop: ends the search.
            charge: told of the ops that were placed.
        """
        listed: set[tuple[str, Sizes | None]] = set()
        table = StageCostTable(self.profile)
        for number, (most, num_cuts) in enumerate(LIST_TRIALS.rounds_of_several):
            able = (one for one in self.race.candidates if one.choice in ((), None))
            for candidate in sorted(able, key=lambda one: self._best_us(one.name))[:most]:
                if should_stop():
                    return
                where = candidate.problem.placement
                cuts = self.cuts(where) if number else candidate_cuts(table, where.num_stages)
                given = candidate.problem.partition
                all_cuts = dict.fromkeys((*((given,) if given else ()), *cuts))
                new = [sizes for sizes in all_cuts if (candidate.name, sizes) not in listed]
                for trial in self._least(candidate, new, num_cuts):
                    if should_stop():
                        return
                    listed.add((candidate.name, trial.problem.partition))
                    self._list_of_several(trial, LIST_TRIALS.brief_share, should_stop)
                    charge(len(LIST_TRIALS.rules_of_several) * trial.problem.num_ops)
                    if trial.value_us is not None:
                        yield trial

    def on(
        self,
        trials: Sequence[Trial],
        should_stop: Callable[[], bool],
        charge: Callable[[int], None],
    ) -> None:
        """Set the best list schedules, found by changes of rules, as the results of trials.

        Args:
            should_stop: ends the search.
            charge: told of the ops that were placed.
        """
        for trial in trials:
            if should_stop():
                return
            self._list(trial, should_stop, LIST_TRIALS.changed_rules)
            charge(LIST_TRIALS.changed_rules * trial.problem.num_ops)

    def _best_us(self, name: str) -> float:
        """Return the best value known on a placement."""
        value_us = best_us(one for one in self.race.trials if one.name == name)
        return math.inf if value_us is None else value_us

    def _least(self, candidate: Candidate, cuts: Sequence[Sizes], most: int) -> list[Trial]:
        """Return trials on those cuts of the least bounds that may win, the least one first."""
        trials = (self._on(candidate, sizes) for sizes in cuts)
        able = (trial for trial in trials if trial is not None and self.race.can_win(trial))
        return sorted(able, key=lambda trial: trial.lower_bound_us)[:most]

    def _on(self, candidate: Candidate, sizes: Sizes) -> Trial | None:
        """Return a trial on a cut; None if nothing fits there."""
        where = candidate.problem.placement
        costs = partition_costs(self.profile, sizes, where.ranks)
        moved = candidate.problem.on_partition(costs, sizes)
        return self.race.new(candidate.on(moved), is_quick=True) if may_fit(moved) else None

    def _descended(
        self, trial: Trial, should_stop: Callable[[], bool], charge: Callable[[int], None]
    ) -> list[Trial]:
        """Return trials on the last cuts of moves of layers that lower the bound, the best first.

        Their bounds are nearly equal, and list schedules of one may take a third longer than those
        of another.
        """
        path, moves = [trial], BoundaryMoves(trial.problem.costs.num_stages)
        rng, seen = random.Random(0), {trial.problem.partition}

        def lower(best: Trial) -> Trial | None:
            edges = np.cumsum((0, *(best.problem.partition or ())))
            possible = moves.possible(edges).tolist()
            for move in rng.sample(possible, len(possible)):
                sizes = tuple(np.diff(moves.moved(edges, move)).tolist())
                if should_stop():
                    return None
                if sizes in seen:
                    continue
                seen.add(sizes)
                charge(trial.problem.num_ops)
                other = self._on(trial.candidate, sizes)
                if other is not None and other.lower_bound_us < best.lower_bound_us:
                    return other
            return None

        while (other := lower(path[-1])) is not None:
            path.append(other)
        return path[:0:-1][: LIST_TRIALS.descended_cuts]

    def _list(
        self, trial: Trial, should_stop: Callable[[], bool], rules: int = LIST_TRIALS.rules
    ) -> None:
        """Set the best list schedule of a few rules as the result of a trial.

        Where ranks hold one stage, limits on what is in flight space micro-batches anyway.
        """
        problem = trial.problem
        instance = safe_memory(problem, SMALLEST_BUFFERING)
        effort = rules * instance.num_ops
        builder = list_builder(
            instance,
            problem.objective,
            waits=self._waits,
            should_stop=should_stop,
            must_stop=should_stop,
        )
        found = search(builder, effort, 0, should_stop)
        if problem.placement.holds_several:
            most_dated = LIST_TRIALS.dated_orders
            found += at_release_dates(builder, 0, should_stop, most_orders=most_dated)
        best = sorted(found, key=lambda one: one.value_us)[: LIST_TRIALS.evaluated]
        self._take(trial, [_ListSchedule(builder, one) for one in best], should_stop)

    def _list_of_several(self, trial: Trial, share: float, should_stop: Callable[[], bool]) -> None:
        """Do the same where ranks hold several stages, by the rules that are best there.

        There orders made for the fewest buffers deadlock with those, and need more memory with
        others. Half of the effort is for the default buffers, and half for the most: orders made
        for few buffers wait for them where a rank sends much at once, and many need memory.
        """
        problem, found = trial.problem, list[_ListSchedule]()
        for buffering in LIST_TRIALS.bufferings_of_several:
            instance = safe_memory(problem, BUFFERINGS[buffering])
            builder, rules = CompiledBuilder(instance, problem.objective), list(variants(instance))
            chosen = [rules[number] for number in LIST_TRIALS.rules_of_several]
            built = [one for one in map(builder.build, chosen) if one is not None]
            of_one = share / len(LIST_TRIALS.bufferings_of_several)
            built += at_release_dates(builder, 0, should_stop, of_one)
            best = sorted(built, key=lambda one: one.value_us)[: LIST_TRIALS.evaluated]
            found += [_ListSchedule(builder, one) for one in best]
        far = LIST_TRIALS.far_factor
        if self.race.has_placements:
            far = LIST_TRIALS.far_factor_of_several
        far_us = far * (self.race.best_us or math.inf)
        self._take(trial, [one for one in found if one.value_us < far_us], should_stop)

    def _take(
        self, trial: Trial, found: Sequence["_ListSchedule"], should_stop: Callable[[], bool]
    ) -> None:
        """Set the best of some orders that fits as the result of a trial.

        Values of orders do not count waits for buffers, which exact evaluation finds.
        """
        best: EvaluatedSchedule | None = None
        for one in sorted(found, key=lambda one: one.value_us):
            if best is not None and best.value_us <= one.value_us:
                break
            schedule = evaluate_order(
                trial.problem, one.programs, "list scheduling", one.value_us, should_stop
            )
            if schedule is not None and (best is None or schedule.value_us < best.value_us):
                best = schedule
        if best is not None:
            trial.offer(trial.problem, best)


def _is_loose(trial: Trial) -> bool:
    """Return True if no list schedule is found, or only one far above the bound."""
    return (
        trial.value_us is None or trial.value_us > LIST_TRIALS.loose_factor * trial.lower_bound_us
    )
