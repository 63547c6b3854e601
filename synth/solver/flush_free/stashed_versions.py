"""The bytes of stashed versions in a modulo model: linear in the heights of its ops.

Let B and W be the runs of a stage's B and W before some moment, less those of the op x that runs
next. `late` is the number of micro-batches by which the weights that F reads are late. Stashed are

    stash     max(0, late − (B − W))         versions
    vertical  the same with `late` of the first stage
    none      no version

With 2BW an update takes k micro-batches. Version b − 1 is stashed from the update after the W of
micro-batch k b − 1 until the B of micro-batch k (b + 1) − 1. So at the K-th run of x one version is
stashed unless a multiple of k is in (K + W, K + B]: for K modulo k that is an arc of a circle. The
most bytes of a rank are those at the beginning of some stage's arc, right after its update, where
K + W is a multiple of k for that stage. Stages that hold their second versions in turn have arcs
that are apart.
"""

from __future__ import annotations

from collections.abc import Callable

from synth.solver.cpsat.or_tools import cp_model
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.instance.instance import B, F, Instance, W
from synth.solver.modulo.cyclic_ops import Expression
from synth.solver.modulo.recurrent_job_shop import CyclicOp

Runs = Callable[[CyclicOp, CyclicOp], Expression]


class StashedVersions:
    """The bytes of versions but the newest ones that the stages of a rank hold."""

    def __init__(
        self,
        cp: cp_model.CpModel,
        flush_free: FlushFreeProblem,
        instance: Instance,
        runs: Runs,
        most: int,
    ) -> None:
        """Add to a model.

        Args:
            flush_free: the rule of versions, and the bytes of the parameters.
            instance: the problem's instance.
            runs: the runs of an op of a rank before one of another op, less those of the latter.
            most: the largest absolute value of any `runs`.
        """
        self.cp, self.flush_free, self.instance = cp, flush_free, instance
        self._runs, self._most = runs, most
        self._is_two = flush_free.consistency == Consistency.TWO_VERSIONS

    def at_most(self, held: tuple[int, ...], x: CyclicOp) -> list[Expression]:
        """Bytes of a rank before a run of x, one of which is the most of all its runs."""
        if not self._is_two:
            return [sum(self._of_newest(index, x, after=False) for index in held)]
        return [sum(self._of_two(s, t, x, after=False) for s in held) for t in held]

    def after_update(self, held: tuple[int, ...], w: CyclicOp) -> Expression:
        """The bytes of a rank right after an update, which directly follows a run of W."""
        if not self._is_two:
            return sum(self._of_newest(index, w, after=index == w.copy) for index in held)
        return sum(self._of_two(s, w.copy, w, after=True) for s in held)

    def _size(self, index: int) -> int:
        stage = self.instance[index].stage
        return self.flush_free.problem.costs.stages[stage].parameter_bytes

    def _of_newest(self, index: int, x: CyclicOp, *, after: bool) -> Expression:
        """The bytes of a copy whose F's read a newest version, or the first stage's, or none."""
        if self.flush_free.consistency == Consistency.NONE:
            return 0
        is_vertical = self.flush_free.consistency == Consistency.VERTICAL
        reader = self.instance.index[0, 0] if is_vertical else index
        late = -self._runs(CyclicOp(reader, W), CyclicOp(reader, F))
        ahead = self._runs(CyclicOp(index, B), x) - self._runs(CyclicOp(index, W), x) - int(after)
        stashed = self.cp.new_int_var(0, self._most + 1, "")
        self.cp.add(stashed >= late - ahead)
        return self._size(index) * stashed

    def _of_two(self, index: int, updated: int, x: CyclicOp, *, after: bool) -> Expression:
        """The bytes of a copy's second version at those runs of x that follow an update.

        Args:
            x: an op of their rank.
            after: x is W of `updated`, and has run.
        """
        every = self.flush_free.every
        at_update = self._weights_run(updated, x, after=after)
        weights = self._weights_run(index, x, after=after)
        backwards = self._runs(CyclicOp(index, B), x)
        is_held = self.cp.new_bool_var("")
        if index == updated:
            self.cp.add(backwards - weights >= every).only_enforce_if(~is_held)
            return self._size(index) * is_held
        # It is not if K + W < k (number of batches) ≤ K + B for some number, with K = −at_update.
        most = 2 * (self._most + 1) // every + 1
        batches = self.cp.new_int_var(-most, most, "")
        self.cp.add(weights - at_update < every * batches).only_enforce_if(~is_held)
        self.cp.add(every * batches <= backwards - at_update).only_enforce_if(~is_held)
        return self._size(index) * is_held

    def _weights_run(self, index: int, x: CyclicOp, *, after: bool) -> Expression:
        w = CyclicOp(index, W)
        return self._runs(w, x) + int(after and w == x)
