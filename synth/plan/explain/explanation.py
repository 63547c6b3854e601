"""The explanation of a plan: its value, what holds it back, and what changes would give."""

import threading

from synth.errors import SynthError
from synth.plan.explain.held_back import what_holds_back
from synth.plan.explain.idle_causes import RankIdle, idle_causes, why_memory_is_no_cause
from synth.plan.explain.new_searches import NewSearches, why_not_searched
from synth.plan.explain.path_summary import CriticalPath, critical_path_of
from synth.plan.explain.same_order import SameOrder
from synth.plan.explain.what_if import WhatIf
from synth.profile import Profile
from synth.records.record import Record
from synth.schedule.files.claim import SAME_OPS
from synth.schedule.files.plan_file import Plan
from synth.schedule.simulate import Timeline
from synth.solver.options import SolveOptions
from synth.units import format_us


class Explanation(Record):
    """The explanation of a plan, computed from its simulation.

    Attributes:
        value_us: the value of the objective, simulated.
        gap: (value − bound) / value.
        bound_holds_for: the scope of the bound, in words.
        held_back_by: the rank and the resource, with figures.
        critical_path: the ops, transfers and reductions of a longest path.
        idle: the idle time of each rank by cause.
        what_ifs: what changes would give; empty if none was asked for.
        notes: what is not told, and why.
    """

    plan: str
    objective: str
    value_us: int
    lower_bound_us: int
    gap: float
    bound_holds_for: str
    held_back_by: str
    critical_path: CriticalPath
    idle: tuple[RankIdle, ...]
    what_ifs: tuple[WhatIf, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The value, its proven distance from the best, and what holds the plan back."""
        proven = "proven optimal" if self.gap == 0 else f"proven within {self.gap:.2%} of the best"
        among = "among" if self.bound_holds_for == SAME_OPS else "for"
        return (
            f"{self.objective} {format_us(self.value_us)}, "
            f"{proven} {among} {self.bound_holds_for}; "
            f"what holds it back is {self.held_back_by}."
        )

    def __str__(self) -> str:
        """Return the sentence."""
        return self.sentence

    def to_data(self) -> dict[str, object]:
        """Return all figures as JSON has them."""
        return {"sentence": self.sentence, **self.model_dump(mode="json")}


def explain_schedule(plan: Plan, timeline: Timeline) -> Explanation:
    """Explain a verified plan by its simulation alone, without what-ifs."""
    claim, objective = plan.claim, plan.claim.judged_by
    idle = idle_causes(timeline, objective, plan.caps_bytes)
    why_not = why_memory_is_no_cause(timeline.lowered, plan.caps_bytes)
    return Explanation(
        plan=plan.name,
        objective=objective.words,
        value_us=objective.value_us(timeline),
        lower_bound_us=claim.lower_bound_us,
        gap=claim.gap,
        bound_holds_for=plan.bound_scope,
        held_back_by=what_holds_back(plan, timeline, idle),
        critical_path=critical_path_of(timeline),
        idle=idle,
        notes=() if why_not is None else (f"memory is no cause of its own: {why_not}",),
    )


def explain(
    plan: Plan,
    timeline: Timeline,
    options: SolveOptions,
    profile: Profile | None = None,
    stop: threading.Event | None = None,
) -> Explanation:
    """Explain a verified plan, and compute what changes would give.

    Args:
        timeline: its simulation.
        options: the workers, and the time limit of all what-ifs together.
        profile: the plan's, for moved and recomputed layers.
        stop: set it, from any thread, to end with what is computed then.
    """
    clock = options.clock(stop)
    explained = explain_schedule(plan, timeline)
    same_order = SameOrder(plan, timeline, clock.is_over)
    found, notes = [*same_order.of_hardware()], [*explained.notes]
    if profile is None:
        notes.append("moved and recomputed layers: the profile is needed and not at hand")
    elif plan.weights is not None or len(plan.placement) > 1 or plan.vocabulary is not None:
        notes.append("moved and recomputed layers: told of single pipelines of whole layers alone")
    else:
        found += same_order.of_layers(profile)
    reason = why_not_searched(plan)
    if reason is None:
        try:
            found += NewSearches(plan, clock, options).run()
        except SynthError as error:
            reason = str(error)
    if reason is not None:
        notes.append(f"memory and micro-batches: {reason}")
    return explained.replace(what_ifs=tuple(found), notes=tuple(notes))
