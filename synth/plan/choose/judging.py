"""The published schedules of all candidates, judged before the first trial.

The passes (see `published`) of all candidates run in the order of their cost, those that need most
recomputation last. Candidates on which nothing can fit come after all others, as they only give
rows of the table. Then the model is partitioned again, counting R as work, for the stages that
recompute in the best schedules, and these partitions are judged too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from synth.plan.choose.candidates import Trial, best_us
from synth.plan.choose.published import JudgedSchedules, Pass
from synth.plan.recompute.choice import bound_us, why_infeasible
from synth.plan.recompute.repartition import repartitioned
from synth.plan.recompute.trial_choices import counts_tried
from synth.plan.tuning import JUDGING
from synth.profile import Profile
from synth.schedule.recomputed_stages import recomputed
from synth.search.outcome import StoppedBy
from synth.solver.bounds.closed_form import work_bound_us
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.result import Result, judged_result

# Approximate time of each pass, relative to the first one.
_COSTS = {
    Pass.UNTIMED: JUDGING.untimed_cost,
    Pass.TIMED: JUDGING.timed_cost,
    Pass.AVERAGED: JUDGING.timed_cost,
    Pass.UNTIMED_WITH_R: JUDGING.untimed_cost,
    Pass.WITH_FEWER_R: JUDGING.untimed_cost,
    Pass.WITH_LAYERS: JUDGING.layers_cost,
    Pass.TIMED_WITH_R: JUDGING.timed_with_r_cost,
    Pass.AVERAGED_WITH_R: JUDGING.timed_with_r_cost,
}

# Charges the effort of a schedule before it is made, given its number of ops, its pass, and True if
# the candidate has no schedule yet. Returns True if there is no time for it, which ends the pass.
ChargeOps = Callable[[int, Pass, bool], bool]


def judge(
    trials: Sequence[Trial],
    charge: ChargeOps,
    on_found: Callable[[Trial], None],
    after_quick: Callable[[], None] = lambda: None,
) -> None:
    """Set the best published schedule of each trial as its result.

    Args:
        trials: trials without a result.
        charge: called before each schedule is made; ends the passes.
        on_found: called with a trial after each pass.
        after_quick: called once, after the quick passes of all trials.
    """
    pairs = [(trial, JudgedSchedules(trial.problem, trial.candidate.choice)) for trial in trials]
    steps = [(*pair, step) for pair in pairs for step in Pass]
    is_quick_over = False
    for trial, published, step in sorted(steps, key=_cost):
        if not is_quick_over and not is_quick(step):
            is_quick_over = True
            after_quick()
        _run(trial, published, step, charge, best_us(trials))
        trial.published, trial.moved = tuple(published.baselines), published.moved
        on_found(trial)
    for trial, published in pairs:
        trial.is_judged = published.is_complete


def is_quick(step: Pass) -> bool:
    """Return True if each schedule of a pass takes little more than its evaluation."""
    return step <= Pass.UNTIMED_WITH_R


def _cost(of: tuple[Trial, JudgedSchedules, Pass]) -> tuple[bool, int, int]:
    """Sort key of a pass: its cost by the square of the size, as large schedules rarely help."""
    trial, published, step = of
    # First all orders that read no times, alone and then with R, which is cheap.
    tier = (step != Pass.UNTIMED) + (step > Pass.UNTIMED_WITH_R)
    return published.is_hopeless, tier, trial.problem.num_ops**2 * _COSTS[step]


def _run(
    trial: Trial, published: JudgedSchedules, step: Pass, charge: ChargeOps, most_us: int | None
) -> None:
    num_ops = trial.problem.num_ops

    def charge_schedules(schedules: int = 1) -> bool:
        needs_one = published.best is None and not published.is_hopeless
        return charge(schedules * num_ops, step, needs_one)

    published.run(step, charge_schedules, most_us)
    if published.best is not None:
        trial.offer(published.best_problem, published.best)


def offloading_trial(trial: Trial) -> Trial | None:
    """Return a trial of its own for the best schedule that offloads activations; None without one.

    Its bound is that without memory limits, as offloaded activations take no memory.
    """
    if trial.moved is None:
        return None
    problem = trial.candidate.problem  # the best schedule's may have layers recomputed
    free = replace(problem, caps_bytes=None)
    least_us = work_bound_us(relaxed_for_fusion(free), free.objective)
    name = f"{trial.name} ({trial.moved.schedule.name})"
    found = judged_result(problem, trial.moved, least_us)
    candidate = trial.candidate._replace(name=name)
    return Trial(candidate, least_us, found, is_over=True, is_fixed=True)


def infeasible_result(trial: Trial) -> Result | None:
    """Return an infeasible result if closed forms prove it; else None."""
    message = why_infeasible(trial.problem, trial.candidate.choice)
    if message is None or trial.value_us is not None:
        return None
    return result_without_schedule(trial, StoppedBy.INFEASIBLE, message)


def result_without_schedule(trial: Trial, stopped_by: StoppedBy, message: str) -> Result:
    """Return a trial's result that has no schedule; `stopped_by` says whether that is a proof."""
    bound_us = trial.lower_bound_us
    return Result.without_schedule(trial.problem, stopped_by, message, bound_us)


def repartitioned_trials(
    profile: Profile, trials: Sequence[Trial], should_stop: Callable[[], bool]
) -> Iterator[Trial]:
    """Yield trials in partitions for the stages that recompute in the best schedules, and near
    them.

    The trials have no result, and a choice of just these stages.
    """
    least_us = best_us(trials) or 0
    known = {(trial.name, trial.problem.partition) for trial in trials}
    near = [
        one
        for one in trials
        if one.value_us is not None and one.value_us <= JUDGING.near_factor * least_us
    ]
    for trial in sorted(near, key=lambda one: one.value_us or 0):
        if trial.candidate.choice is not None:
            continue
        for stages in _neighbours(trial):
            if should_stop():
                return
            problem = repartitioned(profile, trial.problem, stages, should_stop)
            if (trial.name, problem.partition) not in known:
                known.add((trial.name, problem.partition))
                choice = problem.rebuildable(stages)
                candidate = trial.candidate._replace(problem=problem, choice=choice)
                yield Trial(candidate, bound_us(problem, None))


def _neighbours(trial: Trial) -> Iterator[tuple[int, ...]]:
    """Yield the first stages, as many as recompute in the result, then one step more and fewer."""
    assert trial.found is not None and trial.found.schedule is not None
    count = len(recomputed(trial.found.schedule))
    counts = counts_tried(trial.problem)
    nearest = min(range(len(counts)), key=lambda at: abs(counts[at] - count))
    for at in (nearest, nearest + 1, nearest - 1):
        if count and 0 < at < len(counts):
            yield tuple(range(counts[at]))
