"""Lower bounds on the time per micro-batch by the number in flight, for a rank with one stage.

**Little's law.** A micro-batch is in flight from the start of its F to the end of its B, at least
L = F + round trip + B. So over a long time t with M micro-batches the integral of N, the number in
flight, is at least M L. Memory allows at most n in flight at any time. Hence T = t / M ≥ L / n.

**With versions** fewer are in flight at certain times. Let n₁ ≤ n be the most in flight beside a
stashed version, Δ the difference, and w the time of W. Let `e` be an op's excess: its time times
(n − the most in flight meanwhile). If the ops of a micro-batch have excesses of E or more on
average, then M L ≤ ∫ N ≤ n t − M E, so

    T ≥ (L + E) / n

**Stashed weights, vertical sync.** Each W is directly followed by its update, of time u. A
micro-batch in flight at an update has read a version that the update or an earlier one replaces,
and that its B reads, so the version is stashed. Hence at most n₁ are in flight during each W and
update, be it none at all, and E ≥ (w + u) Δ.

The bound can be strengthened. Take the B's between two updates, g ≥ 1 of them. No W runs between
them, so before
the r-th of these B's r − 1 or more micro-batches wait for their W's. Let y be the most that may
wait, with no version stashed and more than n₁ in flight.
(a) If some are in flight at the first update, a version is stashed until their B's have ended. So
    one B or more, and all but y, run with at most n₁ in flight, in proportion 1 / (y + 1) or more.
    They add B Δ each.
(b) If none is, W and update add (w + u) n₁, and all but y + 1 of the B's run with at most n₁.
Every B is between two updates, so on average each adds min(B Δ, (w + u) n₁) / (y + 1) or more.

**Two versions (2BW)** with an update every k. Between update b and the last B of batch b + 1 its
version b is stashed. At other times all B's of a batch have ended and not all of its W's. So there
is a stashed version, or the bytes that one W frees, and n is the most beside the smaller of the
two. In a batch
(a) during the last W and the update: those in flight are of the next batch, as earlier ones have
    had W and later ones have no version yet. So at most n₁ are in flight.
(b) B's of the next batch before this update: before the i-th one i or more wait for W, so all
    but y B's of a batch run with at most n₁ in flight.
(c) W's while no version is stashed: the r-th from the last runs while r or more wait, so all but
    y − 1 W's, if y ≥ 1, do, too.
Hence k E ≥ Δ (u k + B max(0, k − y) + w (k − max(0, min(k, y) − 1))).

A fused BW is a B and a W right after it, see `relaxed_for_fusion`. A micro-batch that waits for its
W while another op runs is not fused. A fused BW of 2BW comes after the update of the previous
batch, so a version is stashed until its end.
"""

from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.instance.instance import B, F, Instance, W


def in_flight_us(flush_free: FlushFreeProblem, instance: Instance, index: int) -> float:
    """The bound for a copy that is alone on its rank; 0 if memory does not limit it.

    Args:
        instance: the problem's instance, relaxed for fusion.
    """
    most = instance.headroom_in_forwards(index)
    if most is None:
        return 0.0
    copy = instance[index]
    latency_us = copy.duration_us[F] + instance.round_trip_us[index] + copy.duration_us[B]
    match flush_free.consistency:
        case Consistency.NONE:
            return latency_us / most
        case Consistency.TWO_VERSIONS:
            return _OneStage(flush_free, instance, index, most).two_versions_us(latency_us)
        case Consistency.STASH | Consistency.VERTICAL:
            return _OneStage(flush_free, instance, index, most).newest_us(latency_us)


class _OneStage:
    """The figures of a stage: n, n₁ and y of the proofs, and its times."""

    def __init__(
        self, flush_free: FlushFreeProblem, instance: Instance, index: int, most: int
    ) -> None:
        copy, headroom = instance[index], instance.headroom_of(index)
        assert headroom is not None
        self._headroom, self._most = headroom, most
        self._saved = copy.delta_bytes[F]
        self._waiting = max(0, copy.delta_bytes[F] + copy.delta_bytes[B])
        self._version = flush_free.problem.costs.stages[copy.stage].parameter_bytes
        self._beside_version = self._beside(self._version)
        self._every, self._step_us = flush_free.every, flush_free.step_us(copy.stage)
        self._backward_us, self._weight_us = copy.duration_us[B], copy.duration_us[W]

    def newest_us(self, latency_us: int) -> float:
        """The bound if F's read a newest version, and B's that of their F."""
        fewer = self._most - self._beside_version
        update_us = self._weight_us + self._step_us
        excess_us = update_us * fewer
        most_waiting = self._most_waiting
        if most_waiting is not None:
            at_backwards_us = min(self._backward_us * fewer, update_us * self._beside_version)
            excess_us += at_backwards_us / (most_waiting + 1)
        return (latency_us + excess_us) / self._most

    def two_versions_us(self, latency_us: int) -> float:
        """The bound of 2BW."""
        k = self._every
        # One may be in flight: where that does not fit, nothing does.
        most = max(1, self._beside(min(self._version, self._waiting)))
        waiting = k if self._most_waiting is None else min(k, self._most_waiting)
        num_weights = k - max(0, waiting - 1)
        batch_us = self._backward_us * (k - waiting) + self._weight_us * num_weights
        excess_us = (batch_us / k + self._step_us) * (most - min(most, self._beside_version))
        return (latency_us + excess_us) / most

    def _beside(self, num_bytes: int) -> int:
        """The most in flight beside some bytes."""
        return min(self._most, max(0, self._headroom - num_bytes) // self._saved)

    @property
    def _most_waiting(self) -> int | None:
        """The most that wait for W beside more in flight than beside a version; None: any number.

        None may wait where as many are in flight beside a version as without one.
        """
        if not self._waiting:
            return None
        beside = self._headroom - (self._beside_version + 1) * self._saved
        return max(0, beside) // self._waiting
