"""The time of a pipeline's schedule, with what programs wait for beside its order."""

from synth.costs.costs import Costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import lower
from synth.schedule.simulate import simulate

# Their programs validate the optimizer's step late, so that a rank begins the next iteration when
# its own work is done (Qi et al. 2023, arXiv 2401.10241, section 4).
_LATE_VALIDATION = ("zb-1p", "zb-2p")


def pipeline_us(
    name: str, ranks: int, micro_batches: int, costs: Costs, *, waits: bool = False
) -> int:
    """Simulate a published schedule; with late validation its period counts.

    Args:
        waits: interleaved 1F1B waits for its transfers.

    Raises:
        SynthError: the family does not admit the sizes.
    """
    if waits and name.startswith("interleaved"):
        costs = _with_waits(costs, ranks)
    line = simulate(lower(generate(name, ranks, micro_batches, costs=costs), costs))
    return line.period_us if name in _LATE_VALIDATION else line.makespan_us


def _with_waits(costs: Costs, ranks: int) -> Costs:
    """Add half of a transfer to each F and BW.

    All ranks exchange with both neighbours after each pair of F and BW, activations and gradients
    at once, and go on together: the slowest link sets the pace (Megatron-LM without overlap of
    p2p communication; Narayanan et al. 2021, arXiv 2104.04473, section 2.2).
    """
    stages = list(costs.stages)
    for number, stage in enumerate(stages):
        sent = (costs.boundary_us(number, rank, (rank + 1) % ranks) for rank in range(ranks))
        each_us = max(sent) // 2 if number + 1 < len(stages) else 0
        durations = {
            kind: us + each_us if kind in (OpKind.F, OpKind.BW) else us
            for kind, us in stage.duration_us.items()
        }
        stages[number] = stage.replace(duration_us=durations)
    return costs.replace(stages=tuple(stages))
