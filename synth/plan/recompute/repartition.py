"""Partitioning the model again for stages that recompute, counting R's time.

With given stages both partitions are solved, the second one from the order of the first, and the
faster plan is kept. If the stages are chosen, each number of them is tried on the partition without
R's time, then the best number and its neighbours on those that count it.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from synth.costs.partition_costs import partition_costs
from synth.costs.recomputation import Recomputation
from synth.costs.recomputed_layers import recomputing
from synth.plan.partition.balance import balance
from synth.plan.recompute.attempts import ChoiceAttempts
from synth.plan.recompute.choice import Choice, solve_with
from synth.plan.recompute.choice_search import ChoiceSearch
from synth.plan.recompute.choice_trials import ChoiceTrials
from synth.plan.tuning import REPARTITION
from synth.profile import Profile
from synth.search.best_so_far import BestSoFar
from synth.search.outcome import rank_key
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result
from synth.solver.watch import UNWATCHED, SolveWatch


def solve_repartitioning(
    profile: Profile | None,
    problem: Problem,
    choice: Choice,
    options: SolveOptions | None = None,
    watch: SolveWatch = UNWATCHED,
    attempts: ChoiceAttempts | None = None,
) -> Result:
    """Solve with stages recomputing, on the given partition or on one made for these stages.

    The problem of the result has the partition for which its bound holds.

    Args:
        profile: the profile of the problem's costs; None: keep the partition.
        choice: the stages that recompute; None: chosen by trials.
        attempts: those of earlier searches for the best choice; new ones are added.
    """
    options = options or SolveOptions()
    clock = options.clock(watch.stop)
    watch = watch._replace(stop=clock.stop)
    if profile is None:
        return solve_with(problem, choice, options, watch, attempts)
    if choice is None:
        partitions = partial(_distinct, profile, problem)
        repartition = partial(_repartition, profile)
        asked = problem, partitions, options, watch, repartition, attempts
        return ChoiceSearch(ChoiceTrials(*asked)).run()
    given = _distinct(profile, problem, choice)
    if len(given) == 1:
        return solve_with(problem, choice, options, watch)
    part = replace(options, time_limit_s=REPARTITION.first_share_of_limit * options.time_limit_s)
    if watch.on_improvement is not None:
        watch = watch._replace(on_improvement=BestSoFar(watch.on_improvement))
    first = solve_with(problem, choice, part, watch)
    clock.grant(part.time_limit_s)
    if clock.is_over():
        return first
    rest = replace(options, time_limit_s=clock.left_s()).going_on_from(first)
    second = solve_with(given[1], choice, rest, watch)
    best = min(first, second, key=lambda found: rank_key(found.value_us))
    return replace(best, wall_s=clock.elapsed_s)


def _repartition(profile: Profile, problem: Problem) -> Problem | None:
    """Return the problem balanced with its recomputed layers counted; None if that is no change."""
    seen = recomputing(profile, problem.recomputed_layers)
    sizes = balance(seen, problem.placement, problem.caps_bytes, problem.num_micro_batches)
    if sizes == problem.partition:
        return None
    costs = partition_costs(profile, sizes, problem.placement.ranks)
    return replace(problem.on_partition(costs, sizes), recomputed_layers=Recomputation())


def _distinct(profile: Profile, problem: Problem, stages: Collection[int]) -> list[Problem]:
    """Return the problem, and the one balanced with R counted if its partition differs."""
    if not stages:
        return [problem]
    other = repartitioned(profile, problem, stages)
    if other is problem or other.rebuildable(stages) != tuple(stages):
        return [problem]
    return [problem, other]


def repartitioned(
    profile: Profile,
    problem: Problem,
    stages: Collection[int],
    should_stop: Callable[[], bool] = lambda: False,
) -> Problem:
    """Return the problem balanced with R's time of some stages; itself if that is no change.

    Args:
        should_stop: ends the local search for ranks with several stages.
    """
    sizes = balance(
        profile,
        problem.placement,
        problem.caps_bytes,
        problem.num_micro_batches,
        stages,
        should_stop,
    )
    if sizes == problem.partition:
        return problem
    costs = partition_costs(profile, sizes, problem.placement.ranks)
    return problem.on_partition(costs, sizes)
