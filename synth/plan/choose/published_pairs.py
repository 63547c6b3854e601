"""Published schedules whose F and BW run at once, beside a search for orders without such pairs.

A search orders ops that run one after the other, and its bounds hold for such orders alone. So the
published schedules with pairs are judged before it, each on its best partition, for a part of the
time. The fastest one that fits is the answer unless the search finds a faster order, and the search
ends once a bound proves that it cannot. The bound of such an answer is that of schedules with the
same ops (`Timeline.least_us`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from synth.errors import SynthError
from synth.families import generate, names_on, overlapping
from synth.objective import BoundScope
from synth.plan.choose.candidates import Candidate, Partitioning, Ranking, SearchWatch, Trial
from synth.plan.choose.published_cuts import baseline_of
from synth.plan.partition.bounds import with_partition
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.published.best_variant import PublishedVariant
from synth.plan.published.family_searches import FamilySearches
from synth.plan.published.order_scores import Judge
from synth.plan.recompute.layer_choice import applies, with_layers
from synth.plan.tuning import JUDGING, RACE
from synth.profile import Profile
from synth.schedule.model import Placement, Schedule
from synth.search.clock import Clock
from synth.search.conditional_stop import ConditionalStop
from synth.search.outcome import StoppedBy, rank_key, reason_of_end
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Baseline, Incumbent, judged_result

# Searches for orders without pairs; as `SearchSpace.search`.
Search = Callable[[SolveOptions, SearchWatch], Ranking]

_ENDED = (StoppedBy.OPTIMAL, StoppedBy.GAP, StoppedBy.NOTHING_BETTER)


def pair_names(where: Placement) -> list[str]:
    """Return the names of the published schedules with pairs on a placement."""
    return list(dict.fromkeys(overlapping(names_on(where))))


def pairs_on(problem: Problem) -> Iterator[EvaluatedSchedule]:
    """Yield the published schedules with pairs that fit, in the partition of a problem."""
    where = problem.placement
    for name in pair_names(where):
        with suppress(SynthError):  # its definition does not admit the numbers
            made = generate(
                name,
                where.num_ranks,
                problem.num_micro_batches,
                costs=problem.costs,
                caps_bytes=problem.caps_bytes,
                where=where,
                objective=problem.objective,
            )
            found = evaluate(problem, made, name)
            if found is not None:
                yield found


class HintedPairs(NamedTuple):
    """A schedule with pairs that a hint gives.

    Attributes:
        partition: layers of its stages; None: those of the problem.
    """

    name: str
    schedule: Schedule
    partition: tuple[int, ...] | None


class PublishedPairs:
    """A hint and the published schedules with pairs on some candidates, judged one by one.

    Attributes:
        best: a trial with the fastest one that fits, from which no search can start; None: no one
            fits, or there is none.
        rows: the figures of all, fitting or not.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        profile: Profile,
        partitioning: Partitioning,
        hint: HintedPairs | None = None,
    ) -> None:
        """Judge nothing yet.

        Args:
            candidates: of one objective.
            partitioning: keep their partitions, or make others.
            hint: judged before all others, as it is.
        """
        self.candidates, self.profile, self.partitioning = candidates, profile, partitioning
        self.hint = hint
        self.best: Trial | None = None
        self.rows: list[Baseline] = []

    def judge(self, should_stop: Callable[[], bool]) -> Iterator[Trial]:
        """Yield each schedule that is better than all before; the first few ops in any case."""
        if (trial := self._hinted()) is not None:
            self.best = trial
            yield trial
        num_ops = 0
        for candidate in self.candidates:
            problem = candidate.problem
            searches = FamilySearches(
                self.profile,
                problem.num_micro_batches,
                Judge(problem.objective, problem.caps_bytes),
                should_stop,
                given=problem.partition if self.partitioning == Partitioning.GIVEN else None,
                is_free=self.partitioning == Partitioning.SEARCHED,
                menu=problem.layer_menu,
            )
            for name in pair_names(problem.placement):
                num_ops += problem.num_ops
                if should_stop() and num_ops > JUDGING.first_ops:
                    return
                try:
                    found = self._variants(searches, name, candidate)
                except SynthError:
                    continue  # its definition does not admit the numbers
                for one in found:
                    trial = self._trial(searches, name, candidate, one)
                    if one.score.fits and (self.best is None or _is_better(trial, self.best)):
                        self.best = trial
                        yield trial

    def _hinted(self) -> Trial | None:
        """The hint on its own partition, if that is free; None: it fits no candidate."""
        if self.hint is None:
            return None
        name, schedule, sizes = self.hint
        for candidate in self.candidates:
            problem = candidate.problem
            if problem.placement != schedule.placement:
                continue
            is_free = self.partitioning != Partitioning.GIVEN
            if is_free and sizes is not None and sizes != problem.partition:
                problem = with_partition(StageCostTable(self.profile), problem, sizes)
            if (found := evaluate(problem, schedule, f"hint {name}")) is not None:
                return _fixed_trial(candidate, problem, found)
        return None

    def _variants(
        self, searches: FamilySearches, name: str, candidate: Candidate
    ) -> list[PublishedVariant]:
        """Return a schedule on its best partition, also with recomputed layers if these help.

        Raises:
            SynthError: the family does not admit the numbers.
        """
        problem = candidate.problem
        search = searches.of(name, problem.placement)
        plain = search.plain()
        if not plain.lowered.schedule.overlapped:
            return []  # it has no pairs with these numbers
        self.rows.append(baseline_of(name, plain))
        chooses = candidate.choice is None and problem.caps_bytes is not None and applies(problem)
        layered = search.with_layers(plain) if chooses else None
        return [plain] if layered is None else [plain, layered]

    def _trial(
        self, searches: FamilySearches, name: str, candidate: Candidate, found: PublishedVariant
    ) -> Trial:
        problem = candidate.problem
        if found.variant.sizes != problem.partition:
            problem = with_partition(searches.costs.table, problem, found.variant.sizes)
        if found.recomputed_layers:
            problem = with_layers(problem, found.recomputed_layers)
        return _fixed_trial(candidate, problem, found.evaluated(name))


