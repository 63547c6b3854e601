"""What-ifs that need another order: searches from the plan, with more or less memory or work.

What a search finds is an upper bound of what is possible, so that a gain is `at least` that. Where
the plan is not proven optimal, a search may also find what the plan's own conditions allow. So only
a value below the plan's lower bound counts as a gain of the change.

A search orders ops that run one after the other. Of a plan whose F and BW run at once, its own
order and the published schedules with such pairs are tried, too.
"""

from collections.abc import Iterator
from dataclasses import replace

from synth.errors import SynthError
from synth.plan.choose.published_pairs import pairs_on
from synth.plan.explain.what_if import How, WhatIf, compared
from synth.plan.recompute.choice import solve_with
from synth.plan.runtimes import Runtime
from synth.plan.tuning import EXPLAIN
from synth.plan.weight_passing.data_parallel_plan import one_pipeline
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Schedule
from synth.schedule.recomputed_stages import recomputed
from synth.search.clock import Clock
from synth.search.outcome import StoppedBy
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result
from synth.solver.watch import SolveWatch

GB_MORE, GB_LESS = "1 GB more per rank", "1 GB less per rank"
ONE_MORE = "one more micro-batch"
ANEW = "nothing changed"


def why_not_searched(plan: Plan) -> str | None:
    """Say why no order is searched for under changed conditions; None: one is."""
    schedule = plan.schedule()
    reasons = {
        "weights move": schedule.weights is not None,
        "the pipeline is never flushed": schedule.versions is not None,
        "pipelines share optimizer state": one_pipeline(plan) is not None,
        "activations move off their ranks": schedule.offloads,
        "the vocabulary is divided over all ranks": bool(schedule.vocabulary),
        "backwards have ranks of their own": plan.backward_placement is not None,
        "Megatron-LM has orders of its own": plan.arguments.get("for") == Runtime.MEGATRON,
    }
    found = next((reason for reason, holds in reasons.items() if holds), None)
    return None if found is None else f"no order is searched for, because {found}"


class NewSearches:
    """Searches with a plan's options under changed conditions."""

    def __init__(self, plan: Plan, clock: Clock, options: SolveOptions) -> None:
        """Search nothing yet.

        Args:
            plan: a verified plan that can be searched for (`why_not_searched`).
            clock: the time of all searches together, and their stop.
            options: the workers.

        Raises:
            SynthError: the plan has more ops than a search handles.
        """
        self.plan, self.clock, self.options = plan, clock, options
        self.schedule = plan.schedule()
        self.problem = Problem(
            plan.costs,
            plan.placed,
            plan.num_micro_batches,
            plan.caps_bytes,
            plan.claim.judged_by,
            plan.partition,
            recomputed_layers=plan.recomputation,
        )
        self.own_us, self.bound_us = plan.claim.value_us, plan.claim.lower_bound_us

    def run(self) -> Iterator[WhatIf]:
        """Yield what each change gives; the time that is left is divided among the rest."""
        caps = self.plan.caps_bytes
        changes: list[tuple[str, Problem, Schedule | None]] = []
        if caps is not None:
            more, less = (
                tuple(cap + sign * EXPLAIN.more_bytes for cap in caps) for sign in (1, -1)
            )
            changes.append((GB_MORE, replace(self.problem, caps_bytes=more), self.schedule))
            if min(less) > 0:
                changes.append((GB_LESS, replace(self.problem, caps_bytes=less), self.schedule))
        number = self.problem.num_micro_batches + 1
        changes.append((ONE_MORE, replace(self.problem, num_micro_batches=number), None))
        if self.own_us > self.bound_us:
            changes.append((ANEW, self.problem, self.schedule))
        for place, (change, problem, hint) in enumerate(changes):
            if self.clock.is_over():
                yield WhatIf(change=change, how=How.SEARCH, note="the time was over")
                continue
            limit_s = self.clock.left_s() / (len(changes) - place)
            yield self._searched(change, problem, hint, limit_s)
            self.clock.grant(limit_s)

    def _searched(
        self, change: str, problem: Problem, hint: Schedule | None, limit_s: float
    ) -> WhatIf:
        values_us = list(self._values_with_pairs(problem, hint))
        if hint is not None:
            hint = hint.one_after_the_other
        options = replace(self.options, time_limit_s=limit_s, hint=hint, hint_found_by="the plan")
        stages = tuple(recomputed(self.schedule))
        why_none = ""
        try:
            found = solve_with(problem, stages, options, SolveWatch(stop=self.clock.stop))
        except SynthError as error:
            why_none = str(error)
        else:
            why_none = _why_none(found)
            values_us += [] if found.value_us is None else [found.value_us]
        if not values_us:
            return WhatIf(change=change, how=How.SEARCH, note=why_none)
        if change == ANEW:
            return compared(change, How.SEARCH, min(values_us), self.own_us)
        return self._judged(change, min(values_us), problem.num_micro_batches)

    def _values_with_pairs(self, problem: Problem, hint: Schedule | None) -> Iterator[int]:
        """Yield the values of schedules that fit and whose F and BW run at once as in the plan."""
        if not self.schedule.overlapped:
            return
        own = None if hint is None else evaluate(problem, hint, "the plan")
        yield from (one.value_us for one in (*pairs_on(problem), own) if one is not None)

    def _judged(self, change: str, value_us: int, num_micro_batches: int) -> WhatIf:
        """Compare for each micro-batch; a value that may be possible as it is is no gain."""
        ratio = num_micro_batches / self.plan.num_micro_batches
        note = "" if ratio == 1 else "for each micro-batch"
        own_us, bound_us = ratio * self.own_us, ratio * self.bound_us
        if bound_us <= value_us < own_us:
            note = f"nothing beyond the gap of {1 - self.bound_us / self.own_us:.2%}"
            found = compared(change, How.SEARCH, value_us, own_us, note)
            return found.replace(change_share=0.0)
        return compared(change, How.SEARCH, value_us, own_us, note)


def _why_none(found: Result) -> str:
    if found.stopped_by == StoppedBy.INFEASIBLE:
        return "no schedule fits (proven)"
    return "no schedule found in time"
