"""Bounds of searches in which stages are recomputed, wherever their R's stand."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import compress, product

from synth.costs.merged_recomputation import merged
from synth.costs.stage_costs import StageCosts
from synth.objective import Spans
from synth.op_kinds import OpKind
from synth.plan.tuning import RECOMPUTE_BOUNDS
from synth.schedule.recomputed_stages import BACKWARDS
from synth.solver.bounds.closed_form import rank_bounds, work_bounds
from synth.solver.bounds.link_load import link_bounds
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.problem import Problem


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
