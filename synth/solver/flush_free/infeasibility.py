"""The message of a memory limit that no schedule without a flush keeps."""

from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.infeasibility import needed_bytes
from synth.units import format_bytes_both


def why_infeasible(flush_free: FlushFreeProblem, *, is_only_repeating: bool) -> str:
    """Name a rank that cannot hold one micro-batch at a time, and a sufficient memory limit.

    Args:
        flush_free: the problem and its rule of versions.
        is_only_repeating: only orders that repeat with every micro-batch were refuted.
    """
    problem, is_doubled = flush_free.problem, flush_free.consistency == Consistency.TWO_VERSIONS
    needed = [*needed_bytes(problem)]
    for rank, held in enumerate(problem.placement.held):
        stages = (problem.costs.stages[stage] for stage, _ in held)
        needed[rank] += is_doubled * sum(stage.parameter_bytes for stage in stages)
    caps = problem.caps_bytes or (0,) * len(needed)
    rank = max(range(len(needed)), key=lambda r: needed[r] - caps[r])
    two = " and two versions of its weights" if is_doubled else ""
    which = "order that repeats with every micro-batch" if is_only_repeating else "schedule"
    return (
        f"no {which} fits with §versions {flush_free.name}: rank {rank} needs "
        f"{format_bytes_both(needed[rank])} for one micro-batch at a time{two}, and its memory "
        f"limit is {format_bytes_both(caps[rank])}; give §mem_limit {max(needed)}B, more ranks, a "
        f"smaller micro-batch, or §recompute layers:…"
    )
