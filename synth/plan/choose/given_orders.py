"""The best partition and recomputed layers for schedules whose order is given.

A runtime that runs its own schedules, as Megatron-LM does, leaves no order to choose. So there are
no timed trials: each candidate's schedule is searched for its partition and its layers (see
`plan.published`). The bound holds for every order in the best partition of each placement, so the
gap is what any other order could gain there at most.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.plan.choose.announcer import Announcer
from synth.plan.choose.candidates import Candidate, Partitioning, Ranking, SearchWatch, Trial
from synth.plan.choose.judging import infeasible_result, result_without_schedule
from synth.plan.choose.published_cuts import baseline_of
from synth.plan.choose.race_state import RaceState
from synth.plan.choose.ranking import final_ranking
from synth.plan.published.best_variant import PublishedVariant
from synth.plan.published.family_searches import FamilySearches
from synth.plan.published.order_scores import Judge
from synth.plan.recompute.layer_choice import applies, with_layers
from synth.profile import Profile
from synth.schedule.files.certificate import Certificate, ProverName
from synth.search.outcome import StoppedBy
from synth.solver.options import SolveOptions


def best_of_given_orders(
    candidates: Sequence[Candidate],
    profile: Profile,
    partitioning: Partitioning,
    options: SolveOptions,
    watch: SearchWatch,
) -> Ranking:
    """Find the best partition and layers of all candidates; the arguments are `solve_best_of`'s.

    Raises:
        SynthError: the schedules admit none of the numbers.
    """
    clock, race = options.clock(watch.stop), RaceState(candidates, partitioning, options.gap)
    announcer = Announcer(race, clock, watch)
    search = _Search(profile, race, clock.deadline(options.time_limit_s))
    race.trials = [race.new(candidate) for candidate in candidates]
    announcer.tell_trials()
    refusals: list[SynthError] = []
    too_large: list[Trial] = []
    for trial in race.trials:
        try:
            search.run(trial)
        except SynthError as error:
            refusals.append(error)
            trial.found = result_without_schedule(trial, StoppedBy.NOTHING_BETTER, str(error))
        else:
            too_large += [trial] if trial.value_us is None else []
        announcer.announce_judged(trial)
        announcer.tell_trials()
    if len(refusals) == len(candidates):
        raise refusals[0]
    is_over = not search.is_late()
    chosen = final_ranking(
        race, clock.elapsed_s, is_interrupted=watch.stop.is_set(), is_exhausted=is_over
    )
    if chosen.result.value_us is None and not all(trial.is_impossible for trial in race.trials):
        message = _why_none_fits(too_large, is_over=is_over)
        return chosen._replace(result=replace(chosen.result, message=message))
    return chosen


def _why_none_fits(trials: Sequence[Trial], *, is_over: bool) -> str:
    """Return why there is no schedule, with the names of all that were searched.

    Args:
        trials: of schedules that fit in no partition that was tried.
        is_over: the search was not ended by its time limit.
    """
    *others, last = (trial.candidate.order or "" for trial in trials)
    names = f"{', '.join(others)} or {last}" if others else last
    keeps_all = all(trial.candidate.choice == () for trial in trials)
    ways = [
        *([] if is_over else ["more time"]),
        *(["§recompute auto"] if keeps_all else []),
        "more memory",
        "more ranks",
        "a smaller micro-batch",
    ]
    return (
        f"no partition was found {'' if is_over else 'in the time given '}on which {names} fits; "
        f"give {', '.join(ways)}, or leave §runtime out"
    )


class _Search:
    """Searches for the best variants of the candidates' schedules."""

    def __init__(self, profile: Profile, race: RaceState, should_stop: Callable[[], bool]) -> None:
        problem, partitioning = race.candidates[0].problem, race.partitioning
        self.profile, self.race, self.is_late = profile, race, should_stop
        self.families = FamilySearches(
            profile,
            problem.num_micro_batches,
            Judge(problem.objective, problem.caps_bytes),
            should_stop,
            given=problem.partition if partitioning == Partitioning.GIVEN else None,
            is_free=partitioning == Partitioning.SEARCHED,
            menu=problem.layer_menu,
        )

    def run(self, trial: Trial) -> None:
        """Set the best variant of a trial's schedule as its result, and the row of the table.

        Raises:
            SynthError: the schedule does not admit the numbers.
        """
        name, problem, choice = trial.candidate.order, trial.problem, trial.candidate.choice
        assert name is not None
        search = self.families.of(name, problem.placement)
        plain, layered = search.plain(), None
        trial.published, trial.is_over = (baseline_of(name, plain),), True
        if choice is None and problem.caps_bytes is not None and applies(problem):
            layered = search.with_layers(plain)
        found = layered or plain
        on_cut = replace(problem, partition=found.variant.sizes)
        if found.score.fits and on_cut.has_allowed_r(found.lowered.schedule):
            self._take(trial, name, found)
            return
        trial.found = infeasible_result(trial) or result_without_schedule(
            trial, StoppedBy.NOTHING_BETTER, _why_none_fits([trial], is_over=True)
        )

    def _take(self, trial: Trial, name: str, found: PublishedVariant) -> None:
        problem, sizes = trial.problem, found.variant.sizes
        if sizes != problem.partition:
            costs = partition_costs(self.profile, sizes, problem.placement.ranks)
            problem = problem.on_partition(costs, sizes)
        trial.candidate = trial.candidate.on(problem)
        trial.lower_bound_us = self.race.new(trial.candidate).lower_bound_us
        is_chosen = trial.candidate.choice is None
        prover = ProverName.ANY_CHOICE if is_chosen else ProverName.CLOSED_FORMS
        trial.certificate = Certificate(prover=prover)
        if found.recomputed_layers:
            problem = with_layers(problem, found.recomputed_layers)
        trial.offer(problem, found.evaluated(name))
