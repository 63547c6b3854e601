"""Memory limits at which the set of feasible orders can change, with one stage per rank.

Bounds model memory as a sum over the ops that a rank has done (see
`synth.solver.instance.instance`). An op may run if the usage before it plus its own peak is within
the limit, and as many micro-batches may be in flight as fit beside. So between two neighbouring
sums of these forms all limits allow the same orders.
"""

from bisect import bisect_right

import numpy as np

from synth.op_kinds import MEASURED
from synth.plan.tuning import LEAST_CAP
from synth.solver.instance.instance import B, F, Instance, W
from synth.solver.instance.memory_models import relaxed_for_fusion, relaxed_memory
from synth.solver.problem import Problem


class CapBreakpoints:
    """Memory usages that some order can reach, over all ranks; empty if there are too many."""

    def __init__(self, problem: Problem) -> None:
        self._breakpoints: list[int] = []
        m = problem.num_micro_batches
        alone = all(len(held) == 1 for held in problem.placement.held)
        if alone and problem.num_ranks * (m + 1) ** 3 <= LEAST_CAP.most_sums:
            instances = (relaxed_memory(problem), relaxed_for_fusion(problem))
            found = {
                level
                for rank in range(problem.num_ranks)
                for instance in instances
                for level in _sums_of(instance, rank, problem.static_bytes(rank))
            }
            self._breakpoints = sorted(found)

    def largest_like(self, cap_bytes: int) -> int:
        """Return the largest limit that bounds cannot distinguish from this one."""
        place = bisect_right(self._breakpoints, cap_bytes)
        return self._breakpoints[place] - 1 if place < len(self._breakpoints) else cap_bytes


def _sums_of(instance: Instance, rank: int, static: int) -> list[int]:
    """Return sums of static bytes, f F's, b B's and w W's (w ≤ b ≤ f), and the next op's peak."""
    copy = instance[instance.held[rank][0]]
    counts = np.arange(copy.num_micro_batches + 1)
    f, b, w = np.meshgrid(counts, counts, counts, indexing="ij")
    delta = copy.delta_bytes
    level = f * delta[F] + b * delta[B] + w * delta[W]
    level = np.unique(level[(w <= b) & (b <= f)])
    needs = np.array([copy.peak_above_bytes[kind] for kind in MEASURED])
    sums = (level[:, None] + needs).ravel()
    if copy.beside_bytes is not None:
        sums = np.concatenate([sums, copy.beside_bytes + counts * delta[F]])
    return [static + int(sum_) for sum_ in np.unique(sums)]
