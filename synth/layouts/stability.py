"""Counts how often a choice stays the best over the uncertainty of the estimate."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from synth.costs.partition_costs import partition_costs
from synth.costs.recomputed_layers import recomputing
from synth.estimates.factors import Factors
from synth.estimates.outside_pipeline import OutsidePipeline, layers_of_ranks
from synth.layouts.answer import JudgedLayout, Stability
from synth.layouts.layout_bounds import LayoutBounds
from synth.layouts.question import LayoutQuestion
from synth.schedule.model import Schedule
from synth.schedule.verify import verify


def stability(
    question: LayoutQuestion,
    shortlist: Sequence[JudgedLayout],
    draws: int,
    seed: int,
    should_stop: Callable[[], bool],
) -> Stability | None:
    """Judge a shortlist again under other factors.

    The logarithms of the factors are drawn from the normal distributions of the estimate. Each
    layout keeps its order and its partition.

    Args:
        shortlist: the chosen layout first.
        draws: how many factors are drawn.
        should_stop: ends them earlier.

    Returns:
        The wins; None: no draw was made.
    """
    with_schedules = [(one, one.plan.schedule()) for one in shortlist]
    return under_draws(
        question.factors,
        lambda factors: [_step_us(question, *one, factors) for one in with_schedules],
        draws,
        seed,
        should_stop,
    )


def under_draws(
    factors: Factors,
    times: Callable[[Factors], Sequence[float]],
    draws: int,
    seed: int,
    should_stop: Callable[[], bool],
) -> Stability | None:
    """Count which of some choices is the fastest under factors that are drawn.

    Args:
        factors: their values, and the deviations of their logarithms.
        times: of the choices under given factors, the chosen one first.
        draws: how many factors are drawn.
        should_stop: ends them earlier.

    Returns:
        The wins; None: no draw was made.
    """
    random = np.random.default_rng(seed)
    wins, regrets = Counter[int](), []
    choices = range(0)
    for _ in range(draws):
        if should_stop():
            break
        moved = np.log(factors.values) + random.normal(0.0, factors.deviations)
        found = times(factors.at(moved))
        choices = range(len(found))
        best = min(choices, key=found.__getitem__)
        wins[best] += 1
        regrets.append(found[0] / found[best] - 1)
    if not regrets:
        return None
    is_cut_short = len(regrets) < draws
    counted = tuple(wins[place] for place in choices)
    return Stability(len(regrets), is_cut_short, counted, median(regrets), max(regrets))


def _step_us(
    question: LayoutQuestion, judged: JudgedLayout, schedule: Schedule, factors: Factors
) -> float:
    """The step of a judged layout under other factors."""
    layout, plan = judged.layout, judged.plan
    bounds = LayoutBounds(question.with_factors(factors), layout.groups)
    costs = partition_costs(recomputing(bounds.profile, plan.recomputation), plan.partition)
    held = layers_of_ranks(plan.partition, schedule.placement)
    outside = OutsidePipeline(bounds.estimator, layout.ranks).times(bounds.profile, held)
    return float(verify(schedule, costs)[1].makespan_us) + outside.data_us
