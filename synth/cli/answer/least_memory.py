"""The least memory limit under which a time is met, in words and for scripts."""

from typing import Any

from synth.cli.answer.output import percent
from synth.objective import BoundScope
from synth.plan.memory_curve.target_proof import TargetProof
from synth.solver.result import Incumbent, Result
from synth.units import format_bytes, format_bytes_both, format_us


def memory_line(incumbent: Incumbent, proof: TargetProof) -> str:
    """Return a line of progress: the limit, its bound, and the schedule that meets the time."""
    assert proof.gap is not None
    objective = incumbent.problem.objective.words
    return (
        f"target met with {format_bytes(max(incumbent.peak_bytes))}  proven not below "
        f"{format_bytes(proof.not_below_bytes or 0)}  gap {percent(proof.gap)}  {objective} "
        f"{format_us(incumbent.value_us)}"
    )


def memory_text(result: Result, proof: TargetProof) -> str:
    """Say the memory limit found, its lower bound, and the partitions that the bound covers."""
    cap, least, gap = proof.cap_bytes, proof.not_below_bytes, proof.gap
    assert cap is not None and least is not None and gap is not None
    proven = "proven the least" if gap == 0 else f"gap {percent(gap)}"
    where = result.bound_scope.words
    if result.bound_scope != BoundScope.CANDIDATES:
        where += " in this placement"
    return (
        f"target: {result.problem.objective.words} {format_us(proof.target_us)} "
        f"({proof.target_us} µs) or less\n"
        f"least memory limit, one for all ranks: found {format_bytes_both(cap)} = {cap}B,\n"
        f"proven not below {format_bytes_both(least)} = {least}B, for {where}: {proven}"
    )


def memory_json(result: Result) -> dict[str, Any]:
    """Return the figures of a search for the least memory limit; none of other searches."""
    proof = result.memory
    if not isinstance(proof, TargetProof):
        return {}
    return {
        "target_us": proof.target_us,
        "cap_bytes": proof.cap_bytes,
        "not_below_bytes": proof.not_below_bytes,
        "memory_gap": proof.gap,
        "fastest_us": proof.fastest_us,
        "lower_bound_without_limit_us": proof.bound_us,
    }
