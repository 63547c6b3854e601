"""The answer of a race that is not over, when it is asked for."""

from collections.abc import Sequence
from dataclasses import replace

from synth.plan.choose.candidates import Ranking, Trial
from synth.plan.choose.standings import baselines_of
from synth.plan.recompute.choice import quick_bound_us
from synth.plan.recompute.layer_choice import without_layers
from synth.search.outcome import rank_key
from synth.solver.problem import Problem
from synth.solver.result import Baseline, Result


def cut_short(trials: Sequence[Trial], announced: Result) -> Ranking:
    """Return the answer of a race that is not over.

    Args:
        trials: copies of all, best first.
        announced: the best result announced, with the bound that holds for all.
    """
    best = trials[0].found or announced
    if rank_key(announced.value_us) <= rank_key(best.value_us):
        best = announced
        here = min(trials, key=lambda trial: trial.distance_to(announced.problem))
        # The bound of another partition does not hold there, but a closed form does.
        bound_us = here.bound_on(announced.problem) or _quick_bound_us(here, announced.problem)
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
    return Ranking(result, tuple(trials), is_cut_short=True)


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


def _quick_bound_us(trial: Trial, problem: Problem) -> int:
    """Return the closed-form bound of a trial's placement on the partition of another problem."""
    return quick_bound_us(without_layers(problem), trial.candidate.choice)
