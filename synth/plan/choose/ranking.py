"""The answer of a race: the best result, with a bound that holds for all trials, and their ranking.

A race is an anytime algorithm: `interim_ranking` answers before it has ended.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from synth.plan.choose.candidates import Ranking, Trial
from synth.plan.choose.race_state import RaceState
from synth.plan.recompute.choice import quick_bound_us
from synth.plan.recompute.layer_choice import without_layers
from synth.search.outcome import StoppedBy, rank_key, reason_of_end
from synth.solver.result import Baseline, Result


def final_ranking(
    race: RaceState, wall_s: float, *, is_interrupted: bool, is_exhausted: bool
) -> Ranking:
    """Return the best result of a race that has ended, and its trials, best first.

    Args:
        is_interrupted: the search was asked to stop.
        is_exhausted: nothing was left to try.
    """
    race.settle_bounds()
    ranked = race.ranked()
    best = ranked[0].found  # the first trial always has a result
    assert best is not None
    bound_us = race.bound_us(best.value_us, ranked[0], ranked[0].lower_bound_us)
    if best.value_us is None:
        best = _without_schedule(race.trials, best, is_interrupted=is_interrupted)
        reason = best.stopped_by
    else:
        reason = reason_of_end(
            best.value_us,
            bound_us,
            race.gap,
            is_interrupted=is_interrupted,
            is_exhausted=is_exhausted,
        )
    result = replace(
        best,
        lower_bound_us=bound_us,
        certificate=race.certificate(bound_us, ranked[0], ranked[0].certificate),
        baselines=tuple(baselines_of(ranked)),
        wall_s=wall_s,
        stopped_by=reason,
        bound_scope=race.bound_scope,
    )
    return Ranking(result, tuple(ranked))


def _without_schedule(trials: Sequence[Trial], found: Result, *, is_interrupted: bool) -> Result:
    """Return a result without schedule, with the reason."""
    possible = [trial for trial in trials if not trial.is_impossible]
    if possible:
        if all(trial.is_over and trial.found is not None for trial in possible):
            return found if possible[0].found is None else possible[0].found
        reason = StoppedBy.INTERRUPT if is_interrupted else StoppedBy.TIME_LIMIT
        message = "no schedule was found in the time given; allow more time or more memory"
        return replace(found, stopped_by=reason, message=message)
    if len(trials) == 1:
        return found
    least = min(trials, key=lambda trial: trial.needed_bytes)
    assert least.found is not None
    return replace(found, message=why_all_infeasible(least.name, least.found.message or ""))


def baselines_of(ranked: Sequence[Trial]) -> Iterator[Baseline]:
    """Yield the published schedules on the best candidate of each placement, each name once."""
    placements, names = set(), set()
    for trial in ranked:
        published = trial.published or (trial.found.baselines if trial.found else ())
        if not published or trial.name in placements:
            continue
        placements.add(trial.name)
        for baseline in published:
            if baseline.name not in names:
                names.add(baseline.name)
                yield baseline


def why_all_infeasible(name: str, message: str) -> str:
    """Return why no candidate is feasible, with the message of the one that needs the least."""
    return f"infeasible with all candidates; with {name}, which needs the least memory: {message}"


def interim_ranking(trials: Sequence[Trial], announced: Result) -> Ranking:
    """Return the answer of a race that has not ended when it is asked for.

    Args:
        trials: copies of all, best first.
        announced: the best result announced, with the bound that holds for all.
    """
    best = trials[0].found or announced
    if rank_key(announced.value_us) <= rank_key(best.value_us):
        best = announced
        here = min(trials, key=lambda trial: trial.distance_to(announced.problem))
        # The bound of another partition does not hold there, but a closed form does.
        bound_us = here.bound_on(announced.problem) or quick_bound_us(
            without_layers(announced.problem), here.candidate.choice
        )
        here.lower_bound_us = min(best.value_us or 0, bound_us)
        here.found = announced
        trials = (here, *(trial for trial in trials if trial is not here))
    assert best.value_us is not None
    result = replace(
        best,
        lower_bound_us=min(announced.lower_bound_us, best.value_us),
        certificate=announced.certificate,
        bound_scope=announced.bound_scope,
        baselines=tuple(_at_best(one, best) for one in baselines_of(trials)),
        wall_s=announced.wall_s,
    )
    return Ranking(result, tuple(trials), is_interim=True)


def _at_best(row: Baseline, found: Result) -> Baseline:
    """Return the row of a published schedule, or of the result if that is the same one, faster."""
    line = found.timeline
    if row.name != found.found_by or line is None or found.peak_bytes is None:
        return row
    if found.problem.recomputed_layers:
        return row  # rows are without them
    value_us = found.problem.objective.value_us
    if row.fits and value_us(row) <= value_us(line):
        return row
    return replace(
        row,
        makespan_us=line.makespan_us,
        period_us=line.period_us,
        work_us=max(line.work_us),
        mean_work_us=line.mean_work_us,
        peak_bytes=found.peak_bytes,
        fits=True,
        partition=found.problem.partition,
    )
