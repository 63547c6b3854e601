"""Choosing among the rules by which a framework recomputes layers (see `RecomputationMenu`).

There are few, so all are judged by list schedules, those of least work first.
"""

from collections.abc import Callable
from dataclasses import replace

from synth.costs.recomputation import Recomputation
from synth.costs.recomputed_layers import policies_of
from synth.plan.list_schedule_judge import ListScheduleJudge
from synth.plan.recompute.layer_choice import LayerSearch, with_layers, without_layers
from synth.plan.tuning import LIST_JUDGING
from synth.profile.model_parts import model_parts
from synth.schedule.model import SMALLEST_BUFFERING
from synth.solver.infeasibility import may_fit, smallest_limit_bytes
from synth.solver.instance.memory_models import safe_memory
from synth.solver.problem import Problem


def problems_on_menu(problem: Problem) -> list[Problem]:
    """Return the problem with each choice of layers that its menu offers, first that of none.

    Args:
        problem: with its profile, its partition and its menu.
    """
    assert problem.profile is not None and problem.partition is not None
    assert problem.layer_menu is not None
    parts = model_parts([layer.name for layer in problem.profile.layers])
    at = problem.partition, problem.placement, parts
    every = problem.layer_menu.every_layer(*at)
    in_part = [
        Recomputation(dict.fromkeys(every, policy))
        for policy in problem.layer_menu.policies
        if every and all(policy in policies_of(problem.profile, layer) for layer in every)
    ]
    choices = [*problem.layer_menu.choices(*at), *in_part]
    return [with_layers(problem, layers) for layers in choices]


class MenuSearch:
    """A search over the choices on a menu, with the methods of `LayerSearch`. It is deterministic.

    Attributes:
        are_few: False; `best` says how many are worth a trial.
    """

    are_few = False

    def __init__(
        self, problem: Problem, effort_s: float, should_stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Judge nothing yet; the arguments are those of `LayerSearch`."""
        self.should_stop = should_stop
        self.without, *choices = problems_on_menu(without_layers(problem))
        self.choices = sorted(choices, key=_work_us)
        self.judge = ListScheduleJudge(problem, effort_s)
        self.values: dict[Recomputation, int] = {}

    def run(self) -> None:
        """Judge the choices, those of least work first."""
        rule = 0
        for choice in self.choices:
            if self.values and (self.judge.effort_ops <= 0 or self.should_stop()):
                return
            if not may_fit(choice):
                continue
            sample = replace(choice, num_micro_batches=self.judge.num_micro_batches)
            found = self.judge.values(
                safe_memory(sample, SMALLEST_BUFFERING),
                choice.objective,
                LIST_JUDGING.rules,
                rule,
                min(self.values.values(), default=None),
                self.should_stop,
            )
            if found:
                best = min(found)
                self.values[choice.recomputed_layers], rule = best.value_us, best.rule

    def best(self, most: int) -> list[Problem]:
        """Return the problem with the best choices, best first; then those that may fit, too."""
        judged = [one for one in self.choices if one.recomputed_layers in self.values]
        ranked = sorted(judged, key=lambda one: self.values[one.recomputed_layers])
        others = [one for one in self.choices if one not in ranked and may_fit(one)]
        return [*ranked, *others][:most]

    def least(self) -> Problem:
        """Return the problem with the choice under which the smallest limit suffices."""
        return min((*self.choices, self.without), key=smallest_limit_bytes)


def layer_search(
    problem: Problem, effort_s: float, should_stop: Callable[[], bool] = lambda: False
) -> LayerSearch | MenuSearch:
    """Return the search for the layers to recompute: any, or those on the problem's menu."""
    make = LayerSearch if problem.layer_menu is None else MenuSearch
    return make(problem, effort_s, should_stop)


def _work_us(problem: Problem) -> int:
    return sum(stage.work_us for stage in problem.costs.stages)
