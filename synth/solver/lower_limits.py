"""Published schedules made for lower memory limits than the problem's.

A greedy that fills the memory that it is given can be slower with more of it. So families whose
order depends on the limits are also made for the limits of a fixed row, as far as these are below
the problem's: a larger limit only adds schedules, and what is found there first is no worse.

The row does not depend on the problem's limits. A rank's first limit is its static bytes and those
that all its micro-batches save; each further one has a fixed share of the saved bytes before.
"""

from collections.abc import Iterator

from synth.errors import SynthError
from synth.families import family_of, generate, names_on
from synth.schedule.model import Schedule
from synth.schedule.rank_memory import exceeds_caps
from synth.solver.infeasibility import needed_bytes
from synth.solver.problem import Problem
from synth.solver.tuning import PUBLISHED


def lower_limits(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield the limits of the row that are below the problem's on every rank, highest first.

    Without limits, and where one micro-batch alone does not fit, there are none.
    """
    caps, needed = problem.caps_bytes, needed_bytes(problem)
    if caps is None:
        return
    stages = problem.costs.stages
    statics = list(map(problem.static_bytes, range(problem.num_ranks)))
    saved = [
        problem.num_micro_batches * sum(stages[stage].saved_bytes for stage, _ in held)
        for held in problem.placement.held
    ]
    share, before = 1.0, statics
    while any(int(share * most) for most in saved):
        limits = [static + int(share * most) for static, most in zip(statics, saved, strict=True)]
        if exceeds_caps(needed, limits):
            return
        if limits != before and not exceeds_caps(limits, caps):
            yield tuple(limits)
        share, before = share * PUBLISHED.lower_limit_ratio, limits


def made_for_lower_limits(problem: Problem) -> Iterator[tuple[str, Schedule]]:
    """Yield the schedules of families that read the limits, with their names."""
    where = problem.placement
    names = [name for name in names_on(where) if family_of(name).reads_limits]
    for limits in lower_limits(problem) if names else ():
        for name in names:
            try:
                made = generate(
                    name,
                    where.num_ranks,
                    problem.num_micro_batches,
                    costs=problem.costs,
                    caps_bytes=limits,
                    where=where,
                    objective=problem.objective,
                )
            except SynthError:
                continue  # it makes none within them
            yield f"{name}, less memory", made
