"""Costs in which recomputation is the first part of the backward.

A stage that recomputes keeps only its input from F on, and R rebuilds the rest before B.
"""

from collections.abc import Collection

from synth.costs.costs import Costs
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind

_BACKWARDS = (OpKind.B, OpKind.BW)


def merged(costs: Costs, stages: Collection[int]) -> Costs:
    """Return the costs with R as the first part of B, and of BW, of some stages."""
    last = costs.num_stages - 1
    return costs.replace(
        stages=tuple(
            _merged(stage, is_last=number == last) if number in stages else stage
            for number, stage in enumerate(costs.stages)
        )
    )


def _merged(stage: StageCosts, *, is_last: bool) -> StageCosts:
    duration, rise = dict(stage.duration_us), dict(stage.rise_bytes)
    again = stage.output_bytes if stage.output_until != OpKind.F and not is_last else 0
    grown = stage.saved_bytes + again - stage.replay_bytes
    for kind in _BACKWARDS:
        duration[kind] += duration[OpKind.R]
        rise[kind] = max(rise[OpKind.R], grown + rise[kind], 0)
    rise[OpKind.F] = stage.light_rise
    return stage.replace(
        duration_us=duration,
        rise_bytes=rise,
        saved_bytes=stage.replay_bytes,
        saved_w_bytes=stage.saved_w_bytes + (again if stage.output_until == OpKind.W else 0),
        input_until=max(stage.input_until, OpKind.B, key=lambda kind: kind.rank_in_chain),
        output_until=OpKind.F,
        sent_bytes=None,
    )
