"""The choices of recomputation that get a trial: the hint's, none, some layers, some stages."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from synth.costs.merged_recomputation import merged
from synth.op_kinds import OpKind
from synth.plan.recompute.attempts import ChoiceKey
from synth.plan.recompute.layer_choice import with_layers
from synth.plan.recompute.stages import bounds
from synth.plan.tuning import RECOMPUTE_TRIALS
from synth.schedule.recomputed_stages import recomputed
from synth.search.outcome import relative_gap
from synth.solver.infeasibility import may_fit
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result

# For stages that recompute, the problems to try.
Partitions = Callable[[tuple[int, ...]], Sequence[Problem]]

# A problem with its recomputed layers, and the stages with an R.
Chosen = tuple[Problem, tuple[int, ...]]


def most_trials(problem: Problem, within_s: float) -> int:
    """Return for how many trials some seconds are enough; one at least."""
    return max(1, int(within_s / (RECOMPUTE_TRIALS.s_per_op * problem.num_ops)))


def choices_tried(
    problem: Problem,
    options: SolveOptions,
    layered: Sequence[Problem],
    partitions: Partitions,
    most: int,
) -> list[Chosen]:
    """Return the choices to try, those first that are best most often.

    Those that cannot fit, by closed forms, are left out, unless nothing can.

    Args:
        problem: without recomputation.
        layered: the problem with the best choices of layers.
        partitions: returns the problems to try where some stages recompute.
        most: the number of trials for which there is time; the first ones are spread evenly.
    """
    found = [] if options.hint is None else [hinted(problem, options)]
    found += [(one, ()) for one in (problem, *layered)]
    beside = RECOMPUTE_TRIALS.most_counts_beside_layers
    most_counts = beside if layered else RECOMPUTE_TRIALS.most_counts
    few = counts_tried(problem, max(2, min(most_counts, most + 1 - len(found))))
    for count in dict.fromkeys((*few, *counts_tried(problem, most_counts))):
        one = partitions(tuple(range(count)))[0]
        found.append((one, one.rebuildable(range(count))))
    distinct = list({ChoiceKey.of(*one): one for one in found}.values())
    possible = [one for one in distinct if _may_fit(*one)]
    return possible or distinct


def num_partitions(choices: Sequence[Chosen], partitions: Partitions) -> int:
    """Return how many other partitions may get a trial besides."""
    near = [stages for _, stages in choices if stages][: RECOMPUTE_TRIALS.near_counts]
    has_layers = any(problem.recomputed_layers for problem, _ in choices)
    return has_layers + sum(len(partitions(stages)) - 1 for stages in near)


def hinted(problem: Problem, options: SolveOptions) -> Chosen:
    """Return the choice of the hint."""
    assert options.hint is not None
    layers = options.hint_layers
    chosen = with_layers(problem, layers) if layers else problem
    return chosen, tuple(recomputed(options.hint))


def counts_tried(problem: Problem, most: int = RECOMPUTE_TRIALS.most_counts) -> list[int]:
    """Return the numbers of first stages to try: none, all, and evenly spaced between.

    Without R among the problem's ops it is none alone.
    """
    if OpKind.R not in problem.further_ops:
        return [0]
    num_stages = problem.costs.num_stages
    steps = min(num_stages, most - 1)
    return sorted({round(i * num_stages / steps) for i in range(steps + 1)})


def can_win(problem: Problem, stages: tuple[int, ...], best: Result, gap: float) -> bool:
    """Return True if a choice may fit and be better than a result by more than a gap."""
    if not _may_fit(problem, stages):
        return False
    if best.value_us is None:
        return True
    bound_us = problem.objective.value_us(bounds(problem, stages))
    return relative_gap(best.value_us, bound_us) > gap


def _may_fit(problem: Problem, stages: tuple[int, ...]) -> bool:
    return may_fit(replace(problem, costs=merged(problem.costs, stages)))
