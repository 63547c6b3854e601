"""Counts how often the plan of an estimated profile stays the best over its uncertainty."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from synth.costs.partition_costs import partition_costs
from synth.costs.recomputed_layers import recomputing
from synth.estimates.estimated_profile import Estimator
from synth.estimates.factors import Factors
from synth.estimates.rebuilt import estimator_of
from synth.layouts.answer import Stability
from synth.layouts.stability import under_draws
from synth.options.request import Request
from synth.plan.choose.candidates import Ranking
from synth.profile import Profile
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Schedule
from synth.schedule.simulate import simulate
from synth.solver.problem import Problem

# Draws of factors; fewer where all choices together have so many ops that more would take long.
_DRAWS, _FEWEST, _MOST_OPS = 32, 8, 1_000_000

_SEED = 0

# How far the time of a choice may be from that of the search, of which it then is no copy.
_SAME = 1e-3


class ChoiceStability(NamedTuple):
    """The draws in which each placement was the best, with its own order and partition.

    Attributes:
        names: of the placements, the chosen one first.
        stability: in the same order.
    """

    names: tuple[str, ...]
    stability: Stability

    def data(self) -> dict[str, Any]:
        """Return the fields for scripts."""
        return {"placements": self.names, **self.stability.data()}


class _Choice(NamedTuple):
    name: str
    schedule: Schedule
    problem: Problem


def choice_stability(request: Request, chosen: Ranking) -> ChoiceStability | None:
    """Judge the best schedules of all searched placements again under other factors.

    Args:
        request: what was asked for.
        chosen: the results, best first.

    Returns:
        None: there is no choice, the profile is not one that `synth estimate` computes, or the
        schedules are too long.
    """
    estimator = estimator_of(request.profile)
    choices = list(_choices(chosen))
    if estimator is None or len(choices) < 2 or not _are_plain(request, choices):
        return None
    ops = sum(len(program) for one in choices for program in one.schedule.programs)
    draws = min(_DRAWS, _MOST_OPS // ops)
    judge = _Judge(estimator, choices)
    value_us = chosen.result.value_us
    if draws < _FEWEST or value_us is None:
        return None
    if abs(judge.times(estimator.factors)[0] / value_us - 1) > _SAME:
        return None
    found = under_draws(estimator.factors, judge.times, draws, _SEED, lambda: False)
    if found is None:
        return None
    return ChoiceStability(tuple(one.name for one in choices), found)


def _are_plain(request: Request, choices: Sequence[_Choice]) -> bool:
    """True without weight passing, versions and other pipelines beside this one."""
    return request.num_pipelines == 1 and all(
        one.schedule.weights is None and one.schedule.versions is None for one in choices
    )


def _choices(chosen: Ranking) -> Iterator[_Choice]:
    best = chosen.result.schedule
    if best is None or not chosen.trials:
        return
    yield _Choice(chosen.name, best, chosen.result.problem)
    for trial in chosen.trials:
        if trial.name == chosen.name or trial.found is None or trial.found.schedule is None:
            continue
        yield _Choice(trial.name, trial.found.schedule, trial.found.problem)


class _Judge(NamedTuple):
    estimator: Estimator
    choices: Sequence[_Choice]

    def times(self, factors: Factors) -> Sequence[float]:
        """The times of the choices under other factors."""
        profile = replace(self.estimator, factors=factors).profile(variants=True)
        return [self._us(profile, one) for one in self.choices]

    def _us(self, profile: Profile, choice: _Choice) -> float:
        problem = choice.problem
        assert problem.partition is not None
        costs = partition_costs(recomputing(profile, problem.recomputed_layers), problem.partition)
        return float(problem.objective.value_us(simulate(lower(choice.schedule, costs))))
