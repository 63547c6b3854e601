"""Judging variants of a problem by list schedules: a quick estimate, within a given effort.

It ranks partitions (`partition.partition_search`) and choices of layers to recompute
(`recompute.layer_choice`) before any of them gets a trial of the solver.
"""

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from synth.objective import Objective
from synth.plan.tuning import LIST_JUDGING
from synth.solver.improve import priority_rules
from synth.solver.improve.list_builders import list_builder
from synth.solver.instance.instance import SPLIT, Instance
from synth.solver.problem import Problem


class RuleValue(NamedTuple):
    """The value of a list schedule, and the number of its priority rule."""

    value_us: int
    rule: int


class ListScheduleJudge:
    """Makes list schedules within an effort.

    Attributes:
        effort_ops: ops that may still be placed; callers count their own effort in it, too.
        num_micro_batches: the number with which the variants are judged: all, or a few.
    """

    def __init__(self, problem: Problem, effort_s: float) -> None:
        """Plan to place as many ops as list scheduling places in `effort_s` seconds."""
        self.effort_ops = round(LIST_JUDGING.ops_per_s * effort_s)
        self.num_micro_batches = _num_micro_batches(problem)

    def values(
        self,
        instance: Instance,
        objective: Objective,
        num_rules: int,
        first_rule: int,
        best_us: int | None,
        should_stop: Callable[[], bool],
    ) -> list[RuleValue]:
        """Return the values of list schedules by several rules, in the order of trying.

        Args:
            num_rules: the most rules to try.
            first_rule: the rule that is tried first.
            best_us: the best value of other variants. If this one is far from it, the remaining
                rules are skipped.
            should_stop: asked after each rule once one has a schedule.
        """
        builder = list_builder(instance, objective)
        rules = list(islice(priority_rules.variants(instance), num_rules))
        found: list[RuleValue] = []
        for rule in (first_rule, *(rule for rule in range(len(rules)) if rule != first_rule)):
            self.effort_ops -= instance.num_ops
            draft = builder.build(rules[rule])
            if draft is not None:
                found.append(RuleValue(draft.value_us, rule))
            if found and (_is_far(min(found).value_us, best_us) or should_stop()):
                break
        return found


def _is_far(value_us: int, best_us: int | None) -> bool:
    return best_us is not None and value_us > LIST_JUDGING.far_factor * best_us


def _num_micro_batches(problem: Problem) -> int:
    """Return the micro-batches for judging: all of a small problem, else a few per rank."""
    copies = problem.num_replicas
    few = copies * LIST_JUDGING.few_ops // (len(SPLIT) * problem.costs.num_stages)
    most = max(copies, few, LIST_JUDGING.micro_batches_per_rank * problem.num_ranks)
    return min(problem.num_micro_batches, most)
