"""A bound over all choices of recomputation where a rank holds too many stages to combine them.

What a rank holds is at most its headroom at any time, so bytes times lifetimes add up to at most
the headroom times the span (Little 1961, "A proof for the queuing formula L = λW"). Recomputation
keeps fewer bytes and takes more time. If each stage may mix its choices in any shares, the least
span is a linear program of two rows, bytes times time and work. Its best mixture goes along the
lower convex hull of each stage's choices, first where a µs of recomputation saves most.

Lifetimes are those without recomputation, which only lengthens them.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from synth.objective import Spans
from synth.op_kinds import OpKind
from synth.plan.recompute.stage_choices import (
    StageChoice,
    instance_with,
    least_costs,
    merged_to,
    stage_choices,
)
from synth.plan.tuning import RECOMPUTE_BOUNDS
from synth.schedule.recomputed_stages import BACKWARDS
from synth.solver.instance.instance import Instance
from synth.solver.problem import Problem

_OPS = (OpKind.F, OpKind.B, OpKind.W)

# The work of recomputation, in µs, and the bytes times µs that are left.
_Point = tuple[int, int]


def bounds_of_mixtures(base: Problem) -> Spans:
    """Return lower bounds of makespan and period over all choices for all stages.

    Args:
        base: the problem without recomputed layers.
    """
    most = RECOMPUTE_BOUNDS.most_mixed_of_stage
    menus = enumerate(stage_choices(base))
    own = [
        _alike_within_rank(base, s, merged_to(most, [apart(base, s, one) for one in choices]))
        for s, choices in menus
    ]
    seen = [
        instance_with(base, {s: each[min(place, len(each) - 1)] for s, each in enumerate(own)})
        for place in range(max(map(len, own)))
    ]
    return Spans.most(_rank_bound(seen, rank) for rank in range(base.num_ranks))


def _alike_within_rank(
    base: Problem, stage: int, choices: Sequence[StageChoice]
) -> list[StageChoice]:
    """Return choices that hold values between two stages of one rank equally long: the least.

    Otherwise what one of these stages holds depends on the other one's choice.
    """
    least = least_costs([one.costs for one in choices])
    untils: dict[str, OpKind] = {}
    if _share_rank(base, stage - 1, stage):
        untils["input_until"] = least.input_until
    if _share_rank(base, stage, stage + 1):
        untils["output_until"] = least.output_until
    return [one._replace(costs=one.costs.replace(**untils)) for one in choices]


def _share_rank(base: Problem, stage: int, after: int) -> bool:
    """Return True if a rank holds two stages in a row of a replica; False beyond the ends."""
    is_inside = stage >= 0 and after < base.costs.num_stages
    return is_inside and any(ranks[stage] == ranks[after] for ranks in base.placement.ranks)


def apart(base: Problem, stage: int, own: StageChoice) -> StageChoice:
    """Return a choice with its recomputation beside B instead of within it."""
    plain_us = base.costs.stages[stage].duration_us
    again_us = min(own.costs.duration_us[kind] - plain_us[kind] for kind in BACKWARDS)
    return StageChoice(own.costs.replace(duration_us=plain_us), own.again_us + again_us)


def _rank_bound(seen: Sequence[Instance], rank: int) -> Spans:
    """Return the bounds from one rank.

    Args:
        seen: for each place on the menus, the problem with the choices there for all stages.
    """
    plain = seen[0]
    head_us = min(plain.head_us[copy] for copy in plain.held[rank])
    work_us = sum(plain[copy].total_us(kind) for copy in plain.held[rank] for kind in _OPS)
    points = [[_point(one, copy) for one in seen] for copy in plain.held[rank]]
    headroom = plain.headroom_bytes[rank]
    busy_us = work_us if headroom is None else least_span_us(work_us, headroom, points)
    end_us = head_us + busy_us + plain.step_us(rank)
    origin_us = head_us if plain.origins_us is None else plain.origins_us[rank]
    return Spans(end_us, end_us - origin_us)


def _point(instance: Instance, number: int) -> _Point:
    """Return the recomputation of a stage copy, and what it holds, over all micro-batches."""
    copy = instance[number]
    held = sum(copy.duration_us[kind] * max(0, copy.peak_above_bytes[kind]) for kind in _OPS)
    for lifetime in instance.lifetimes:
        if lifetime.made[0] == number:
            held += lifetime.num_bytes * instance.shortest_lifetime_us(lifetime)
    return copy.num_micro_batches * copy.again_us, copy.num_micro_batches * held


def least_span_us(work_us: int, headroom: int, points: Iterable[Sequence[_Point]]) -> int:
    """Return the least span of a rank, over all mixtures of its stages' choices.

    Args:
        work_us: the work without recomputation.
        headroom: bytes; 0: nothing is held.
        points: for each stage its choices.
    """
    if not headroom:
        return work_us
    hulls = [_hull(each) for each in points]
    span_us = float(work_us + sum(hull[0][0] for hull in hulls))
    held = float(sum(hull[0][1] for hull in hulls))
    steps = [step for hull in hulls for step in _steps(hull)]
    for again_us, saved in sorted(steps, key=lambda step: step[0] / step[1]):
        # The share of the step after which memory takes no longer than the work.
        share = (held / headroom - span_us) / (again_us + saved / headroom)
        if share <= 0:
            break
        share = min(1.0, share)
        span_us, held = span_us + share * again_us, held - share * saved
    return math.ceil(max(span_us, held / headroom) * (1 - 1e-12))


def _hull(points: Iterable[_Point]) -> list[_Point]:
    """Return the lower convex hull of choices, from the least work to the least that is held."""
    found: list[_Point] = []
    for point in sorted(set(points)):
        if found and point[1] >= found[-1][1]:
            continue
        while len(found) > 1 and not _is_convex(found[-2], found[-1], point):
            found.pop()
        found.append(point)
    return found


def _is_convex(first: _Point, second: _Point, third: _Point) -> bool:
    """Return True if the second point is below the line from the first to the third."""
    saved = (first[1] - second[1]) * (third[0] - second[0])
    return saved > (second[1] - third[1]) * (second[0] - first[0])


def _steps(hull: Sequence[_Point]) -> Iterator[tuple[int, int]]:
    """Yield the work that each step along a hull adds, and what it saves."""
    for (before_us, before), (after_us, after) in pairwise(hull):
        yield after_us - before_us, before - after
