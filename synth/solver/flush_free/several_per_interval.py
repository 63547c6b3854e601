"""Problems without a flush for the modulo models of several micro-batches per interval.

Those models contain neither versions nor updates. So the headroom is reduced by as many versions as
a stage may hold, and W is lengthened by its update. The unrolled orders are verified with their
versions.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from synth.solver.flush_free.flush_free_problem import FlushFreeProblem
from synth.solver.instance.instance import B, Instance, OpIndex, W
from synth.solver.instance.stage_copy import StageCopy
from synth.solver.modulo.cyclic_ops import CyclicSchedule


def with_versions(flush_free: FlushFreeProblem, whole: Instance) -> Iterator[Instance]:
    """Yield the instance for each number of stashed versions that is worth a try.

    Args:
        whole: the instance of its problem, on ranks that hold one stage each.
    """
    copies = tuple(_updating(copy, flush_free.step_us(copy.stage)) for copy in whole.copies)
    stages = [whole[index].stage for (index,) in whole.held]
    sizes = [flush_free.problem.costs.stages[stage].parameter_bytes for stage in stages]
    for stashed in flush_free.stashed_to_try:
        rooms = tuple(
            None if room is None else room - stashed * size
            for room, size in zip(whole.headroom_bytes, sizes, strict=True)
        )
        yield replace(whole, copies=copies, headroom_bytes=rooms)


def _updating(copy: StageCopy, step_us: float) -> StageCopy:
    weight_us = copy.duration_us[W] + math.ceil(step_us)
    return copy._replace(duration_us={**copy.duration_us, W: weight_us})


def with_early_weights(found: CyclicSchedule, instance: Instance) -> CyclicSchedule:
    """Let each W run in the first interval after its B, so that updates come early.

    The models leave W's where they are if that costs no memory in their terms.
    """
    starts = dict(found.starts)
    for (index, op), at in found.starts.items():
        if op.kind == W:
            ready = starts[index, OpIndex(B, op.microbatch)] + instance[index].duration_us[B]
            starts[index, op] = ready + (at - ready) % found.interval
    return replace(found, starts=starts)
