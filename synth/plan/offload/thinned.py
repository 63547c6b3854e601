"""Problems whose schedules need offloads: a part of what F saves counts as away from F to B.

An activation that moves is on its rank for two moves of t µs and its B, of the L µs from F to B. So
at most 1 − (2 t + B) / L of it is away, on average. The moves of a micro-batch take t µs of a link
in each direction, and a rank has its work on a micro-batch as time for them. The longest-lived
stages of a rank move first. (By Little's law, bytes on average are a rate times a lifetime.)
"""

from dataclasses import replace

from synth.costs.costs import Costs
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.plan.tuning import OFFLOAD
from synth.solver.instance.instance import BW, B, F, W
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.problem import Problem


def thinned(problem: Problem, factor: float) -> Problem:
    """Return the problem with a part of each stage's saved bytes away between F and B.

    Args:
        problem: with a link to the host.
        factor: of the shares that are away at least lifetimes.
    """
    shares = away_shares(problem)
    stages = (
        _thinned(stage, min(OFFLOAD.most_away, factor * share))
        for stage, share in zip(problem.costs.stages, shares, strict=True)
    )
    costs: Costs = problem.costs.replace(stages=tuple(stages))
    return replace(problem, costs=costs)


def away_shares(problem: Problem) -> list[float]:
    """Return by stage the share of saved bytes that is away, with the shortest lifetimes."""
    instance, host = relaxed_memory(problem), problem.costs.links.host
    assert host is not None
    shares = [0.0] * problem.costs.num_stages
    for held in instance.held:
        copies = [instance[index] for index in held]
        per_batch_us = sum(sum(copy.duration_us[kind] for kind in (F, B, W)) for copy in copies)
        left_us = float(per_batch_us)
        lives = [instance.round_trip_us[index] + instance[index].duration_us[B] for index in held]
        for life_us, copy in sorted(zip(lives, copies, strict=True), key=lambda one: -one[0]):
            move_us = host.transfer_us(problem.costs.stages[copy.stage].saved_bytes)
            here_us = 2 * move_us + copy.duration_us[B]
            if move_us and here_us < life_us:
                part = min(1.0, left_us / move_us)
                left_us -= part * move_us
                away = part * (1 - here_us / life_us)
                shares[copy.stage] = max(shares[copy.stage], away)
    return shares


def _thinned(stage: StageCosts, share: float) -> StageCosts:
    away = int(share * stage.saved_bytes)
    rises: dict[OpKind, int] = dict(stage.rise_bytes)
    for kind in (B, BW):
        rises[kind] += away
    changed: StageCosts = stage.replace(saved_bytes=stage.saved_bytes - away, rise_bytes=rises)
    return changed
