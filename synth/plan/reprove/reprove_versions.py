"""Proving the bounds of a plan without a flush again: those over all orders."""

from typing import NamedTuple

from synth.errors import Mismatch
from synth.schedule.files.claim import SteadyClaim
from synth.schedule.weight_versions import WeightVersions
from synth.solver.flush_free.bounds import any_order_us, makespan_us
from synth.solver.flush_free.flush_free_problem import FlushFreeProblem
from synth.solver.problem import Problem


class ProvenVersions(NamedTuple):
    """The bound of the makespan that was proven, its scope, and the part taken on trust."""

    reached_us: int
    holds_for: str
    on_trust: str | None


def prove_versions(problem: Problem, rule: WeightVersions, claim: SteadyClaim) -> ProvenVersions:
    """Prove the bounds of all orders of a schedule without a flush again.

    The bound of orders that repeat with every micro-batch is not proven again.

    Raises:
        Mismatch: the claimed bound of a micro-batch is above the one that is proven.
    """
    flush_free = FlushFreeProblem.following(problem, rule)
    proven_us = any_order_us(flush_free)
    if claim.lower_bound_us > proven_us:
        raise Mismatch(
            f"the claimed lower bound of the steady state, {claim.lower_bound_us} µs of a "
            f"micro-batch, is above the one proven for all orders, {proven_us} µs; solve again"
        )
    holds_for = (
        f"all orders with such versions; that of the steady state, {claim.lower_bound_us:.1f} µs "
        f"of a micro-batch, is of those that take micro-batches in order on every stage"
    )
    on_trust = (
        f"that orders which repeat with every micro-batch take at least {claim.repeating_us:.1f} "
        f"µs of a micro-batch: this bound is not proven again"
    )
    is_closed = claim.repeating_us <= proven_us
    return ProvenVersions(makespan_us(flush_free), holds_for, None if is_closed else on_trust)