def _fixed_trial(candidate: Candidate, problem: Problem, found: EvaluatedSchedule) -> Trial:
    """A trial whose schedule no search improves, with the bound of the same ops."""
    least_us = problem.objective.iterations * found.timeline.least_us
    result = judged_result(problem, found, least_us)
    named = Candidate(f"{candidate.name} ({found.found_by})", problem, candidate.choice)
    return Trial(named, least_us, result, is_over=True, is_fixed=True)


def search_beside_pairs(
    pairs: PublishedPairs,
    search: Search,
    options: SolveOptions,
    watch: SearchWatch,
) -> Ranking:
    """Judge published schedules with pairs, then search for a better order without.

    Args:
        pairs: the published schedules, not yet judged.
        search: the search for orders; the other arguments are those of it.
    """
    on_improvement, clock = watch.on_improvement, options.clock(watch.stop)
    for trial in pairs.judge(clock.deadline(RACE.pairs_share_of_limit * options.time_limit_s)):
        assert trial.found is not None
        incumbent = replace(trial.found, wall_s=clock.elapsed_s).as_incumbent()
        if on_improvement is not None and incumbent is not None:
            on_improvement(incumbent)
    best = pairs.best
    if best is None:
        return _with_rows(search(options, watch), pairs.rows)
    least_us = rank_key(best.value_us)[1]
    searches_others = pairs.partitioning == Partitioning.SEARCHED

    def is_proof(one: Incumbent) -> bool:
        is_of_all = one.bound_scope == BoundScope.ALL or not searches_others
        return is_of_all and one.lower_bound_us >= least_us

    enough = ConditionalStop[Incumbent](watch.stop, is_proof)

    def tell(incumbent: Incumbent) -> None:
        enough.watch(incumbent)
        if on_improvement is not None and incumbent.value_us < least_us:
            on_improvement(incumbent)

    def tell_trials(trials: Sequence[Trial]) -> None:
        watch.on_trials(_ranked(best, trials))

    best.published = tuple(pairs.rows)
    rest = replace(options, time_limit_s=max(0.0, clock.left_s()))
    others = _with_rows(search(rest, SearchWatch(tell, enough, tell_trials)), pairs.rows)
    if not others.trials:
        only = Trial(pairs.candidates[0], others.result.lower_bound_us, others.result)
        others = others._replace(trials=(only,))
    is_over = enough.is_set() or others.result.stopped_by in _ENDED
    return _merged(best, others, options, clock, is_over=is_over)


def _merged(
    best: Trial, others: Ranking, options: SolveOptions, clock: Clock, *, is_over: bool
) -> Ranking:
    """Return the better answer, and the trials of both.

    Args:
        best: the published schedule.
        others: what the search for orders without pairs found.
        options: with the gap that is good enough.
        is_over: that search has ended by itself, or by a bound.
    """
    result, trials = others.result, others.trials
    ranked = _ranked(best, trials)
    if ranked[0] is not best:
        return others._replace(result=replace(result, wall_s=clock.elapsed_s), trials=ranked)
    found = best.found
    assert found is not None
    reason = reason_of_end(
        found.value_us,
        found.lower_bound_us,
        options.gap,
        is_interrupted=clock.stop.is_set(),
        is_exhausted=is_over,
    )
    answer = replace(found, baselines=result.baselines, stopped_by=reason, wall_s=clock.elapsed_s)
    return Ranking(answer, ranked)


def _with_rows(ranking: Ranking, rows: Sequence[Baseline]) -> Ranking:
    """Return a ranking whose table also has the schedules with pairs."""
    known = {row.name for row in ranking.result.baselines}
    new = (row for row in rows if row.name not in known)
    result = replace(ranking.result, baselines=(*ranking.result.baselines, *new))
    return ranking._replace(result=result)


def _ranked(best: Trial, trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return all trials, best first; of equal ones those without pairs, whose bound is better."""
    return tuple(sorted((*trials, best), key=lambda one: rank_key(one.value_us)))


def _is_better(one: Trial, other: Trial) -> bool:
    return rank_key(one.value_us) < rank_key(other.value_us)
