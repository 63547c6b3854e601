"""Recomputation of stages: F keeps only its input, and R rebuilds the rest before B.

The search does not know R. Its stages have a B that takes the time of R and B, whose peak is the
higher of the two, and an F that keeps nothing (`costs.merged_recomputation`). The schedule found
is then written out, each such B as R B, verified and simulated with the true costs:

    searched     | F0 | F1 |   B0    |   B1    | W0 | W1 |
    written out  | F0 | F1 | R0 | B0 | R1 | B1 | W0 | W1 |    R0 need not wait for B0's gradient
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import compress, product

from synth.costs.merged_recomputation import merged
from synth.costs.stage_costs import StageCosts
from synth.objective import Spans
from synth.op_kinds import OpKind
from synth.plan.tuning import RECOMPUTE_BOUNDS
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.solver.bounds.closed_form import rank_bounds, work_bounds
from synth.solver.bounds.link_load import link_bounds
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.problem import Problem

BACKWARDS = (OpKind.B, OpKind.BW)


def written_out(schedule: Schedule, stages: Collection[int]) -> Schedule:
    """The schedule with R right before each B or BW of some stages."""

    def ops(program: Sequence[Op]) -> Iterator[Op]:
        for op in program:
            if op.stage in stages and op.kind in BACKWARDS:
                yield op._replace(kind=OpKind.R)
            yield op

    return replace(schedule, programs=tuple(tuple(ops(program)) for program in schedule.programs))


def without_recompute(schedule: Schedule) -> Schedule:
    """The schedule without its R's, the reverse of `written_out`."""
    programs = tuple(
        tuple(op for op in program if op.kind != OpKind.R) for program in schedule.programs
    )
    return replace(schedule, programs=programs)


def recomputed(schedule: Schedule) -> list[int]:
    """The stages of which R's are listed."""
    ops = (op for program in schedule.programs for op in program)
    return sorted({op.stage for op in ops if op.kind == OpKind.R})


def bounds(problem: Problem, stages: Collection[int]) -> Spans:
    """Lower bounds of makespan and period, wherever the R's of these stages stand."""
    return Spans.most([*_rank_bounds(problem, stages), bounds_of_links(problem)])


def bounds_of_any_choice(problem: Problem) -> Spans:
    """Lower bounds whichever stages recompute.

    What a rank implies depends on its own stages alone, so the least over the choices for each
    rank, and of those the most over all ranks, bounds every choice of all.
    """
    held = held_stages(problem)
    most = max(map(len, held))
    if most > RECOMPUTE_BOUNDS.most_held:
        return work_bounds(relaxed_for_fusion(replace(problem, caps_bytes=None)))
    of_links = bounds_of_links(problem)
    if not have_fixed_places(problem):
        of_ranks = (_of_own_choice(problem, rank, own) for rank, own in enumerate(held))
        return Spans.most([*of_ranks, of_links])
    found = []
    for chosen in product((False, True), repeat=most):
        stages = {s for stages in held for s, on in zip(stages, chosen, strict=False) if on}
        found.append(_rank_bounds(problem, stages))
    return Spans.most([*map(Spans.least, zip(*found, strict=True)), of_links])


def bounds_of_links(problem: Problem) -> Spans:
    """Lower bounds by the load of links, whatever recomputes: that changes no transfer."""
    return link_bounds(relaxed_for_fusion(replace(problem, caps_bytes=None)))


def held_stages(problem: Problem) -> list[list[int]]:
    """The stages of each rank, in forward order."""
    return [sorted({stage for stage, _ in pairs}) for pairs in problem.placement.held]


def have_fixed_places(problem: Problem) -> bool:
    """True if a stage stands at the same place among those of every rank that holds it.

    Then one choice of places is a choice for every rank. Otherwise, what is chosen for a stage on
    one rank would choose for it on another one too.
    """
    places = {(stage, at) for held in held_stages(problem) for at, stage in enumerate(held)}
    return len(places) == problem.costs.num_stages


def _of_own_choice(problem: Problem, rank: int, own: Sequence[int]) -> Spans:
    """The least of one rank's closed forms over the choices of its own stages."""
    choices = (set(compress(own, on)) for on in product((False, True), repeat=len(own)))
    return Spans.least(_rank_bounds(problem, stages)[rank] for stages in choices)


def _rank_bounds(problem: Problem, stages: Collection[int]) -> list[Spans]:
    """Closed forms of the relaxation, each rank with the work of its R's besides."""
    instance = relaxed_for_fusion(relaxed(problem, stages))
    again_us = {stage: problem.costs.stages[stage].duration_us[OpKind.R] for stage in stages}
    return rank_bounds(instance.with_again(again_us))


def relaxed(problem: Problem, stages: Collection[int]) -> Problem:
    """A problem that every schedule solves in which at most these stages recompute.

    No B waits for its R, R takes no time, and nothing rebuilt is held longer than its B takes.
    """
    costs = problem.costs
    seen = merged(costs, stages).stages
    return replace(
        problem,
        costs=costs.replace(
            stages=tuple(
                _relaxed_stage(stage, seen[number]) if number in stages else stage
                for number, stage in enumerate(costs.stages)
            )
        ),
    )


def _relaxed_stage(true: StageCosts, seen: StageCosts) -> StageCosts:
    rise = dict(seen.rise_bytes)
    rise[OpKind.F] = min(true.rise_bytes[OpKind.F], true.light_rise)
    for kind in BACKWARDS:
        rise[kind] = max(0, true.saved_bytes - true.replay_bytes + true.rise_bytes[kind])
    return seen.replace(
        duration_us=true.duration_us,
        rise_bytes=rise,
        saved_bytes=min(true.saved_bytes, true.replay_bytes),
        saved_w_bytes=true.saved_w_bytes,
        input_until=true.input_until,
    )
