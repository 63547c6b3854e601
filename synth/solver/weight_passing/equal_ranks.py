"""All-gathers: all ranks may run one order, so two ranks represent any number of them.

**Lemma.** With equal shares of micro-batches, no schedule is faster than the best one in which all
ranks run the same order. Take any schedule that keeps the limits, and let all ranks run the order
of the rank with the least limit, which fits on all. A collective then starts as soon as that rank
has reached it, and not when the last rank has. So by induction along the order no op ends later
than it did on that rank.

So two ranks have the same times as all of them if their links are slowed down until collectives
take as long, and if half of a STEP takes as long as a share of it on all ranks. They have the same
memory if the limit is changed by the difference of static bytes. Evaluating two ranks takes a
fraction of the time.
"""

from dataclasses import replace

from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.placements import everywhere
from synth.schedule.rank_memory import kept_bytes
from synth.schedule.weight_flow import Sharded
from synth.solver.weight_passing.problem import WeightPassingProblem


def on_two_ranks(passing: WeightPassingProblem, sharded: Sharded) -> WeightPassingProblem:
    """Make the problem on two ranks that has the same times, up to the rounding of collectives.

    Args:
        sharded: the state that homes alone keep.
    """
    problem, p = passing.problem, passing.num_ranks
    ring = [(rank, (rank + 1) % p) for rank in range(p)]
    mean_bytes = sum(stage.parameter_bytes for stage in passing.stages) // len(passing.stages)
    slowest = max(
        (problem.costs.links.between(*ends) for ends in ring),
        key=lambda link: link.transfer_us(mean_bytes // p),
    )
    bandwidth = slowest.bandwidth_bytes_per_s
    link = Link(
        latency_us=slowest.latency_us * (p - 1),
        bandwidth_bytes_per_s=bandwidth and bandwidth * p / (2 * (p - 1)),
    )
    stages = tuple(
        stage.replace(duration_us={**stage.duration_us, OpKind.STEP: 2 * passing.step_us(number)})
        for number, stage in enumerate(passing.stages)
    )
    costs = problem.costs.replace(stages=stages, links=Links(default=link))
    where = everywhere(2, len(passing.stages))
    small = replace(
        passing,
        problem=replace(
            problem,
            costs=costs,
            placement=where,
            num_micro_batches=2 * passing.rounds,
            caps_bytes=None,
        ),
    )
    headrooms = passing.headrooms(sharded)
    if headrooms is None:
        return small
    cap = min(headrooms) + kept_bytes(costs, where, small.flow(sharded), 0)
    return replace(small, problem=replace(small.problem, caps_bytes=(cap, cap)))
